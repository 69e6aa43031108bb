"""The language corpus again, as blocks of Python: in Monty, or in CPython for features that Monty
lacks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping

import pytest
import pytest_asyncio

from canary_workspace import SECRET, CanaryWorkspace, guarded_workspace  # noqa: F401 - a fixture
from corpus.attempt import MARK, OUTSIDE, PORT, Attempt, fill_in
from corpus.language import ATTEMPTS
from moothall.domain.tool import BlockLimits, CodeBlock, ToolResult, ToolStatus
from moothall.workspace.runner import LocalRunner
from support.tool_gateway import in_seconds

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

TOOLS = {"files.read": ("path", "start", "lines")}
TIERS = Counter[str]()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def runner(guarded_workspace: CanaryWorkspace) -> AsyncIterator[LocalRunner]:
    app = guarded_workspace.app
    limits = BlockLimits(seconds=2.0, memory_bytes=100_000_000)
    yield LocalRunner(app.settings, app.workspaces.pool, limits, workers=1)


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda attempt: attempt.name)
async def test_an_escape_attempt_is_contained(
    guarded_workspace: CanaryWorkspace, runner: LocalRunner, attempt: Attempt
) -> None:
    mark = f"escaped-block-{attempt.name}"
    placeholders = {
        OUTSIDE: str(guarded_workspace.canaries.file),
        PORT: str(guarded_workspace.canaries.port),
        MARK: mark,
    }

    async def ask(name: str, arguments: Mapping[str, object]) -> ToolResult:
        return await guarded_workspace.call(name, arguments)

    async def run(code: str) -> tuple[ToolStatus, str, str]:
        block_run = await runner.run(
            CodeBlock(code, TOOLS, in_seconds(8), "local"),
            await guarded_workspace.open_workspace(),
            ask,
        )
        return (
            block_run.status,
            f"{block_run.printed}\n{block_run.value}\n{block_run.error}",
            block_run.tier,
        )

    status, output, tier = await run(fill_in(attempt.arguments["code"], placeholders))
    TIERS[tier] += 1
    assert isinstance(status, ToolStatus)
    assert status is not ToolStatus.OUTCOME_UNKNOWN, output
    assert SECRET not in output
    guarded_workspace.unharmed(mark)
    status, output, tier = await run("ws.read('README.md').count('Sample')")
    assert (status, output.split("\n")[1], tier) == (ToolStatus.SUCCESS, "1", "monty"), output


async def test_both_tiers_were_tested() -> None:
    assert set(TIERS) == {"monty", "python"}
