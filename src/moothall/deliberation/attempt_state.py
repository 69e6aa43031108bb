"""The state of an agent's attempt, its result and its errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from moothall.deliberation.local_checks import CheckedWorkspace, WorkspaceState
from moothall.deliberation.prompts.text import fence
from moothall.deliberation.turns import TurnResult, TurnStep
from moothall.domain.ids import TaskKey
from moothall.domain.repository import Patch
from moothall.domain.text import one_line
from moothall.domain.tool import ToolResult
from moothall.errors import PatchRefused, Permanent
from moothall.sandbox_runtime.syntax import language_of
from moothall.tools.catalogue import FILE_CHANGING_TOOLS

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

    def record_ignored(self, result: TurnResult, before: Patch | None, patch: Patch | None) -> None:
        """Record the files that were written in this turn and that the patch leaves out."""
        self.unreported = find_ignored_writes(result.results, before, patch)
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
    results: Sequence[ToolResult], before: Patch | None, patch: Patch | None
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
        known = before.ignored if before else {}
        paths |= {path for path in patch.ignored if path not in known and language_of(path)}
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
    shown = (
        f'; it replied "{one_line(reply, _MAX_REPLY_CHARS)}"'
        if reply.strip()
        else "; it replied nothing"
    )
    command = f". All replies: moothall log tail --task {task_key} --json" if task_key else ""
    return MalformedReplies(f"{problem}{shown}{command}")


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
