"""An agent's attempt: its turns, which run tool calls or a block of Python through the seat's
gateway; the detection of a stuck seat; and the attempt's state, result and errors.

A stuck seat is not repaired forever: it starts again with a fresh context and another seed. The
decision is a pure function of the results of its turns. It is recorded with the turn, so that a
resumed run takes the same course.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from moothall.authorization.checks import BlockBudget, BlockCalls
from moothall.authorization.limits import cut_output, shorten
from moothall.deliberation.code_blocks import BlockRunner, TurnContext
from moothall.deliberation.local_checks import CheckedWorkspace, WorkspaceState
from moothall.deliberation.prompts.reply import Turn
from moothall.deliberation.prompts.tool_results import block_text, numbered_result_text
from moothall.domain.ids import TaskKey, digest
from moothall.domain.proposal import Operation
from moothall.domain.repository import Patch
from moothall.domain.text import fence, one_line
from moothall.domain.tool import Action, ToolResult, ToolStatus
from moothall.errors import PatchRefused, Permanent
from moothall.sandbox_runtime.syntax import language_of
from moothall.tools.catalogue import FILE_CHANGING_TOOLS, Danger, ToolSpec
from moothall.tools.schemas import arguments_digest

# Turns.


_MAX_RECORDED_BYTES, _MAX_NAME_CHARS = 64_000, 100
_UNRUN_STATUSES = {
    ToolStatus.INVALID,
    ToolStatus.BLOCKED,
    ToolStatus.PARKED,
    ToolStatus.RATE_LIMITED,
}
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
            and result.status not in _UNRUN_STATUSES
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
        if result.status in _UNRUN_STATUSES
    ]


# Stuck seats.


FINISH = "finish"
"""The action of a step that says the work is done."""
UNUSABLE = "the same unusable reply"
TOO_EARLY = "it says that it is done, and it is not"
FUNCTION_FAILS, FUNCTION_BREAKS_EXAMPLES = (
    "the function did not pass",
    "the function passed, but the examples in its docstring failed",
)
"""The reasons for a seat that writes one function, after its turns."""
_MAX_REPEATS = 3
"""A seat is stuck after this many equal steps on the same files without a change."""
_MAX_TURNS_WITH_SAME_FAILURES = 3
"""A seat is stuck after this many changes with the same failed tests."""


@dataclass(frozen=True, slots=True)
class TurnStep:
    """The outcome of a turn, for detecting stuck seats.

    action_digest: a digest of the turn's actions. change_digest: a digest of the total change after
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
    last, earlier_changes = changes[-1], changes[:-1]
    if any(step.action_digest == last.action_digest for step in earlier_changes):
        return "the same change as in an earlier turn"
    if any(step.change_digest == last.change_digest for step in earlier_changes):
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


# The state of an attempt, its result and its errors.


NOTHING_CHANGED = "the seat finished and changed nothing"
NO_SUMMARY = "(no summary)"
_MAX_NAMES_CHARS = 500
# The tools that leave a file behind.
_WRITING_TOOLS = FILE_CHANGING_TOOLS - {"files.delete", "files.mkdir"}


@dataclass(slots=True)
class AttemptState:
    """The state of an attempt in a round (<phase>/<round>).

    workspace: the workspace of its turns; None about text. resumed_turn: the last recorded turn of
    a fork. turn_offset: how many turns of other agents are numbered before its own. last_change:
    the last turn with a change, if changes are not checked. withheld_tools: tools that the next
    turn does not offer. ended: no turn follows. stuck_reason: why the agent is stuck. ignored:
    written files that .gitignore excludes from the proposal. unreported: the ignored files that the
    seat has not been told about.
    """

    round_name: str
    deadline: datetime
    workspace: CheckedWorkspace | None = None
    state: WorkspaceState = field(default_factory=WorkspaceState)
    resumed_turn: int = 0
    turn_offset: int = 0
    steps: list[TurnStep] = field(default_factory=list)
    best: Draft | None = None
    malformed_count: int = 0
    refusals: int = 0
    last_change: int = 0
    withheld_tools: frozenset[str] = frozenset()
    summary: str = ""
    stuck_reason: str = ""
    ended: bool = False
    ignored: dict[str, str] = field(default_factory=dict)
    unreported: dict[str, str] = field(default_factory=dict)

    def record_ignored(
        self, result: TurnResult, earlier_patch: Patch | None, patch: Patch | None
    ) -> None:
        """Record the files that were written in this turn and that the patch leaves out."""
        self.unreported = find_ignored_writes(result.results, earlier_patch, patch)
        self.ignored |= self.unreported

    def complete_summary(self, summary: str) -> str:
        """Return a draft's summary, with a note about written files that it leaves out."""
        patch = self.state.patch
        return append_left_out(
            summary, [path for path in self.ignored if patch and patch.rule_for(path)]
        )

    def turn_reply(self, turn: int) -> TurnReply:
        """Return an empty reply for a turn."""
        phase, _, round_ = self.round_name.partition("/")
        return TurnReply(f"{self.round_name}.{self.turn_offset + turn}", phase, round_, turn)

    @property
    def change_digest(self) -> str:
        """An identifier of the workspace's content; empty for the base."""
        return str(self.last_change) if self.last_change else self.state.change_digest

    def reopen(self) -> bool:
        """Let the attempt continue, and clear its results. Return True if it had ended."""
        was_ended = self.ended or bool(self.stuck_reason)
        self.ended, self.stuck_reason, self.malformed_count, self.refusals = False, "", 0, 0
        self.steps.clear()
        return was_ended

    def finish_refusal(self, *, answered: bool) -> str:
        """Return the reason why a seat may not finish yet, or an empty string."""
        state, prepared = self.state, self.workspace.prepared if self.workspace else None
        if prepared is None:
            return ""
        if state.refusal is not None:
            return (
                "Your changes cannot be taken over, so this is not done. "
                f"{fence('reason', state.refusal.message)}"
            )
        if not state.changed:
            request = (
                "Nothing is changed yet, so the task is not done. Reply with the actions that make "
                "the change."
            )
            return "" if answered else request
        if not state.passed:
            failed = [name for name, run in state.runs.items() if run.verdict != "passed"] or list(
                prepared.base.profile.checks
            )
            names = ", ".join(failed)
            return f"This is not done: {names} did not pass. Repair it with further actions."
        return ""

    def describe_turn(self, result: TurnResult) -> str:
        """Return the results of a turn and its checks in one line."""
        checks = ", ".join(f"{name} {run.verdict}" for name, run in self.state.runs.items())
        return f"{result.brief}; {checks}" if checks else result.brief


def append_left_out(summary: str, ignored: Sequence[str]) -> str:
    """Return a summary with a note about the files that the proposal leaves out."""
    if not ignored:
        return summary or NO_SUMMARY
    names = ", ".join(sorted(ignored))[:_MAX_NAMES_CHARS]
    return (
        f"{summary or NO_SUMMARY}\n\nLeft out of this answer, since .gitignore names them: {names}"
    )


def find_ignored_writes(
    results: Sequence[ToolResult], earlier_patch: Patch | None, patch: Patch | None
) -> dict[str, str]:
    """Return the ignored files that these tools wrote: path → rule.

    A file left by a command counts only if it is new and looks like source code.
    """
    if patch is None or not patch.ignored:
        return {}
    paths: set[str] = set()
    for result in results:
        path = str(result.output.get("path"))
        if result.tool in _WRITING_TOOLS:
            paths.add(path)
        elif result.tool == "files.delete":
            paths.discard(path)
    if any(result.tool.startswith("code.") for result in results):
        earlier_ignored = earlier_patch.ignored if earlier_patch else {}
        paths |= {
            path for path in patch.ignored if path not in earlier_ignored and language_of(path)
        }
    return {path: rule for path in sorted(paths) if (rule := patch.rule_for(path))}


@dataclass(frozen=True, slots=True)
class TurnReply:
    """The reply of a turn. `step` is the turn's name in call ids."""

    step: str
    phase: str
    round: str
    turn: int
    text: str = ""


class NoChanges(Permanent):
    """A seat ended without changes, so it proposes nothing."""

    code = "NO_CHANGES"


_MAX_REPLY_CHARS = 120
MALFORMED_REPLIES = 3
"""The number of corrective messages before a seat fails."""


class MalformedReplies(Permanent):
    """The model kept sending malformed replies."""

    code = "MALFORMED_REPLIES"


def malformed_replies_error(problem: str, reply: str, task_key: TaskKey | None) -> MalformedReplies:
    """Return an error that quotes the start of `reply` and the command to show all replies."""
    quotation = (
        f'; it replied "{one_line(reply, _MAX_REPLY_CHARS)}"'
        if reply.strip()
        else "; it replied nothing"
    )
    command = f". All replies: moothall log tail --task {task_key} --json" if task_key else ""
    return MalformedReplies(f"{problem}{quotation}{command}")


class OutOfTurns(Permanent):
    """All turns were used and nothing was changed."""

    code = "OUT_OF_TURNS"


class StuckError(Permanent):
    """Every attempt got stuck, and nothing was changed."""

    code = "IN_CIRCLES"


@dataclass(frozen=True, slots=True)
class Draft:
    """The result of a seat's work. `patch` is None for an answer and for a task about text.

    passed, score (higher is better): the results of checks in the seat's own workspace. message:
    the message of the seat's own commits.
    """

    content: str
    patch: Patch | None = None
    passed: bool = False
    score: tuple[int, ...] = ()
    message: str = ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """The result of an attempt. `draft` is the best one, if any; `turn` is the last turn; `refusal`
    is the reason why the last change was refused.
    """

    draft: Draft | None
    turn: int
    stuck_reason: str
    refusal: PatchRefused | None = None
