"""Rank candidates. The order is total and does not depend on the order of the input or on seat
names.

`CRITERIA` is the whole ranking: it sorts, it explains, and it gives the score. After it only a hash
of the answer is left. If nothing but the hash puts the winner before another answer, the winner is
`undecided`.

The tests of an author count for the others only if they are valid: they fail on the base for a
reason that the task gives, and pass on the author's own candidate (`council.judging.author_tests`).
They never score their author's candidate. Those that another seat's candidate passes, too, count
first: one author may have misread the task.

The score is the same order as one number, the digits of a mixed-radix number: each criterion
outweighs all that follow. All gates
passed: at least 0.5; proven: at least 0.75.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from moothall.domain.evidence import (
    ALREADY_DONE,
    CANARY,
    CONTRADICTION,
    OWN_TESTS,
    SECRETS,
    SUPERSEDED,
    UNBELIEVED,
    Evidence,
    EvidenceLevel,
    Verdict,
)
from moothall.domain.ids import digest
from moothall.domain.proposal import Candidate, RankedCandidate
from moothall.ranking.gates import counts, gate_failures, name_cases, plain
from moothall.ranking.review_scores import Opinion, opinions

_LINES = 5
_NO_CHECKS = frozenset(
    {
        "applies",
        "cross",
        ALREADY_DONE,
        CANARY,
        CONTRADICTION,
        OWN_TESTS,
        SECRETS,
        SUPERSEDED,
        UNBELIEVED,
    }
)
"""Evidence that is no check of the repository."""
_DIFFER = 3  # files named where answers differ
_FILE = re.compile(r"(?m)^diff --git (?:\"?a/.*\"? )?\"?b/(.*?)\"?$")


@dataclass(frozen=True, slots=True)
class _Standing:
    """What counts of one candidate.

    votes: author → whether all of its tests pass, one vote an author. confirmed_failed: how many of
    those fail whose tests a candidate of another seat passes. dominated: candidates that fail some
    of the tests of other authors that it fails, and no others. cluster: seats that behave the same
    under all tests. same: seats whose change of the code is the same. opinion: reviews, in
    thousandths; compared: what of it ranks.
    """

    candidate: Candidate
    failures: tuple[str, ...]
    votes: Mapping[str, bool]
    confirmed_failed: int
    dominated: int
    cluster: int
    same: int
    opinion: Opinion
    compared: int
    answer: str
    change: str

    @property
    def fixed(self) -> int:
        """How many cases failed on the base and pass."""
        return 0 if self.candidate.about_text else len(self.candidate.assessment.fixed)

    @property
    def cross_failed(self) -> int:
        """How many other authors' tests fail."""
        return sum(not passed for passed in self.votes.values())

    @property
    def tests_failed(self) -> int:
        """How many tests of other authors fail."""
        return len(_failed_tests(self.candidate))

    @property
    def values(self) -> tuple[int, ...]:
        """Its value of each criterion; more is better."""
        return tuple(criterion.value(self) for criterion in CRITERIA)

    @property
    def key(self) -> tuple[int | str, ...]:
        """Smaller is better. The last two only tell candidates with the same answer apart."""
        name = digest(self.answer, self.candidate.proposal.candidate)
        return (
            *(-value for value in self.values),
            self.answer,
            self.candidate.proposal.revision,
            name,
        )


@dataclass(frozen=True, slots=True)
class Criterion:
    """One step of the ranking: what it counts, and how it is shown. tested: whether only executed
    tests decide it. decides: whether a winner by it alone counts as decided.
    """

    label: str
    value: Callable[[_Standing], int]
    shown: Callable[[int], str] = str
    tested: bool = True
    decides: bool = True


CRITERIA: tuple[Criterion, ...] = (
    Criterion("failed gates", lambda item: -len(item.failures), lambda value: str(-value)),
    Criterion(
        "proven",
        lambda item: int(item.candidate.level is EvidenceLevel.PROVEN),
        lambda value: "yes" if value else "no",
    ),
    Criterion("tests that failed on the base and pass", lambda item: item.fixed),
    Criterion(
        "confirmed authors whose tests fail",
        lambda item: -item.confirmed_failed,
        lambda value: str(-value),
    ),
    Criterion(
        "authors whose tests fail", lambda item: -item.cross_failed, lambda value: str(-value)
    ),
    # Not how many tests fail: if each of two answers fails a test that the other passes, either may
    # be right.
    Criterion(
        "answers that pass more of the tests of other authors and fail no other one",
        lambda item: -item.dominated,
        lambda value: str(-value),
    ),
    Criterion(
        "its own tests that fail",
        lambda item: -item.candidate.own_failing,
        lambda value: str(-value),
    ),
    Criterion(
        "the task is already done",
        lambda item: int(item.candidate.already_done),
        lambda value: "yes" if value else "no",
    ),
    Criterion("seats that behave the same", lambda item: item.cluster),
    Criterion(
        "reviews", lambda item: item.compared, lambda value: f"{value / 1000:.3f}", tested=False
    ),
    Criterion("seats with the same change", lambda item: item.same, tested=False),
    # Of two that are level, the one with the better evidence: which level is claimed must not
    # depend on a hash.
    Criterion(
        "passes a test of another seat",
        lambda item: int(item.candidate.level.independent),
        lambda value: "yes" if value else "no",
        tested=False,
    ),
    Criterion(
        "tests of other authors that fail",
        lambda item: -item.tests_failed,
        lambda value: str(-value),
        tested=False,
        decides=False,
    ),
)
_TESTED = sum(criterion.tested for criterion in CRITERIA)
_DECIDING = sum(criterion.decides for criterion in CRITERIA)


def rank(candidates: Sequence[Candidate]) -> tuple[RankedCandidate, ...]:
    """Return a place for every candidate, best first. The first is the winner if it
    `passed_gates`.
    """
    standings = _standings(candidates)
    equals = _equals(standings)
    return tuple(
        RankedCandidate(
            candidate=item.candidate.proposal.candidate,
            seat=item.candidate.proposal.seat,
            rank=number,
            score=_score(item, standings),
            reasons=(
                *_facts(item, standings),
                *_undecided(item, equals),
                *_neighbours(number - 1, standings),
            ),
            passed_gates=not item.failures,
            level=item.candidate.level,
            undecided=item in equals,
        )
        for number, item in enumerate(standings, 1)
    )


def ties(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Return the distinct answers that share the first place as far as tests decide; () if there is
    one or none.

    Of the same answer given twice only one is returned: its reviews count for both.
    """
    passing = [item for item in _standings(candidates) if not item.failures]
    top = max((item.values[:_TESTED] for item in passing), default=None)
    distinct = {
        item.answer: item.candidate for item in reversed(passing) if item.values[:_TESTED] == top
    }
    return tuple(reversed(distinct.values())) if len(distinct) > 1 else ()


def _standings(candidates: Sequence[Candidate]) -> list[_Standing]:
    failures = [gate_failures(candidate) for candidate in candidates]
    answers = [_answer(candidate) for candidate in candidates]
    thought = opinions(candidates, answers, failures)
    voted = [_votes(candidate) for candidate in candidates]
    changes = [
        candidate.assessment.change or answer
        for candidate, answer in zip(candidates, answers, strict=True)
    ]
    clusters: dict[str, set[str]] = {}
    makers: dict[str, set[str]] = {}
    confirmed = {
        author
        for votes, failed in zip(voted, failures, strict=True)
        if not failed
        for author in votes
        if votes[author]
    }
    for candidate, failed, answer, change, votes in zip(
        candidates, failures, answers, changes, voted, strict=True
    ):
        if not failed:
            if False not in votes.values():
                clusters.setdefault(candidate.assessment.behaviour or answer, set()).add(
                    candidate.proposal.seat
                )
            makers.setdefault(change, set()).add(candidate.proposal.seat)

    def cluster(
        candidate: Candidate, failed: Sequence[str], answer: str, votes: Mapping[str, bool]
    ) -> int:
        if candidate.about_text or failed:
            return 0
        # Two that fail the same test of an author do not agree with each other: each may be wrong
        # in its own way.
        return (
            1
            if False in votes.values()
            else len(clusters[candidate.assessment.behaviour or answer])
        )

    failed_tests = [_failed_tests(candidate) for candidate in candidates]
    accepted = [tests for tests, failed in zip(failed_tests, failures, strict=True) if not failed]
    found = [
        _Standing(
            candidate=candidate,
            failures=failed,
            votes=votes,
            dominated=sum(other < tests for other in accepted),
            confirmed_failed=sum(
                author in confirmed and not passed for author, passed in votes.items()
            ),
            cluster=cluster(candidate, failed, answer, votes),
            same=0 if candidate.about_text or failed else len(makers[change]),
            opinion=thought[answer],
            compared=thought[answer].mean,
            answer=answer,
            change=change,
        )
        for candidate, failed, answer, votes, change, tests in zip(
            candidates, failures, answers, voted, changes, failed_tests, strict=True
        )
    ]
    return sorted(_without_missing(found), key=lambda item: item.key)


def _without_missing(standings: Sequence[_Standing]) -> list[_Standing]:
    """Return the standings with what reviews compare. Of answers that tests leave level, if a
    review of one is missing, only reviewers who judged all of them are compared, and nothing if
    there are none: a review that is not there has no score.
    """
    levels: dict[tuple[int, ...], list[_Standing]] = {}
    for item in standings:
        levels.setdefault(item.values[:_TESTED], []).append(item)
    found: list[_Standing] = []
    for level in levels.values():
        text = any(item.candidate.about_text for item in level)
        if text or not any(item.candidate.missing for item in level):
            found += level
            continue
        shared = frozenset.intersection(*(item.opinion.names for item in level))
        kept = [
            replace(
                item.candidate,
                reviews=tuple(one for one in item.candidate.reviews if one.reviewer in shared),
            )
            for item in level
        ]
        thought = opinions(kept, [item.answer for item in level], [item.failures for item in level])
        found += [replace(item, compared=thought[item.answer].mean) for item in level]
    return found


def _equals(standings: Sequence[_Standing]) -> list[_Standing]:
    """Return the winner and the other changes of the code that nothing but a hash or a count of
    failing tests puts behind it; [] if the first place is decided.
    """
    first = next(iter(standings), None)
    if (
        first is None
        or first.failures
        or first.candidate.about_text
        or first.candidate.level.independent
        or first.candidate.already_done
    ):
        return []
    distinct = {
        item.change: item
        for item in reversed(standings)
        if item.values[:_DECIDING] == first.values[:_DECIDING]
    }
    return list(reversed(distinct.values())) if len(distinct) > 1 else []


def _answer(candidate: Candidate) -> str:
    return digest(candidate.proposal.content if candidate.about_text else candidate.proposal.diff)


def _votes(candidate: Candidate) -> dict[str, bool]:
    """Author → whether all of its tests pass. One vote an author, none for its own candidate."""
    votes: dict[str, bool] = {}
    for run in () if candidate.about_text else candidate.cross:
        if run.author != candidate.proposal.seat:
            votes[run.author] = votes.get(run.author, True) and run.passed
    return votes


def _failed_tests(candidate: Candidate) -> frozenset[tuple[str, str]]:
    """Return the tests of other authors that a candidate fails, each with its author."""
    return frozenset(
        (run.author, case)
        for run in candidate.cross
        if run.author != candidate.proposal.seat
        for case in run.failed
    )


def changed_files(diff: str) -> tuple[str, ...]:
    """Return the paths that a git diff changes, as they are after it or were before."""
    return tuple(dict.fromkeys(match[1] for match in _FILE.finditer(diff)))


def _score(item: _Standing, standings: Sequence[_Standing]) -> float:
    """Fold the criteria, the last first, into one number in 0..1."""
    value = 0.0
    every = [other.values for other in standings]
    for at in range(len(CRITERIA) - 1, 0, -1):
        column = [values[at] for values in every]
        least, most = (
            (0, 1) if at == 1 else (min(column), max(column))
        )  # proven has the same weight in every council
        value = (item.values[at] - least + value) / (most - least + 1)
    most_failures = max(len(other.failures) for other in standings)
    value = (
        1 + value
        if not item.failures
        else (most_failures - len(item.failures) + value) / (most_failures + 1)
    )
    return round(value / 2, 6)


def _facts(item: _Standing, standings: Sequence[_Standing]) -> Iterable[str]:
    passed = sum(not other.failures for other in standings)
    if item.candidate.about_text:
        yield from item.failures
        yield _reviews(item)
        return
    yield from item.failures or (_describe_pass(item.candidate),)
    yield from _evidence(item)
    if still := [case for found in item.candidate.assessment.evidence for case in found.red_before]:
        yield f"Red before and still: {name_cases(still)}."
    if flaky := [case for found in item.candidate.assessment.evidence for case in found.flaky]:
        yield f"No evidence, since they differ from run to run: {name_cases(flaky)}."
    if other := item.candidate.assessment.unrelated:
        yield f"No evidence, since they have nothing to do with the change: {name_cases(other)}."
    yield from _others_tests(item)
    if item.cluster > 1:
        yield (
            f"{item.cluster} seats behave the same under every check and test; {passed} "
            "candidates passed the gates."
        )
    if item.same > 1:
        yield f"{item.same} seats make the same change of the code."
    if item.opinion.reviewers:
        yield _reviews(item)
    if missing := item.candidate.missing:
        total = len(missing) + item.opinion.reviewers
        are = "is" if len(missing) == 1 else "are"
        yield (
            f"{len(missing)} of {total} reviews {are} missing: "
            f"{'; '.join(plain(one, 300) for one in missing)}."
        )


def _others_tests(item: _Standing) -> Iterable[str]:
    if item.votes:
        many = "author" if len(item.votes) == 1 else "authors"
        yield (
            f"Passes the tests of {len(item.votes) - item.cross_failed} of {len(item.votes)} "
            f"other {many}."
        )
    for run in item.candidate.cross:
        if run.failed and run.author != item.candidate.proposal.seat:
            yield f"Fails tests of {plain(run.author)}: {name_cases(run.failed)}."


def _evidence(item: _Standing) -> Iterable[str]:
    found = item.candidate.assessment
    yield from _remarks(found.evidence)
    advice = [
        entry.check
        for entry in found.evidence
        if entry.verdict is Verdict.FAILED and entry.check not in {*found.required, *_NO_CHECKS}
    ]
    if advice:
        yield f"Fails {name_cases(advice)}, which is advisory and decides nothing."
    level = item.candidate.level
    if level is EvidenceLevel.PROVEN:
        yield (
            "Proven: a test that failed on the base, and that its author did not write, "
            f"passes{_named(found.fixed)}."
        )
    elif level is EvidenceLevel.REPRODUCED:
        runs = item.candidate.reproducing
        authors = ", ".join(plain(author) for author in sorted({run.author for run in runs}))
        cases = [case for run in runs for case in run.cases]
        yield (
            "Reproduced: tests that fail on the base pass, and were written by "
            f"{authors}{_named(cases)}."
        )
    elif level is EvidenceLevel.SELF_TESTED:
        cases = [
            case for entry in found.evidence if entry.check == OWN_TESTS for case in entry.shown
        ]
        yield (
            "Self-tested: only its author's own tests fail on the base and pass with "
            f"it{_named(cases)}."
        )
    elif any(
        run.cases for run in item.candidate.cross if run.author != item.candidate.proposal.seat
    ):
        yield (
            "Unproven: it passes some tests of others that failed on the base, and fails other "
            "ones by the same authors."
        )
    elif not item.candidate.already_done:
        reasons = [
            entry.why
            for entry in found.evidence
            if entry.check in {CONTRADICTION, OWN_TESTS} and entry.why
        ]
        why = f" Its own tests are no evidence: {plain(reasons[0], 200)}." if reasons else ""
        yield f"Unproven: no test that failed on the base passes.{why}"
    if found.look:
        yield (
            f"A person should look: {'; '.join(plain(line, 160) for line in found.look[:_LINES])}."
        )


def _remarks(evidence: Sequence[Evidence]) -> Iterable[str]:
    for entry in evidence:
        if entry.check == SECRETS and entry.verdict is Verdict.PASSED:
            yield (
                "A person should look whether a key or password is hidden at "
                f"{name_cases(entry.look)}."
            )
        if entry.check == CANARY and entry.why:
            yield f"{entry.why}."
        if entry.check == SUPERSEDED:
            yield (
                "A person should look: it breaks tests that expect what the task asks to change, "
                "as a reader of the task says: "
                f"{name_cases(entry.shown)} ({plain(entry.why, 200)})."
            )
        if entry.check == OWN_TESTS and entry.failed:
            many = "test that it brings fails" if entry.failed == 1 else "tests that it brings fail"
            yield f"{entry.failed} {many} with its own change: {name_cases(entry.red)}."
    for entry in evidence:
        if entry.check == ALREADY_DONE:
            yield (
                f"It says that the task is already done, but {plain(entry.why, 300)}."
                if entry.why
                else (
                    "The task is already done: its tests pass on the base, and a reader of the "
                    f"task finds that they ask for it{_named(entry.shown)}."
                )
            )


def _named(cases: Sequence[str]) -> str:
    return f": {name_cases(cases)}" if cases else ""


def _describe_pass(candidate: Candidate) -> str:
    runs = {item.check: item for item in candidate.assessment.evidence}
    said = [
        f"{plain(name)} {_result(runs[name])}{counts(runs[name])}"
        for name in dict.fromkeys(candidate.assessment.required)
    ]
    return (
        "Passes every gate: "
        f"{'; '.join(['the patch applies', *said, 'no required case that passed fails'])}."
    )


def _result(run: Evidence) -> str:
    return "passed" if run.verdict is Verdict.PASSED else "failed as before"


def _reviews(item: _Standing) -> str:
    said = item.opinion
    if not said.reviewers:
        return "Nobody reviewed it: counted as 0.50."
    mean = (
        f"Reviewed at {said.mean / 1000:.2f} by {said.reviewers} "
        f"{'seat' if said.reviewers == 1 else 'seats'}"
    )
    if not said.doubted:
        return f"{mean}."
    return (
        f"{mean}; weighed down, since their scores hardly tell right from wrong on what is "
        f"proven: {', '.join(map(plain, said.doubted))}."
    )


def _undecided(item: _Standing, equals: Sequence[_Standing]) -> Iterable[str]:
    if item not in equals:
        return
    others = [plain(other.candidate.proposal.candidate) for other in equals if other is not item]
    paths = dict.fromkeys(
        path for other in equals for path in changed_files(other.candidate.proposal.diff)
    )
    where = name_cases(list(paths)[:_DIFFER])
    means = "no test or review" if any(other.opinion.reviewers for other in equals) else "no test"
    unread = " Nobody reviewed them." if means == "no test" else ""
    counted = len({other.tests_failed for other in equals}) > 1
    last = "Fewer failing tests decide." if counted else "A hash decides."
    yield (
        f"Undecided: {means} tells it from {name_cases(others)}; they differ in {where}.{unread} "
        f"{last}"
    )


def _neighbours(index: int, standings: Sequence[_Standing]) -> Iterable[str]:
    if index:
        better = standings[index - 1]
        yield (
            f"Below {plain(better.candidate.proposal.candidate)}: "
            f"{_difference(standings[index], better)}."
        )
    if index + 1 < len(standings):
        worse = standings[index + 1]
        yield (
            f"Above {plain(worse.candidate.proposal.candidate)}: "
            f"{_difference(standings[index], worse)}."
        )


def _difference(item: _Standing, other: _Standing) -> str:
    """Name the criterion that decides between two neighbours, from the side of `item`."""
    for criterion, mine, theirs in zip(CRITERIA, item.values, other.values, strict=True):
        if mine != theirs:
            return f"{criterion.label}: {criterion.shown(mine)} against {criterion.shown(theirs)}"
    return (
        "the same answer"
        if item.answer == other.answer
        else "level on everything; a hash of the answers decides"
    )
