"""The table of protocols: the order of a council's steps, which `council.protocols` runs.

Every protocol begins with proposals. It ends with reviews by all seats if they were requested, or
if the task is about text, which has no other evidence. In between are rounds of revisions, runs of
each candidate's tests on the others, a second wave of proposals, and reviews or a comparison of
tied candidates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

ProtocolName = Literal[
    "single", "vote", "debate", "tests_then_verify", "ask", "tournament", "judge"
]


@dataclass(frozen=True, slots=True)
class Protocol:
    """A protocol.

    `rounds`: of revision, if the request names none. `revises_on`: what authors see before a
    revision; `reviews`: another seat reviews each candidate, and its author revises it; `evidence`:
    while no candidate passes the acceptance checks, failed ones are revised. `reviews_ties`: tied
    candidates are reviewed once each. `compares`: they are compared in small groups by summaries
    instead. `second_wave`: seats propose again, with notes on the first proposals, while no
    candidate is reproduced. `stops_early`: it may end before every seat has proposed. `answers`: a
    proposal without a change is an answer in text. `judges`: the first seat proposes a given
    change, the others are its rivals, and nothing is delivered.
    """

    rounds: int = 0
    one_seat: bool = False
    revises_on: Literal["", "reviews", "evidence"] = ""
    reviews_ties: bool = False
    compares: bool = False
    second_wave: bool = False
    stops_early: bool = False
    answers: bool = False
    judges: bool = False


PROTOCOLS: Mapping[ProtocolName, Protocol] = {
    "single": Protocol(one_seat=True),
    "vote": Protocol(stops_early=True),
    "debate": Protocol(rounds=1, revises_on="reviews", reviews_ties=True),
    "tests_then_verify": Protocol(
        rounds=1, revises_on="evidence", reviews_ties=True, stops_early=True
    ),
    "ask": Protocol(one_seat=True, answers=True),
    "tournament": Protocol(reviews_ties=True, compares=True, second_wave=True, stops_early=True),
    "judge": Protocol(judges=True),
}
DEFAULT_PROTOCOL: ProtocolName = "tests_then_verify"
