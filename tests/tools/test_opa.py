"""A real OPA server under the contract of policy engines, and behind a gateway."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from moothall.authorization.rules import Policy, policies_folder
from moothall.domain.tool import ToolStatus
from moothall.policy import Opa, opa
from support import gobuilt
from support import opa as real
from support.policy import CONTRACT, POLICY, READ, Opened
from support.tool_gateway import open_app, tool_call

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module", autouse=True)
def _require_opa() -> None:
    try:
        real.program()
    except gobuilt.Missing as missing:
        pytest.skip(f"{missing}; `scripts/opa --fetch` says more")


@asynccontextmanager
async def run_opa(folder: Path, seconds: float = 30) -> AsyncIterator[Opa]:
    with real.server(folder) as (url, _):
        async with opa(url, seconds=seconds) as engine:
            yield engine


@pytest.mark.parametrize("case", CONTRACT, ids=lambda case: case.__name__)
async def test_opa_fulfils_the_contract_of_policy_engines(
    case: Callable[[Opened, Path], Awaitable[None]], tmp_path: Path
) -> None:
    await case(run_opa, tmp_path)


async def test_the_bundled_policy_gives_the_same_decisions_in_opa() -> None:
    async with run_opa(policies_folder()) as engine:
        for operation, allow, park in (
            ("read", True, False),
            ("execute", True, False),
            ("outside", False, True),
            ("else", False, False),
        ):
            decision = await engine.decide({**READ, "operation": operation})
            assert (decision["allow"], decision.get("park", False)) == (allow, park)


async def test_a_hanging_server_and_a_dead_server_block_calls(tmp_path: Path) -> None:
    (tmp_path / "tools.rego").write_text(POLICY, encoding="utf-8")
    with real.server(tmp_path) as (url, pid):
        async with (
            opa(url, seconds=2) as engine,
            open_app(
                tmp_path / "data", policy=Policy("enforce", engine.decide, keep_seconds=0)
            ) as app,
        ):
            assert (
                await app.tool_gateway.call(app.seat(), tool_call(path="a"))
            ).status is ToolStatus.SUCCESS
            assert (
                await app.tool_gateway.call(app.seat(), tool_call(path="secret", number=2))
            ).status is ToolStatus.BLOCKED
            os.kill(pid, signal.SIGSTOP)
            os.waitid(os.P_PID, pid, os.WSTOPPED)  # it stops some time after the signal
            hung = await app.tool_gateway.call(app.seat(), tool_call(path="a", number=3))
            os.kill(pid, signal.SIGCONT)
            await asyncio.sleep(0.2)
            assert (
                await app.tool_gateway.call(app.seat(), tool_call(path="a", number=4))
            ).status is ToolStatus.SUCCESS
            os.kill(pid, signal.SIGKILL)
            dead = await app.tool_gateway.call(app.seat(), tool_call(path="a", number=5))
    assert (hung.status, dead.status) == (ToolStatus.BLOCKED, ToolStatus.BLOCKED)
    assert "within 2 seconds" in hung.error
    assert len(app.workspace.calls) == 2
