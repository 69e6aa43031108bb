from __future__ import annotations

import asyncio
import json
import runpy
import shutil
import subprocess
import sys
import sysconfig
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from moothall import config
from moothall.api.grpc_server import grpc_server
from moothall.api.identity import BearerTokens
from moothall.client import AsyncClient
from moothall.domain.ids import Principal
from moothall.domain.outcome import Outcome
from moothall.errors import ConfigurationError, QuotaExceeded
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as pb
from support.callers import (
    EVERYWHERE,
    TOKEN,
    TOKENS,
    Client,
    Serving,
    api_dependencies,
    certificate,
    serving,
)
from support.deliberation_service import MemoryDeliberations
from support.rest import serving_http

SERVICE = "orchestrator.v1.OrchestratorService"


async def start(deliberations: MemoryDeliberations, **settings: Any) -> None:
    async with serving(deliberations, **settings):
        pass


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
async def test_the_server_listens_on_loopback(
    deliberations: MemoryDeliberations, host: str
) -> None:
    async with serving(deliberations, host=host) as app:
        assert app.server.port > 0
        answer = await app.client.SubmitDeliberation(
            pb.DeliberateRequest(task_description="t", role="dev")
        )
        assert answer.agent_count == 3


async def test_a_non_loopback_address_requires_tls(deliberations: MemoryDeliberations) -> None:
    with pytest.raises(ConfigurationError, match=r"grpc\.tls_cert and grpc\.tls_key"):
        await start(deliberations, host=EVERYWHERE)


@pytest.mark.parametrize("tokens", [{}, {"": TOKENS[TOKEN]}])
async def test_the_server_requires_a_token(
    deliberations: MemoryDeliberations, tokens: dict[str, object]
) -> None:
    with pytest.raises(ConfigurationError, match="token"):
        async with grpc_server(
            config.GrpcSettings(port=0),
            api_dependencies(deliberations),
            BearerTokens(tokens),  # type: ignore[arg-type] # of both kinds
        ):
            pass


@pytest.mark.skipif(
    shutil.which("openssl") is None,
    reason="needs openssl to make a certificate: apt-get install openssl",
)
async def test_tls_allows_any_address_and_plain_text_is_refused(
    deliberations: MemoryDeliberations, tmp_path: Path
) -> None:
    files = certificate(tmp_path)
    async with serving(deliberations, host=EVERYWHERE, **files) as app:
        with pytest.raises(grpc.aio.AioRpcError):
            await app.client.SubmitDeliberation(
                pb.DeliberateRequest(task_description="t", role="dev"), timeout=2
            )
        trusted = grpc.ssl_channel_credentials(files["tls_cert"].read_bytes())
        async with grpc.aio.secure_channel(f"localhost:{app.server.port}", trusted) as channel:
            deliberate_request = pb.DeliberateRequest(task_description="t", role="dev")
            assert (await Client(channel).SubmitDeliberation(deliberate_request)).agent_count == 3


@pytest.mark.skipif(
    shutil.which("openssl") is None,
    reason="needs openssl to make a certificate: apt-get install openssl",
)
async def test_a_client_that_does_not_trust_the_authority_is_refused(
    deliberations: MemoryDeliberations, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    files, foreign_files = certificate(tmp_path), certificate(tmp_path / "other")
    async with serving(deliberations, host=EVERYWHERE, **files) as app:
        outsider = grpc.ssl_channel_credentials(foreign_files["tls_cert"].read_bytes())
        async with grpc.aio.secure_channel(f"localhost:{app.server.port}", outsider) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await Client(channel).GetStatus(pb.GetStatusRequest(), timeout=3)
        assert caught.value.code() in {
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.DEADLINE_EXCEEDED,
        }
        trusted = grpc.ssl_channel_credentials(files["tls_cert"].read_bytes())
        async with grpc.aio.secure_channel(f"localhost:{app.server.port}", trusted) as channel:
            assert (await Client(channel).GetStatus(pb.GetStatusRequest())).status == "healthy"
            with pytest.raises(grpc.aio.AioRpcError) as caught:  # TLS alone authenticates nobody
                await Client(channel, None).GetStatus(pb.GetStatusRequest())
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.skipif(
    shutil.which("openssl") is None,
    reason="needs openssl to make a certificate: apt-get install openssl",
)
async def test_a_client_without_a_required_certificate_is_refused(
    deliberations: MemoryDeliberations, tmp_path: Path
) -> None:
    (tmp_path / "client").mkdir()
    files, mine = certificate(tmp_path), certificate(tmp_path / "client")
    async with serving(
        deliberations, host=EVERYWHERE, **files, tls_client_ca=mine["tls_cert"]
    ) as app:
        authority = files["tls_cert"].read_bytes()
        async with grpc.aio.secure_channel(
            f"localhost:{app.server.port}", grpc.ssl_channel_credentials(authority)
        ) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await Client(channel).GetStatus(pb.GetStatusRequest(), timeout=3)
        assert caught.value.code() in {
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.DEADLINE_EXCEEDED,
        }
        client_credentials = grpc.ssl_channel_credentials(
            authority, mine["tls_key"].read_bytes(), mine["tls_cert"].read_bytes()
        )
        async with grpc.aio.secure_channel(
            f"localhost:{app.server.port}", client_credentials
        ) as channel:
            assert (await Client(channel).GetStatus(pb.GetStatusRequest())).status == "healthy"


async def test_a_client_authority_without_tls_is_an_error(
    deliberations: MemoryDeliberations, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match="tls_client_ca needs"):
        await start(deliberations, tls_client_ca=tmp_path / "ca.pem")


async def test_a_certificate_without_its_key_is_an_error(
    deliberations: MemoryDeliberations, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match="belong together"):
        await start(deliberations, tls_cert=tmp_path / "cert.pem")


async def test_missing_or_invalid_tls_files_are_errors(
    deliberations: MemoryDeliberations, tmp_path: Path
) -> None:
    paths = {"tls_cert": tmp_path / "cert.pem", "tls_key": tmp_path / "key.pem"}
    with pytest.raises(ConfigurationError, match="cannot be read"):
        await start(deliberations, **paths)
    for path in paths.values():
        path.write_text("nonsense", encoding="ascii")
    with pytest.raises(ConfigurationError, match="PEM"):
        await start(deliberations, **paths)


async def test_a_port_in_use_is_an_error(deliberations: MemoryDeliberations, app: Serving) -> None:
    with pytest.raises(ConfigurationError, match="cannot listen"):
        await start(deliberations, port=app.server.port)


async def test_a_port_is_free_after_the_server_stops(deliberations: MemoryDeliberations) -> None:
    async with serving(deliberations) as first:
        port = first.server.port
    async with serving(deliberations, port=port) as second:
        assert second.server.port == port


async def test_the_health_service_needs_no_token(app: Serving) -> None:
    health: Any = health_pb2_grpc.HealthStub(app.channel)
    for service in ("", SERVICE):
        answer = await health.Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await health.Check(health_pb2.HealthCheckRequest(service="unknown"), timeout=10)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_more_calls_than_allowed_are_refused(deliberations: MemoryDeliberations) -> None:
    async with serving(deliberations, calls=1) as app:
        waiting = app.client.Deliberate(pb.DeliberateRequest(task_description="t", role="dev"))
        await deliberations.submitted.wait()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await app.client.SubmitDeliberation(
                pb.DeliberateRequest(task_description="t", role="dev")
            )
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        waiting.cancel()


async def test_calls_in_flight_may_end_within_the_grace_time(
    deliberations: MemoryDeliberations,
) -> None:
    async with asyncio.TaskGroup() as group, serving(deliberations, grace_seconds=10) as app:
        call = app.client.Deliberate(
            pb.DeliberateRequest(task_description="t", role="dev", task_id="task-1")
        )
        answer = group.create_task(_await_call(call))
        await deliberations.submitted.wait()
        group.create_task(_decide_soon(deliberations))
    assert answer.result().status == pb.DELIBERATION_STATUS_CANCELLED


async def test_a_call_that_waits_too_long_may_be_repeated_and_its_work_goes_on(
    deliberations: MemoryDeliberations,
) -> None:
    async with serving(deliberations, grace_seconds=0.1) as app:
        call = app.client.Deliberate(
            pb.DeliberateRequest(task_description="t", role="dev", task_id="task-1")
        )
        answer = asyncio.ensure_future(_await_call(call))
        await deliberations.submitted.wait()
    with pytest.raises(
        grpc.aio.AioRpcError, match="send the request again with the same id"
    ) as caught:
        await answer
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert not (await deliberations.result("task-1", TOKENS[TOKEN])).status.ended


async def test_calls_that_arrive_while_a_stopping_server_is_busy_are_answered(
    deliberations: MemoryDeliberations,
) -> None:
    headers = (("authorization", f"Bearer {TOKEN}"),)
    with ThreadPoolExecutor(4) as pool:
        async with serving(deliberations, accept_seconds=0.1) as app:
            await app.client.GetStatus(pb.GetStatusRequest())
            channel = grpc.insecure_channel(app.server.target)
            await asyncio.to_thread(grpc.channel_ready_future(channel).result, 10)
            ask: Any = channel.unary_unary(f"/{SERVICE}/GetStatus")
            calls = [pool.submit(ask, b"", timeout=20, metadata=headers) for _ in range(4)]
            time.sleep(0.5)  # the server's loop is busy while they arrive, and stops right after
        assert [await asyncio.to_thread(call.exception, 20) for call in calls] == [None] * 4
        channel.close()


class _SlowDeliberations(MemoryDeliberations):
    """Deliberations whose waits end slowly, as over a real bus."""

    async def wait(self, task_id: str, principal: Principal) -> Outcome:
        try:
            return await super().wait(task_id, principal)
        finally:
            await asyncio.sleep(1.3)


async def test_a_slow_release_is_reported_too() -> None:
    deliberations = _SlowDeliberations()
    async with serving(deliberations, grace_seconds=0.1) as app:
        call = app.client.Deliberate(
            pb.DeliberateRequest(task_description="t", role="dev", task_id="task-1")
        )
        answer = asyncio.ensure_future(_await_call(call))
        await deliberations.submitted.wait()
    with pytest.raises(grpc.aio.AioRpcError, match="send the request again with the same id"):
        await answer


async def test_a_stopping_server_reports_not_serving_while_it_accepts_calls(
    deliberations: MemoryDeliberations,
) -> None:
    leaving, dependencies = asyncio.Event(), api_dependencies(deliberations)
    async with serving_http(dependencies) as web, asyncio.TaskGroup() as group:
        assert (await web("GET", "/ready", token=None)).status == 503, "gRPC is not ready yet"

        async def serve(ready: asyncio.Future[str]) -> None:
            async with grpc_server(
                config.GrpcSettings(port=0),
                dependencies,
                BearerTokens(TOKENS),
                leave_seconds=1,
            ) as server:
                ready.set_result(server.target)
                await leaving.wait()

        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        group.create_task(serve(ready))
        async with grpc.aio.insecure_channel(await ready) as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)
            watch = health.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
            readiness = await web("GET", "/ready", token=None)
            assert (readiness.status, readiness.json) == (200, {"ready": True})
            leaving.set()
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            readiness = await web("GET", "/ready", token=None)
            assert (readiness.status, readiness.json) == (503, {"ready": False})
            answer = await Client(channel).SubmitDeliberation(
                pb.DeliberateRequest(task_description="t", role="dev")
            )
            assert answer.agent_count == 3
            watch.cancel()


async def _await_call(call: Any) -> Any:
    return await call


async def _decide_soon(deliberations: MemoryDeliberations) -> None:
    await asyncio.sleep(0.2)
    await deliberations.cancel("task-1", "enough", TOKENS[TOKEN])


BUF = Path(sysconfig.get_path("scripts")) / "buf"


async def buf(app: Serving, *arguments: str) -> str:
    at = f"http://{app.server.target}"
    command = [
        str(BUF),
        "curl",
        "--http2-prior-knowledge",
        "--protocol",
        "grpc",
        *arguments[:-1],
        at + arguments[-1],
    ]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, err.decode()
    return out.decode()


@pytest.mark.skipif(not BUF.exists(), reason="needs buf: scripts/setup dev")
async def test_a_reflection_client_lists_and_calls_methods(
    deliberations: MemoryDeliberations, app: Serving
) -> None:
    methods = (await buf(app, "--list-methods", "")).split()
    assert f"{SERVICE}/Deliberate" in methods
    assert "grpc.health.v1.Health/Check" in methods
    request_json = json.dumps(
        {"task_description": "Add hello_world()", "role": "DEV", "rounds": 1, "num_agents": 3}
    )
    authorised = ("-H", f"authorization: Bearer {TOKEN}", "-d", request_json)
    answer = json.loads(await buf(app, *authorised, f"/{SERVICE}/SubmitDeliberation"))
    assert answer == {
        "taskId": deliberations.task_ids()[0],
        "status": "DELIBERATION_STATUS_PENDING",
        "agentCount": 3,
    }


def test_generated_code_matches_the_protos_and_is_loaded_under_moothall_pb(tmp_path: Path) -> None:
    checked_out, root = Path(pb.__file__).parents[2], Path(__file__).parents[3]
    shutil.copytree(root / "protos", tmp_path / "protos")
    generated = runpy.run_path(str(root / "scripts" / "protoc.py"))["generate"](tmp_path)
    assert generated == tmp_path / "src/moothall/pb"
    assert sources(generated) == sources(checked_out), "run scripts/protoc.py"
    code = (
        "import sys, moothall.pb.orchestrator.v1.orchestrator_pb2; print({'orchestrator', "
        "'moothall.v1'} & {*sys.modules})"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    assert loaded.stdout.strip() == "set()"


def sources(folder: Path) -> dict[Path, str]:
    return {
        file.relative_to(folder): file.read_text(encoding="utf-8")
        for file in folder.rglob("*.py*")
        if file.suffix != ".pyc"
    }


async def test_an_exhausted_quota_is_reported_immediately_with_its_reset_time(
    deliberations: MemoryDeliberations,
) -> None:
    deliberations.failure = QuotaExceeded("the quota of tenant team-a is used up: …", 7200.0)
    async with serving(deliberations) as app:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await app.client.SubmitDeliberation(pb.DeliberateRequest(task_description="x"))
        status: Any = rpc_status.from_call(refused.value)  # type: ignore[arg-type] # it is one
        details = [detail.type_url.rpartition(".")[2] for detail in status.details]
        assert (refused.value.code(), details) == (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            ["ErrorInfo", "RetryInfo"],
        )
        async with asyncio.timeout(20), AsyncClient(app.server.target, token=TOKEN) as client:
            with pytest.raises(QuotaExceeded, match="team-a is used up") as error:
                await client.submit("Write a haiku")
        assert (error.value.code, error.value.retry_after) == ("QUOTA_EXCEEDED", 7200.0)
