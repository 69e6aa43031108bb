"""Translations between Moothall and the Agent Client Protocol: prompts, events, and outcomes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import unquote, urlsplit

from acp.helpers import (
    ContentBlock,
    SessionUpdate,
    plan_entry,
    start_tool_call,
    update_agent_thought_text,
    update_plan,
)
from acp.schema import (
    EmbeddedResourceContentBlock,
    PlanEntryStatus,
    ResourceContentBlock,
    TextContentBlock,
    TextResourceContents,
    ToolKind,
)

from moothall.cli.runtime import plain
from moothall.client import EventType, Outcome, Update
from moothall.domain.codec import mapping_of
from moothall.domain.evidence import Verdict
from moothall.errors import InvalidRequest
from moothall.tools.catalogue import CATALOGUE, Danger

_MARKUP = re.compile(r"[\\`*_\[\]<>|~]")
_MAX_REASONS, _MAX_CHARS = 12, 60_000

_KINDS: Mapping[str, ToolKind] = {
    "code": "execute",
    "files": "edit",
    "files.list": "search",
    "files.search": "search",
    "git": "execute",
    "tests": "execute",
    "web": "fetch",
}
"""The protocol's kind of a tool, by its full name or category. Other tools that only read are
`read`.
"""

_NARRATED = {
    EventType.AGENT_PROGRESS,
    EventType.SEAT_PROPOSED,
    EventType.SEAT_REVISED,
    EventType.SEAT_REVIEWED,
    EventType.SEAT_FAILED,
    EventType.EVIDENCE_REPORTED,
}
"""The events whose description (`Update.step`) is shown."""


def read_prompt(blocks: Sequence[ContentBlock]) -> str:
    """Return the text of a prompt. Links to files become their paths, and embedded files their
    text.

    Raises `InvalidRequest` for images, audio and other binary data.
    """
    parts = []
    for block in blocks:
        match block:
            case TextContentBlock():
                parts.append(block.text)
            case ResourceContentBlock():
                parts.append(_read_uri(block.uri))
            case EmbeddedResourceContentBlock(resource=TextResourceContents() as resource):
                parts.append(f"\n{_read_uri(resource.uri)}:\n{resource.text}\n")
            case _:
                raise InvalidRequest(
                    f"a prompt cannot have {block.type} content: send text and text files"
                )
    return "".join(parts).strip()


def _read_uri(uri: str) -> str:
    parts = urlsplit(uri)
    return unquote(parts.path) if parts.scheme == "file" else uri


class TaskReport:
    """The updates of one task: a plan with an entry for each seat, the tool calls and checks, and
    the seats' thoughts.
    """

    def __init__(self) -> None:
        self._seats: dict[str, PlanEntryStatus] = {}
        self._set_up: PlanEntryStatus = "in_progress"
        self._ranking: PlanEntryStatus = "pending"
        self.base = ""
        """The commit that the task works on, once it is known."""

    def read_update(self, update: Update) -> list[SessionUpdate]:
        """Return the updates that an event causes in the editor."""
        updates: list[SessionUpdate] = []
        if self._advance(update):
            updates.append(self._plan())
        if update.type in _NARRATED:
            updates.append(update_agent_thought_text(f"{plain(update.step)}\n"))
        if update.type is EventType.SEAT_TURN:
            updates += _turn_updates(update)
        if update.type is EventType.CHECK_FINISHED:
            passed = mapping_of(update.data.get("evidence")).get("verdict") == Verdict.PASSED
            updates.append(
                start_tool_call(
                    f"check-{update.seq}",
                    plain(update.step),
                    kind="execute",
                    status="completed" if passed else "failed",
                )
            )
        return updates

    def _advance(self, update: Update) -> bool:
        """Apply an event to the plan. Return whether the plan changed."""
        match update.type:
            case EventType.DELIBERATION_REQUESTED:
                seats = update.data.get("seats")
                self._seats = {
                    str(seat): "pending" for seat in (seats if isinstance(seats, list) else ())
                }
                self.base = str(update.data.get("base_sha") or "")
            case EventType.DELIBERATION_STARTED:
                self._set_up = "completed"
            case EventType.SEAT_STARTED:
                self._seats[update.agent] = "in_progress"
            case EventType.SEAT_PROPOSED:
                self._ranking = "in_progress"
            case EventType.SEAT_FINISHED | EventType.SEAT_FAILED:
                self._seats[update.agent] = "completed"
            case EventType.DELIBERATION_DECIDED:
                self._set_up = self._ranking = "completed"
                self._seats = dict.fromkeys(self._seats, "completed")
            case _:
                return False
        return True

    def _plan(self) -> SessionUpdate:
        return update_plan(
            [
                plan_entry("Set up the repository and run its checks", status=self._set_up),
                *(
                    plan_entry(f"{plain(seat, 80)} works on the task", status=status)
                    for seat, status in self._seats.items()
                ),
                plan_entry(
                    "Check every answer on a clean checkout, and rank them", status=self._ranking
                ),
            ]
        )


def _turn_updates(update: Update) -> list[SessionUpdate]:
    """Return the thought and the tool calls of a seat's turn."""
    updates: list[SessionUpdate] = []
    thought = update.data.get("thought")
    if isinstance(thought, str) and thought.strip():
        updates.append(update_agent_thought_text(f"{update.agent}: {plain(thought, 2000)}\n"))
    operations = update.data.get("operations")
    for number, operation in enumerate(operations if isinstance(operations, list) else ()):
        fields = mapping_of(operation)
        tool = str(fields.get("tool", ""))
        updates.append(
            start_tool_call(
                f"tool-{update.seq}-{number}",
                plain(f"{update.agent}: {tool}", 200),
                kind=_kind_of(tool),
                status="completed" if fields.get("status") == "success" else "failed",
            )
        )
    return updates


def _kind_of(tool: str) -> ToolKind:
    """Return the protocol's kind of a tool."""
    if tool in _KINDS:
        return _KINDS[tool]
    spec = CATALOGUE.get(tool)
    if spec is not None and spec.danger is Danger.READ:
        return "read"
    return _KINDS.get(tool.partition(".")[0], "other")


def _literal(foreign_text: str) -> str:
    """Return foreign text as one line of Markdown that renders literally."""
    return _MARKUP.sub(r"\\\g<0>", " ".join(plain(foreign_text).split()))


def describe_outcome(outcome: Outcome) -> str:
    """Return the outcome as Markdown: the winner, its level of evidence and the reasons. Text of
    models is escaped, except for a textual answer.
    """
    if not outcome.winner_id or not outcome.results:
        failed = [
            f"- {seat.seat} {seat.status.value}: {_literal(seat.error_message)}"
            for seat in outcome.seats
            if seat.error_code
        ]
        failure = _literal(outcome.error_message) or outcome.status.value.lower()
        return "\n".join([f"**No winner**: {failure}", *failed])
    winner, *other_results = outcome.results
    if not winner.diff and outcome.final_state != "already_done":
        return plain(winner.content, _MAX_CHARS)
    level = "" if outcome.final_state == "already_done" else f" ({outcome.level.meaning})"
    title = (
        "**The task is already done.** Nothing was changed"
        if outcome.final_state == "already_done"
        else f"**{outcome.winner_id} wins, {outcome.level.words}**{level}"
    )
    undecided = ". No test or review puts it first" if outcome.undecided else ""
    branch = f". Branch `{outcome.branch}`" if outcome.branch else ""
    lines = [f"{title}{undecided}{branch}.", ""]
    lines += [f"- {_literal(reason)}" for reason in winner.reasons[:_MAX_REASONS]]
    if other_results:
        ranks = (
            f"{result.rank}. {result.answer}, {result.level.words}" for result in other_results
        )
        lines += ["", f"Other answers: {'; '.join(ranks)}. `moothall show {outcome.task_id}`"]
    if outcome.error_message:
        lines += ["", _literal(outcome.error_message)]
    return "\n".join(lines)
