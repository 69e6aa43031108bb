"""An attempt of an agent: where it works, how far it came, why it may not end yet, and what it came
to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from moothall.deliberation.local_checks import CheckedWorkspace, WorkspaceState
from moothall.deliberation.prompts.text import fence
from moothall.deliberation.turns import TurnResult, TurnStep
from moothall.domain.repository import Patch
from moothall.domain.text import one_line
from moothall.domain.tool import ToolResult
from moothall.errors import PatchRefused, Permanent
from moothall.sandbox_runtime.syntax import language_of

NOTHING_CHANGED = "the seat says that it is done and has changed nothing"
NO_SUMMARY = "(no summary)"
_NAMES_CHARS = 500
_WRITING = frozenset({"files.write", "files.append", "files.edit", "files.define", "files.store"})


@dataclass(slots=True)
class AttemptState:
    """An attempt under way: a round, as <phase>/<round>, until a time. `place`: where turns act,
    None about text. `begun`: the turn after which it goes on, of those of an earlier run. `before`:
    how many turns of others are numbered before its own. `changed`: the last turn that changed
    something, of those that are not looked at. `over`: it ends with this turn; `circle`: because it
    goes in circles. `ignored`: files that the seat wrote and that its answer leaves out, since
    .gitignore names them; `untold`: those not reported to the seat yet.
    """

    where: str
    until: datetime
    place: CheckedWorkspace | None = None
    state: WorkspaceState = field(default_factory=WorkspaceState)
    begun: int = 0
    before: int = 0
    steps: list[TurnStep] = field(default_factory=list)
    best: Draft | None = None
    malformed: int = 0
    refusals: int = 0
    changed: int = 0
    stale: frozenset[str] = frozenset()
    summary: str = ""
    circle: str = ""
    over: bool = False
    ignored: dict[str, str] = field(default_factory=dict)
    untold: dict[str, str] = field(default_factory=dict)

    def note_ignored(self, did: TurnResult, before: Patch | None, patch: Patch | None) -> None:
        """Note which files written in this turn the patch leaves out."""
        self.untold = written_and_ignored(did.results, before, patch)
        self.ignored |= self.untold

    def words(self, summary: str) -> str:
        """Return a draft's summary, with a note about written files that it leaves out."""
        patch = self.state.patch
        return with_left_out(
            summary, [path for path in self.ignored if patch and patch.rule_for(path)]
        )

    def at(self, turn: int) -> TurnReply:
        """Return where a turn of it is."""
        phase, _, round_ = self.where.partition("/")
        return TurnReply(f"{self.where}.{self.before + turn}", phase, round_, turn)

    @property
    def tree(self) -> str:
        """What tells the files as they stand from other ones, empty for the base."""
        return str(self.changed) if self.changed else self.state.tree

    def stay(self) -> bool:
        """Go on whatever has come so far; whether it was over."""
        was = self.over or bool(self.circle)
        self.over, self.circle, self.malformed, self.refusals = False, "", 0, 0
        self.steps.clear()
        return was

    def why_not(self, *, answered: bool) -> str:
        """Say why a seat may not finish yet, or nothing."""
        state, prepared = self.state, self.place.prepared if self.place else None
        if prepared is None:
            return ""
        if state.refused is not None:
            return (
                "Your changes cannot be taken over, so this is not done. "
                f"{fence('reason', state.refused.message)}"
            )
        if not state.changed:
            wanted = (
                "Nothing is changed yet, so the task is not done. Reply with the actions that "
                "make the change."
            )
            return "" if answered else wanted
        if not state.green:
            red = [name for name, run in state.runs.items() if run.verdict != "passed"] or list(
                prepared.base.profile.checks
            )
            return (
                f"This is not done: not green is {', '.join(red)}. Repair it with further actions."
            )
        return ""

    def brief(self, did: TurnResult) -> str:
        """Return what a turn did and what its checks said, in a line."""
        checks = ", ".join(f"{name} {run.verdict}" for name, run in self.state.runs.items())
        return f"{did.brief}; {checks}" if checks else did.brief


def with_left_out(summary: str, ignored: Sequence[str]) -> str:
    """Return a summary with a note about the files that the proposal leaves out."""
    if not ignored:
        return summary or NO_SUMMARY
    names = ", ".join(sorted(ignored))[:_NAMES_CHARS]
    return (
        f"{summary or NO_SUMMARY}\n\nLeft out of this answer, since .gitignore names them: {names}"
    )


def written_and_ignored(
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
        if result.tool in _WRITING:
            paths.add(path)
        elif result.tool == "files.delete":
            paths.discard(path)
    if any(result.tool.startswith("code.") for result in results):
        known = before.ignored if before else {}
        paths |= {path for path in patch.ignored if path not in known and language_of(path)}
    return {path: rule for path in sorted(paths) if (rule := patch.rule_for(path))}


@dataclass(frozen=True, slots=True)
class TurnReply:
    """A reply: what its turn is called in call ids, the turn's phase, round and number, and the
    text.
    """

    step: str
    phase: str
    round: str
    turn: int
    text: str = ""


class NoChanges(Permanent):
    """A seat ended without having changed anything: never a proposal."""

    code = "NO_CHANGES"


_REPLY_CHARS = 120


class MalformedReplies(Permanent):
    """The model kept replying with what is no turn."""

    code = "MALFORMED_REPLIES"


def malformed_replies(problem: str, reply: str, task_id: str) -> MalformedReplies:
    """Return an error that quotes the beginning of `reply` and names the command to see all."""
    shown = (
        f'; it replied "{one_line(reply, _REPLY_CHARS)}"'
        if reply.strip()
        else "; it replied nothing"
    )
    command = f". All replies: moothall log tail --task {task_id} --json" if task_id else ""
    return MalformedReplies(f"{problem}{shown}{command}")


class OutOfTurns(Permanent):
    """All turns are used and nothing was changed."""

    code = "OUT_OF_TURNS"


class StuckError(Permanent):
    """Every attempt went in circles, and nothing was changed."""

    code = "IN_CIRCLES"


@dataclass(frozen=True, slots=True)
class Draft:
    """What a seat's work came to. `patch` is None about text and for an answer. `green` and `worth`
    (more is better) as the seat's own workspace saw it. `message`: of the seat's own commits.
    """

    content: str
    patch: Patch | None = None
    green: bool = False
    worth: tuple[int, ...] = ()
    message: str = ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """How an attempt ended: the best that came of it, if anything; its last turn; where it went in
    circles, how; and why its last change could not be taken over, if it could not.
    """

    draft: Draft | None
    turn: int
    stuck: str
    refused: PatchRefused | None = None
