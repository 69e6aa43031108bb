"""In which order a council works: the table of protocols. `council.protocols` runs what a row says.

Every protocol begins with proposals and ends with reviews from all where they were asked for, or
where the task is about text, which has no other evidence. Between them come revisions in rounds,
runs of each candidate's tests on the others, a second wave of proposals, and reviews or a
comparison of what the evidence ranks alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

ProtocolName = Literal["single", "vote", "debate", "tests_then_verify", "ask", "tournament"]


@dataclass(frozen=True, slots=True)
class Protocol:
    """One of them.

    `rounds`: of revision, where the request names none. `revises_on`: what its authors get to see;
    `reviews`: each candidate is reviewed by another seat and revised by its author; `evidence`:
    while no candidate is through the gates, those that failed are revised. `reviews_ties`: what the
    evidence ranks alike is reviewed once each.
    `compares`: they are compared in small groups by summaries instead. `second_wave`: seats propose
    once more, on notes about the first proposals, while no candidate is reproduced. `stops_early`:
    it may end before every seat has proposed. `answers`: a proposal that changes nothing is an
    answer in text.
    """

    rounds: int = 0
    one_seat: bool = False
    revises_on: Literal["", "reviews", "evidence"] = ""
    reviews_ties: bool = False
    compares: bool = False
    second_wave: bool = False
    stops_early: bool = False
    answers: bool = False


PROTOCOLS: Mapping[ProtocolName, Protocol] = {
    "single": Protocol(one_seat=True),
    "vote": Protocol(stops_early=True),
    "debate": Protocol(rounds=1, revises_on="reviews", reviews_ties=True),
    "tests_then_verify": Protocol(
        rounds=1, revises_on="evidence", reviews_ties=True, stops_early=True
    ),
    "ask": Protocol(one_seat=True, answers=True),
    "tournament": Protocol(reviews_ties=True, compares=True, second_wave=True, stops_early=True),
}
DEFAULT_PROTOCOL: ProtocolName = "tests_then_verify"
