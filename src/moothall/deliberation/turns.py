"""Running a turn: its tool calls or its block of Python, through the seat's gateway; and detecting
stuck seats.

A stuck seat is not repaired forever: it starts again with a fresh context and another seed. The
decision is a pure function of the results of its turns. It is recorded with the turn, so that a
resumed run takes the same course.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moothall.authorization.checks import BlockBudget, BlockCalls
from moothall.authorization.limits import cut_output, shorten
from moothall.deliberation.code_blocks import BlockRunner, TurnContext
from moothall.deliberation.prompts.reply import Turn
from moothall.deliberation.prompts.tool_results import block_text, numbered_result_text
from moothall.domain.ids import digest
from moothall.domain.proposal import Operation
from moothall.domain.tool import Action, ToolResult, ToolStatus
from moothall.tools.catalogue import Danger, ToolSpec
from moothall.tools.schemas import arguments_digest

_MAX_RECORDED_BYTES, _MAX_NAME_CHARS = 64_000, 100
_NEVER_RAN = {ToolStatus.INVALID, ToolStatus.BLOCKED, ToolStatus.PARKED, ToolStatus.RATE_LIMITED}


_MAX_REASON_CHARS = 500


@dataclass(frozen=True, slots=True)
class TurnResult:
    """The results of a turn's tools.

    texts: functions that describe each result to the model within a number of characters. brief:
    all results in one line.
    """

    results: Sequence[ToolResult]
    operations: Sequence[Operation]
    texts: Sequence[Callable[[int], str]]
    brief: str
    catalogue: Mapping[str, ToolSpec]
    arguments: Sequence[Mapping[str, Any]]
    """The arguments of the calls, in the order of `results`."""

    @property
    def succeeded(self) -> bool:
        """True if all tools that ran succeeded."""
        return all(result.status is ToolStatus.SUCCESS for result in self.results)

    @property
    def may_have_changed(self) -> bool:
        """True if the workspace may have changed. A tool that failed half-way may have changed
        something; one that never ran has not.
        """
        return any(
            (spec := self.catalogue.get(result.tool)) is not None
            and spec.danger is not Danger.READ
            and result.status not in _NEVER_RAN
            for result in self.results
        )


def digest_turn(turn: Turn) -> str:
    """Return a digest of the actions of a turn, without its thought."""
    return digest(
        turn.python or "",
        *(
            part
            for action in turn.actions
            for part in (action.tool, arguments_digest(action.arguments))
        ),
    )


async def run_turn(
    turn: Turn, block_runner: BlockRunner | None, context: TurnContext
) -> TurnResult:
    """Run the actions or the block of a turn. Raises errors of the gateway and the model."""
    if turn.python is None or block_runner is None:
        return await _run_actions(
            turn.actions,
            context.create_calls(context.budget or BlockBudget(len(turn.actions))),
            context.gateway.catalogue,
        )
    block = await block_runner.run_block(turn.python, context)
    return TurnResult(
        block.results,
        block.operations,
        [functools.partial(block_text, block.run)],
        f"python {block.run.status}",
        context.gateway.catalogue,
        block.arguments,
    )


async def _run_actions(
    actions: Sequence[Action], calls: BlockCalls, catalogue: Mapping[str, ToolSpec]
) -> TurnResult:
    """Run the actions in order; stop at the first that fails."""
    results: list[ToolResult] = []
    for action in actions:
        results.append(await calls(action.tool, action.arguments))
        if results[-1].status is not ToolStatus.SUCCESS:
            break
    texts: list[Callable[[int], str]] = [
        functools.partial(numbered_result_text, number, result)
        for number, result in enumerate(results, 1)
    ]
    if len(results) < len(actions):
        texts.append(
            lambda _max_chars: f"The {len(actions) - len(results)} actions after it were not run."
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


def record_calls(turn_result: TurnResult) -> list[dict[str, Any]]:
    """Return the turn's tool calls for the log.

    Their arguments and outputs have about `_MAX_RECORDED_BYTES` in total.
    """
    share = _MAX_RECORDED_BYTES // max(1, 2 * len(turn_result.results))
    return [
        {
            "id": result.request_id,
            "tool": shorten(str(result.tool), _MAX_NAME_CHARS),
            "arguments": cut_output(arguments if isinstance(arguments, Mapping) else {}, share),
            "status": str(result.status),
            "output": cut_output(result.output, share),
            "error": result.error,
            "duration_ms": result.duration_ms,
        }
        for arguments, result in zip(turn_result.arguments, turn_result.results, strict=True)
    ]


def record_refusals(turn_result: TurnResult, clean: Callable[[str], str]) -> list[dict[str, str]]:
    """Return the turn's calls that the tool gateway refused, with their reasons, for the log.
    `clean` removes secrets.
    """
    return [
        {
            "tool": shorten(str(result.tool), _MAX_NAME_CHARS),
            "status": str(result.status),
            "reason": shorten(clean(result.error), _MAX_REASON_CHARS),
        }
        for result in turn_result.results
        if result.status in _NEVER_RAN
    ]


FINISH = "finish"
"""The action of a step that says the work is done."""
UNUSABLE = "the same unusable reply"
TOO_EARLY = "it says that it is done, and it is not"
FUNCTION_FAILS, FUNCTION_BREAKS_EXAMPLES = (
    "the function does not pass",
    "the function passes, but an example of its docstring does not",
)
"""The reasons for a seat that writes one function, after its turns."""
_MAX_REPEATS = 3
"""A seat is stuck after this many equal steps on the same files without a change."""
_MAX_TURNS_WITH_SAME_FAILURES = 3
"""A seat is stuck after this many changes with the same failed tests."""


@dataclass(frozen=True, slots=True)
class TurnStep:
    """The outcome of a turn, for detecting stuck seats.

    action_digest: a digest of what the turn did. change_digest: a digest of the total change after
    it; empty for the base. changed: the turn changed something. failing: the cases that failed
    then.
    """

    action_digest: str
    change_digest: str = ""
    changed: bool = False
    failing: frozenset[str] = frozenset()
    malformed: bool = False


def is_repeat(steps: Sequence[TurnStep]) -> bool:
    """Return True if the last turn repeated an earlier one on the same files, without a change."""
    return bool(steps) and not steps[-1].changed and _count_repeats(steps) > 1


def find_stuck_reason(
    steps: Sequence[TurnStep], max_turns_with_same_failures: int = _MAX_TURNS_WITH_SAME_FAILURES
) -> str:
    """Return why the last turn shows a stuck seat, or an empty string.

    `max_turns_with_same_failures` counts the turns with changes.
    """
    if not steps:
        return ""
    last = steps[-1]
    if last.malformed:
        return UNUSABLE if last in steps[:-1] else ""
    if not last.changed:
        reason = (
            TOO_EARLY
            if last.action_digest == FINISH
            else f"the same step {_MAX_REPEATS} times, and nothing changed"
        )
        return reason if _count_repeats(steps) >= _MAX_REPEATS else ""
    return _find_cycle([step for step in steps if step.changed], max_turns_with_same_failures)


def _find_cycle(changes: Sequence[TurnStep], max_turns_with_same_failures: int) -> str:
    last, earlier = changes[-1], changes[:-1]
    if any(step.action_digest == last.action_digest for step in earlier):
        return "the same change as in an earlier turn"
    if any(step.change_digest == last.change_digest for step in earlier):
        return "back where it was in an earlier turn"
    if (
        last.failing
        and len(changes) >= max_turns_with_same_failures
        and all(step.failing == last.failing for step in changes[-max_turns_with_same_failures:])
    ):
        return f"the same tests failed for {max_turns_with_same_failures} turns"
    return ""


def _count_repeats(steps: Sequence[TurnStep]) -> int:
    last = steps[-1]
    return sum(
        not step.changed
        and (step.action_digest, step.change_digest) == (last.action_digest, last.change_digest)
        for step in steps
    )
