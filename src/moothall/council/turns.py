"""What a turn asks for, done: its tool calls or its block of Python, through the seat's gate."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from moothall.council.coding import Coding, TurnContext
from moothall.council.reply import Action, Turn
from moothall.council.report import block_text, result_text
from moothall.domain.ids import digest
from moothall.domain.proposal import Operation
from moothall.domain.tool import ToolResult, ToolStatus
from moothall.guard.blocks import Allowance, BlockCalls
from moothall.tools.arguments import arguments_digest
from moothall.tools.catalogue import Danger, ToolSpec

_NEVER_RAN = {ToolStatus.INVALID, ToolStatus.BLOCKED, ToolStatus.PARKED, ToolStatus.RATE_LIMITED}


@dataclass(frozen=True, slots=True)
class Did:
    """What a turn did: its tools' results; what is told of them, each within some characters; and the same in a line."""

    results: Sequence[ToolResult]
    operations: Sequence[Operation]
    texts: Sequence[Callable[[int], str]]
    brief: str
    catalogue: Mapping[str, ToolSpec]

    @property
    def succeeded(self) -> bool:
        """Whether all that ran succeeded."""
        return all(result.status is ToolStatus.SUCCESS for result in self.results)

    @property
    def may_have_changed(self) -> bool:
        """A tool that failed half-way may have changed something too; one that never ran has not."""
        return any(
            (spec := self.catalogue.get(result.tool)) is not None
            and spec.danger is not Danger.READ
            and result.status not in _NEVER_RAN
            for result in self.results
        )


def asked_of(said: Turn) -> str:
    """Return a digest of what a turn asks for, whatever it thinks of it."""
    return digest(said.python or "", *(part for action in said.actions for part in (action.tool, arguments_digest(action.args))))


async def do(said: Turn, coding: Coding | None, at: TurnContext) -> Did:
    """Run what the turn asks for. Raises what the gate and the model raise."""
    if said.python is None or coding is None:
        return await _act(said.actions, at.calls(at.allowance or Allowance(len(said.actions))), at.gate.catalogue)
    coded = await coding.run(said.python, at)
    return Did(
        coded.results,
        coded.operations,
        [functools.partial(block_text, coded.run)],
        f"python {coded.run.status}",
        at.gate.catalogue,
    )


async def _act(actions: Sequence[Action], calls: BlockCalls, catalogue: Mapping[str, ToolSpec]) -> Did:
    """Run the actions in order and stop at the first that does not succeed."""
    results: list[ToolResult] = []
    for action in actions:
        results.append(await calls(action.tool, action.args))
        if results[-1].status is not ToolStatus.SUCCESS:
            break
    texts: list[Callable[[int], str]] = [
        functools.partial(result_text, number, result) for number, result in enumerate(results, 1)
    ]
    if len(results) < len(actions):
        texts.append(lambda _room: f"The {len(actions) - len(results)} actions after it were not run.")
    brief = ", ".join(f"{result.tool[:40]} {result.status}" for result in results)
    return Did(results, calls.operations, texts, brief, catalogue)
