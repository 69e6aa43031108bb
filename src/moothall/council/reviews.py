"""Reviews: anonymous, never of one's own, in an order that is deaf to names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from moothall.council.reply import ReadReview
from moothall.domain.ids import digest
from moothall.domain.proposal import Proposal, Review

REVIEWS_A_SEAT = 3


@dataclass(frozen=True, slots=True)
class Answer:
    """One distinct answer and the proposals that gave it."""

    text: str
    proposals: tuple[Proposal, ...]

    @property
    def seats(self) -> frozenset[str]:
        """Who gave it."""
        return frozenset(item.seat for item in self.proposals)


def answers(proposals: Iterable[Proposal]) -> tuple[Answer, ...]:
    """Group the same answers together, in the order of their hashes."""
    groups: dict[str, list[Proposal]] = {}
    for proposal in proposals:
        groups.setdefault(proposal.diff or proposal.content, []).append(proposal)
    return tuple(Answer(text, tuple(groups[text])) for text in sorted(groups, key=digest))


def assign(given: Sequence[Answer], reviewers: Sequence[str], each: int = REVIEWS_A_SEAT) -> tuple[tuple[str, Answer], ...]:
    """Say who reviews what: at most `each` answers a reviewer, none that the reviewer gave itself.

    The answers stand in a ring and everyone reads on from its own, so that in a council of distinct answers
    each is read equally often. Seats of the same answer, and those without one, begin one place further each.
    """
    own = {seat: index for index, answer in enumerate(given) for seat in answer.seats}
    begun: Counter[int] = Counter()
    pairs = []
    for reviewer in reviewers:
        place = own.get(reviewer, len(given) - 1)
        start = place + 1 + begun[place]
        begun[place] += 1
        ring = [given[(start + step) % len(given)] for step in range(len(given))]
        pairs += [(reviewer, answer) for answer in ring if reviewer not in answer.seats][:each]
    return tuple(pairs)


def review_of(read: ReadReview, reviewer: str, proposal: Proposal, wanted: Sequence[str]) -> Review:
    """Return the review of one proposal. A criterion whose quote the answer does not hold is not met."""
    text = " ".join((proposal.diff or proposal.content).split())
    quotes = {number: quote.strip() for number, quote in read.met if number not in read.unmet and _holds(text, quote)}
    met = tuple(f'{wanted[number - 1]} — "{quote}"' for number, quote in sorted(quotes.items()))
    unmet = tuple(criterion for number, criterion in enumerate(wanted, 1) if number not in quotes)
    return Review(reviewer, proposal.candidate, read.score / 10, met, unmet, read.comment)


def _holds(text: str, quote: str) -> bool:
    wanted = " ".join(quote.split()).strip("+- ")
    return bool(wanted) and wanted in text


def review_text(review: Review) -> str:
    """Say it to the author, without the reviewer's name."""
    lines = [f"Score {review.score:.1f} of 1."]
    lines += [f"Met: {item}" for item in review.met]
    lines += [f"Not met: {item}" for item in review.unmet]
    return "\n".join([*lines, review.comment])
