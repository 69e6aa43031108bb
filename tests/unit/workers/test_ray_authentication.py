"""Permission to start a driver on a Ray cluster, checked with servers that answer like Ray's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from moothall.cli.doctor import _ray_cluster
from moothall.config import RaySettings
from moothall.errors import ConfigurationError
from moothall.workers.ray_setup import Access, check_access, explain_refusal, probe_access


@asynccontextmanager
async def cluster(code: grpc.StatusCode | None) -> AsyncIterator[str]:
    """Yield the address of a server that answers `CheckAlive`, or refuses it with `code`."""

    async def check_alive(_request: bytes, context: Any) -> bytes:
        if code is not None:
            await context.abort(code, "no token")
        return b""

    server = grpc.aio.server()
    handler: Any = grpc.unary_unary_rpc_method_handler(check_alive)
    service = "ray.rpc.NodeInfoGcsService"
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {"CheckAlive": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


@pytest.mark.parametrize(
    "code", [grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED]
)
async def test_a_cluster_that_requires_a_token_may_be_used(code: grpc.StatusCode) -> None:
    async with cluster(code) as address:
        assert await probe_access(address) == (Access.RESTRICTED, "")
        await check_access(RaySettings(address=address), address)
        assert "set RAY_AUTH_TOKEN" in await explain_refusal(address)
        finding = await _ray_cluster(RaySettings(address=address), address)
    assert (finding.ok, finding.mend) == (True, "")


async def test_a_cluster_without_a_token_is_used_only_if_the_setting_accepts_it() -> None:
    async with cluster(None) as address:
        assert await probe_access(address) == (Access.OPEN, "")
        with pytest.raises(
            ConfigurationError,
            match=r"accepts drivers without a token: .* MOOTHALL_RAY__ALLOW_NO_TOKEN",
        ):
            await check_access(RaySettings(address=address), address)
        await check_access(RaySettings(address=address, allow_no_token=True), address)
        assert await explain_refusal(address) == ""
        finding = await _ray_cluster(RaySettings(address=address), address)
        accepted = await _ray_cluster(RaySettings(address=address, allow_no_token=True), address)
    assert (finding.ok, "RAY_AUTH_TOKEN" in finding.mend) == (False, True)
    assert (accepted.ok, accepted.mend) == (True, "")


async def test_an_unreachable_cluster_is_reported_as_such() -> None:
    async with cluster(None) as address:
        pass
    access, reason = await probe_access(address)
    assert (access, reason.partition(":")[0]) == (Access.UNKNOWN, "UNAVAILABLE")
    finding = await _ray_cluster(RaySettings(address=address), address)
    assert (finding.ok, finding.mend) == (False, "Check ray.address, and that the cluster runs")
