"""The matrix's deliberation: a small repository, scripted replies of the seats, and the comparison
of outcomes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from moothall.domain.event import EventType
from moothall.domain.outcome import Outcome
from moothall.sandbox.bubblewrap import interpreter
from moothall.testing.model import Fault, phase_of, seat_of, step_of
from support.repos import SAMPLE, Repo, make_repo

PACKAGES = Path(pytest.__file__).resolve().parent.parent
TASK = "Add hello_world() function to src/utils.py"
HANGING = f"HANG: {TASK}"
_PYTEST = ("env", f"PYTHONPATH={PACKAGES}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1", str(interpreter()))
_CHECK = (*_PYTEST, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider")

NOT_SCRIPTED: Mapping[EventType, str] = {
    EventType.STORY_CREATED: "a council does not write stories: planning does",
    EventType.STORY_CHANGED: "see story.created",
    EventType.STORY_TRANSITIONED: "see story.created",
    EventType.STORY_CHECKED: "see story.created",
    EventType.STORY_DELIVERED: "see story.created",
    EventType.STORY_MERGE_REQUESTED: "see story.created",
    EventType.STORY_COMMENTED: "see story.created",
    EventType.STORY_NOTED: "see story.created",
    EventType.PLAN_DERIVED: "see story.created",
    EventType.PLAN_FINISHED: "see plan.derived",
    EventType.COUNCIL_CREATED: (
        "an operator creates it between deliberations; a deliberation has its seats in its request"
    ),
    EventType.COUNCIL_DELETED: "see council.created",
    EventType.AGENT_REGISTERED: "see council.created",
    EventType.AGENT_UNREGISTERED: "see council.created",
    EventType.DECISION_MADE: "a person decides on a story after the deliberation",
    EventType.DELIBERATION_STEERED: (
        "a person steers it while it runs: tests/unit/workers/test_steering.py"
    ),
    EventType.DELIBERATION_PAUSED: "a person pauses it: tests/unit/workers/test_pausing.py",
    EventType.DELIBERATION_RESUMED: "see deliberation.paused",
    EventType.EVIDENCE_REPORTED: (
        "agents that need native tools, which the scripted model lacks: "
        "tests/unit/deliberation/test_evidence_agents.py"
    ),
    EventType.TOOL_REQUESTED: "work of external callers; seats call the gateway directly",
    EventType.TOOL_STARTED: "only for effects outside a workspace, which no seat is granted",
    EventType.WORKFLOW_STARTED: (
        "workflows of external callers: tests/tools/test_workflow_kills.py kills under them"
    ),
    EventType.WORKFLOW_STEP: "see workflow.started",
    EventType.WORKFLOW_FINISHED: "see workflow.started",
    EventType.GUARD_ALERTED: (
        "of many refusals or attempts to get out, which no scripted seat makes"
    ),
    EventType.AUDIT_RECORDED: (
        "of tool calls, on a stream of its own: no deliberation's log has any"
    ),
    EventType.DELIBERATION_DAMAGED: (
        "of a log that lost something: tests/e2e/test_log_damage.py inverts its bytes"
    ),
}
"""Event types that no scripted run here produces, with the reason."""


def repository(path: Path) -> Repo:
    """Create the repository; its test fails until somebody adds hello_world()."""
    command = ", ".join(json.dumps(word) for word in (*_CHECK, "tests"))
    return make_repo(
        path, {**SAMPLE, ".moothall.toml": f"setup = []\n[checks]\ntests = [{command}]\n"}
    )


def _turn(*actions: tuple[str, dict[str, Any]]) -> str:
    return json.dumps(
        {"thought": "work", "actions": [{"tool": tool, "args": args} for tool, args in actions]}
    )


def _function(docstring: str, text: str) -> str:
    return f'\n\ndef hello_world():\n    """{docstring}"""\n    return "{text}"\n'


def _tests(name: str) -> tuple[str, dict[str, Any]]:
    # == on plain strings: the output of a failing test then contains no memory address, so that the
    # prompts of all runs are the same.
    content = (
        f"from utils import hello_world\n\n\ndef test_{name}():\n    assert hello_world()[:5] == "
        "'Hello'\n"
    )
    return "files.write", {"path": f"tests/test_{name}.py", "content": content}


def _append(content: str) -> tuple[str, dict[str, Any]]:
    return "files.append", {"path": "src/utils.py", "content": content}


def _mend(wrong_text: str) -> tuple[str, dict[str, Any]]:
    return "files.edit", {"path": "src/utils.py", "old": wrong_text, "new": "Hello, World!"}


_OUTPUT_TEXT: Mapping[tuple[str, str, str], str] = {
    ("001", "propose", "0.1"): _turn(("files.read", {"path": "src/utils.py"})),
    ("001", "propose", "0.2"): _turn(
        _append(_function("Return the greeting.", "Goodbye")), _tests("first")
    ),
    ("001", "revise", "1.1"): _turn(_mend("Goodbye")),
    ("002", "propose", "0.1"): _turn(("files.list", {}), ("files.search", {"pattern": "hello"})),
    ("002", "propose", "0.2"): _turn(
        # Another change of the code: equal ones are not reviewed.
        _append('\n\ndef hello_world():\n    text = "Good morning"\n    return text\n'),
        _tests("second"),
    ),
    ("002", "revise", "1.1"): _turn(_mend("Good morning")),
}
_NO_TURN = "I would rather talk about the weather."


def scripted_reply(_: Mapping[str, Any], headers: Mapping[str, str]) -> str | Fault:
    """Reply for three seats: two are wrong at first and correct it in their revisions, the third
    never replies with a turn.

    So the first round has no good answer, and the two revisions tie and are reviewed. The reply
    depends on the call id alone.
    """
    phase = phase_of(headers)
    if phase == "plan":
        return json.dumps(
            {"approaches": ["append the function", "rewrite the file", "edit in place"]}
        )
    if phase in {"verify", "critique"}:
        score = 8 if seat_of(headers).endswith("001") else 5
        return json.dumps({"score": score, "met": [], "unmet": [], "comment": "reads well"})
    return _OUTPUT_TEXT.get((seat_of(headers)[-3:], phase, step_of(headers)), _NO_TURN)


@dataclass(frozen=True, slots=True)
class End:
    """The outcome that must be the same, whatever was killed: everything but ids, times and commit
    dates.
    """

    status: str
    final_state: str
    winner: str
    proven: bool
    ranking: tuple[tuple[Any, ...], ...]
    seats: tuple[tuple[str, str, str], ...]
    used: tuple[int, int, int]
    delivered: str

    @classmethod
    def of(cls, outcome: Outcome, delivered: str) -> End:
        """Return the end of an outcome. `delivered` is the content of the branch, as a diff against
        the base.
        """
        ranking = tuple(
            (
                r.rank,
                r.seat,
                r.revision,
                r.score,
                r.reasons,
                r.diff,
                dict(r.checks),
                r.passed_gates,
                r.proven,
                _reviews(r),
            )
            for r in outcome.results
        )
        usage = outcome.usage  # cached tokens depend on the server
        return cls(
            status=str(outcome.status),
            final_state=outcome.final_state,
            winner=outcome.winner_id,
            proven=outcome.proven,
            ranking=ranking,
            seats=tuple((seat.seat, str(seat.status), seat.error_code) for seat in outcome.seats),
            used=(usage.prompt_tokens, usage.completion_tokens, usage.calls),
            delivered=delivered,
        )

    def difference(self, other: End) -> str:
        """Describe the difference to `other`."""
        names = [name for name in self.__slots__ if getattr(self, name) != getattr(other, name)]
        return "; ".join(
            f"{name}: {getattr(self, name)!r} became {getattr(other, name)!r}"[:600]
            for name in names
        )


def _reviews(result: Any) -> tuple[tuple[str, float], ...]:
    return tuple(sorted((review.reviewer, review.score) for review in result.reviews))
