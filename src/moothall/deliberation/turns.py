"""What a turn asks for, done: its tool calls or its block of Python, through the seat's gate; and
whether the turns go in circles.

A seat that does is not repaired for ever: it starts anew, with fresh context and another seed. What
is decided of that is a pure function of what its turns came to, and recorded with the turn, so that
a run that is taken up again goes the same way.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moothall.authorization.code_block_calls import BlockBudget, BlockCalls
from moothall.authorization.limits import cut_output, shorten
from moothall.deliberation.code_blocks import BlockRunner, TurnContext
from moothall.deliberation.prompts.reply import Turn
from moothall.deliberation.prompts.report import block_text, result_text
from moothall.domain.ids import digest
from moothall.domain.proposal import Operation
from moothall.domain.tool import Action, ToolResult, ToolStatus
from moothall.tools.arguments import arguments_digest
from moothall.tools.catalogue import Danger, ToolSpec

_RECORDED_BYTES, _NAME_CHARS = 64_000, 100
_NEVER_RAN = {ToolStatus.INVALID, ToolStatus.BLOCKED, ToolStatus.PARKED, ToolStatus.RATE_LIMITED}


@dataclass(frozen=True, slots=True)
class TurnResult:
    """What a turn did: its tools' results; what is told of them, each within some characters; and
    the same in a line.
    """

    results: Sequence[ToolResult]
    operations: Sequence[Operation]
    texts: Sequence[Callable[[int], str]]
    brief: str
    catalogue: Mapping[str, ToolSpec]
    arguments: Sequence[Mapping[str, Any]]
    """Those of the calls that came to `results`."""

    @property
    def succeeded(self) -> bool:
        """Whether all that ran succeeded."""
        return all(result.status is ToolStatus.SUCCESS for result in self.results)

    @property
    def may_have_changed(self) -> bool:
        """A tool that failed half-way may have changed something too; one that never ran has
        not.
        """
        return any(
            (spec := self.catalogue.get(result.tool)) is not None
            and spec.danger is not Danger.READ
            and result.status not in _NEVER_RAN
            for result in self.results
        )


def digest_turn(said: Turn) -> str:
    """Return a digest of what a turn asks for, whatever it thinks of it."""
    return digest(
        said.python or "",
        *(
            part
            for action in said.actions
            for part in (action.tool, arguments_digest(action.arguments))
        ),
    )


async def do(said: Turn, coding: BlockRunner | None, at: TurnContext) -> TurnResult:
    """Run what the turn asks for. Raises what the gate and the model raise."""
    if said.python is None or coding is None:
        return await _act(
            said.actions,
            at.calls(at.allowance or BlockBudget(len(said.actions))),
            at.gate.catalogue,
        )
    coded = await coding.run(said.python, at)
    return TurnResult(
        coded.results,
        coded.operations,
        [functools.partial(block_text, coded.run)],
        f"python {coded.run.status}",
        at.gate.catalogue,
        coded.arguments,
    )


async def _act(
    actions: Sequence[Action], calls: BlockCalls, catalogue: Mapping[str, ToolSpec]
) -> TurnResult:
    """Run the actions in order and stop at the first that does not succeed."""
    results: list[ToolResult] = []
    for action in actions:
        results.append(await calls(action.tool, action.arguments))
        if results[-1].status is not ToolStatus.SUCCESS:
            break
    texts: list[Callable[[int], str]] = [
        functools.partial(result_text, number, result) for number, result in enumerate(results, 1)
    ]
    if len(results) < len(actions):
        texts.append(
            lambda _room: f"The {len(actions) - len(results)} actions after it were not run."
        )
    brief = ", ".join(f"{result.tool[:40]} {result.status}" for result in results)
    return TurnResult(
        results,
        calls.operations,
        texts,
        brief,
        catalogue,
        [action.arguments for action in actions[: len(results)]],
    )


def record_calls(did: TurnResult) -> list[dict[str, Any]]:
    """Return the turn's tool calls for the log.

    Their arguments and outputs have about `_RECORDED_BYTES` in all.
    """
    share = _RECORDED_BYTES // max(1, 2 * len(did.results))
    return [
        {
            "id": result.request_id,
            "tool": shorten(str(result.tool), _NAME_CHARS),
            "arguments": cut_output(arguments if isinstance(arguments, Mapping) else {}, share),
            "status": str(result.status),
            "output": cut_output(result.output, share),
            "error": result.error,
            "duration_ms": result.duration_ms,
        }
        for arguments, result in zip(did.arguments, did.results, strict=True)
    ]


FINISH = "finish"
"""What a step asks for that says that the work is done."""
UNUSABLE = "the same unusable reply"
TOO_EARLY = "it says that it is done, and it is not"
NOT_GREEN, DOUBTED = (
    "the function is not green",
    "the function is green, and what its docstring shows does not hold",
)
"""Of a seat that is asked for one function, after `llm.function_turns`."""
_LOOKS = 3
"""The same step on the same files so often, and nothing changed: then the seat goes in circles."""


@dataclass(frozen=True, slots=True)
class TurnStep:
    """What a turn came to. `asked` is a digest of what it asked for, `tree` of the change as it
    stood afterwards (empty: the base). `changed`: this turn changed something, and `red` are the
    cases that were red then.
    """

    asked: str
    tree: str = ""
    changed: bool = False
    red: frozenset[str] = frozenset()
    malformed: bool = False


def is_again(steps: Sequence[TurnStep]) -> bool:
    """Whether the last turn asked for what an earlier one had asked for already, on the same files,
    and changed nothing.
    """
    return bool(steps) and not steps[-1].changed and _same_looks(steps) > 1


def stuck(steps: Sequence[TurnStep], red_turns: int) -> str:
    """Return why the last turn shows a seat that goes in circles, or nothing. `red_turns`: changes
    with the same red cases.
    """
    if not steps:
        return ""
    last = steps[-1]
    if last.malformed:
        return UNUSABLE if last in steps[:-1] else ""
    if not last.changed:
        said = (
            TOO_EARLY
            if last.asked == FINISH
            else f"the same step {_LOOKS} times, and nothing changed"
        )
        return said if _same_looks(steps) >= _LOOKS else ""
    return _circle([step for step in steps if step.changed], red_turns)


def _circle(changes: Sequence[TurnStep], red_turns: int) -> str:
    last, earlier = changes[-1], changes[:-1]
    if any(step.asked == last.asked for step in earlier):
        return "the same change as in an earlier turn"
    if any(step.tree == last.tree for step in earlier):
        return "back where it was in an earlier turn"
    if (
        last.red
        and len(changes) >= red_turns
        and all(step.red == last.red for step in changes[-red_turns:])
    ):
        return f"the same tests red for {red_turns} turns"
    return ""


def _same_looks(steps: Sequence[TurnStep]) -> int:
    last = steps[-1]
    return sum(
        not step.changed and (step.asked, step.tree) == (last.asked, last.tree) for step in steps
    )
