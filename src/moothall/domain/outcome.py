"""The outcome of a deliberation: the document that callers poll, and the data of
`deliberation.decided`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from moothall.domain.budget import Usage
from moothall.domain.evidence import Evidence, EvidenceLevel
from moothall.domain.proposal import Operation, Review, SeatOutcome
from moothall.domain.status import DeliberationStatus

__all__ = ["DeliberationStatus", "Outcome", "Result"]


@dataclass(frozen=True, slots=True)
class Result:
    """A candidate's place in the ranking, with all reasons for it.

    `checks` maps a check to its verdict. `undecided`: no test or review decides between it and the
    other answers in first place.
    """

    rank: int
    seat: str
    role: str
    score: float
    reasons: tuple[str, ...]
    passed_gates: bool
    proven: bool
    evidence: tuple[Evidence, ...] = ()
    reviews: tuple[Review, ...] = ()
    content: str = ""
    diff: str = ""
    commit_sha: str = ""
    revision: int = 0
    operations: tuple[Operation, ...] = ()
    created_at_ms: int = 0
    checks: Mapping[str, str] = field(default_factory=dict)
    message: str = ""
    evidence_level: EvidenceLevel = EvidenceLevel.UNPROVEN
    undecided: bool = False

    @property
    def level(self) -> EvidenceLevel:
        """The level of evidence; records of earlier versions have only `proven`."""
        return EvidenceLevel.PROVEN if self.proven else self.evidence_level

    @property
    def answer(self) -> str:
        """The answer's name: its seat, and the revision."""
        return self.seat if not self.revision else f"{self.seat} (revision {self.revision})"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The state or result of a deliberation. `final_state` is committed, no_winner, failed,
    timeout, cancelled, answered (about text, or a question), already_done (the winner's tests show
    that the base already does it; nothing is delivered), judged (a given change, and nothing is
    delivered), or empty while it runs. `branch` and
    `commit_sha` name the delivered winner; `origin` is the deliberation's. `evidence_level` is the
    winner's. `undecided`: no test or review ranks it above another answer.
    """

    # The key of the task in stored outcomes, and its id in those that users receive.
    task_id: str
    status: DeliberationStatus
    tenant: str = "local"
    story_id: str = ""
    role: str = ""
    agent_count: int = 0
    winner_id: str = ""
    proven: bool = False
    results: tuple[Result, ...] = ()
    seats: tuple[SeatOutcome, ...] = ()
    usage: Usage = Usage()
    duration_ms: int = 0
    branch: str = ""
    commit_sha: str = ""
    final_state: str = ""
    error_message: str = ""
    origin: str = ""
    evidence_level: EvidenceLevel = EvidenceLevel.UNPROVEN
    undecided: bool = False

    @property
    def level(self) -> EvidenceLevel:
        """The level of evidence; records of earlier versions have only `proven`."""
        return EvidenceLevel.PROVEN if self.proven else self.evidence_level

    @property
    def diff(self) -> str:
        """The winner's diff; '' if there is no winner or its answer is text."""
        return self.results[0].diff if self.winner_id and self.results else ""
