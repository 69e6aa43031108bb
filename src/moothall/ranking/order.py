"""Ranking of candidates. The order is total and depends neither on the order of the input nor on
seat names.

`CRITERIA` defines the whole ranking: the order, its explanation and the score. A hash of the answer
breaks ties. If only the hash, or a criterion that does not decide, ranks the winner before another
answer, the winner is `undecided`.

The tests of an author count for other candidates only if they are valid: they fail on the base for
a reason that the task names, and pass on the author's own candidate
(`deliberation/judging/author_tests.py`). They never score their author's candidate. Tests that
another seat's candidate passes too count first, since one author may have misread the task.

The score expresses the order as a mixed-radix number: each criterion outweighs all that follow. A
candidate that passes all acceptance checks has at least 0.5; a proven one has at least 0.75.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from moothall.domain.evidence import (
    ALREADY_DONE,
    CANARY,
    COMPARISON,
    CONTRADICTION,
    EDITED_TESTS,
    OWN_TESTS,
    SECRETS,
    SUPERSEDED,
    UNBELIEVED,
    UNNOTICED,
    Evidence,
    EvidenceLevel,
    Verdict,
)
from moothall.domain.ids import digest
from moothall.domain.proposal import Candidate, CandidateRank
from moothall.ranking.criteria import (
    ReviewScore,
    format_cases,
    format_counts,
    list_failed_checks,
    sanitize_line,
    score_answers,
)

ABOVE = "Above "
"""The beginning of the reason that names what ranked a candidate above the next one."""
NO_CHECKS = frozenset(
    {
        "applies",
        "cross",
        ALREADY_DONE,
        CANARY,
        CONTRADICTION,
        EDITED_TESTS,
        OWN_TESTS,
        SECRETS,
        SUPERSEDED,
        UNBELIEVED,
        UNNOTICED,
    }
)
"""Evidence that is not a check of the repository."""
_MAX_SUSPICIOUS_LINES = 5
_LINE_CHARS = 160
_MAX_NAMED_FILES = 3  # files in which answers differ
_FILE = re.compile(r"(?m)^diff --git (?:\"?a/.*\"? )?\"?b/(.*?)\"?$")


@dataclass(frozen=True, slots=True)
class _Standing:
    """The ranking values of one candidate.

    votes: by author whether all of its tests pass; one vote per author.
    confirmed_failed: the authors whose tests fail here but pass on a candidate of another seat.
    dominated_count: the number of accepted candidates that fail some of the tests of other authors
    that this one fails, and no others.
    replaced: a later answer of the same seat is accepted, too.
    cluster_size: the number of seats that behave the same under all tests.
    same_change_count: the number of seats with the same code change.
    review_score: the reviews, in thousandths.
    ranked_review_score: the review score that counts in the ranking.
    brings_tests: its author or another seat with the same code change brings a test that counts.
    """

    candidate: Candidate
    failures: tuple[str, ...]
    votes: Mapping[str, bool]
    confirmed_failed: int
    dominated_count: int
    replaced: bool
    cluster_size: int
    same_change_count: int
    review_score: ReviewScore
    ranked_review_score: int
    brings_tests: bool
    answer: str
    change: str
    values: tuple[int, ...] = field(init=False, compare=False)
    """The values by criterion; higher is better. The order, each score and each explanation compare
    all of them, so they are computed once.
    """

    def __post_init__(self) -> None:
        values = tuple(criterion.value(self) for criterion in CRITERIA)
        object.__setattr__(self, "values", values)

    @property
    def fixed(self) -> int:
        """The number of cases that failed on the base and pass."""
        return 0 if self.candidate.about_text else len(self.candidate.assessment.fixed)

    @property
    def cross_failed(self) -> int:
        """The number of other authors whose tests fail."""
        return sum(not passed for passed in self.votes.values())

    @property
    def tests_failed(self) -> int:
        """The number of failing tests of other authors."""
        return len(_failed_tests(self.candidate))

    @property
    def key(self) -> tuple[int | str, ...]:
        """The sort key; lower is better.

        The last two elements only order candidates with the same answer.
        """
        name = digest(self.answer, self.candidate.proposal.candidate)
        return (
            *(-value for value in self.values),
            self.answer,
            self.candidate.proposal.revision,
            name,
        )


@dataclass(frozen=True, slots=True)
class Criterion:
    """One criterion of the ranking.

    value: the value of a candidate; higher is better.
    format_value: formats a value for people.
    tested: the criterion depends on executed tests only.
    decides: a winner by this criterion alone counts as decided.
    """

    label: str
    value: Callable[[_Standing], int]
    format_value: Callable[[int], str] = str
    tested: bool = True
    decides: bool = True


CRITERIA: tuple[Criterion, ...] = (
    Criterion(
        "failed acceptance checks",
        lambda standing: -len(standing.failures),
        lambda value: str(-value),
    ),
    Criterion(
        "proven",
        lambda standing: int(standing.candidate.proven and not standing.candidate.about_text),
        lambda value: "yes" if value else "no",
    ),
    Criterion("tests that failed on the base and pass", lambda standing: standing.fixed),
    Criterion(
        "confirmed authors whose tests fail",
        lambda standing: -standing.confirmed_failed,
        lambda value: str(-value),
    ),
    Criterion(
        "authors whose tests fail",
        lambda standing: -standing.cross_failed,
        lambda value: str(-value),
    ),
    # Not the number of failing tests: if each of two candidates fails a test that the other passes,
    # either may be right.
    Criterion(
        "better answers by the tests of other authors",
        lambda standing: -standing.dominated_count,
        lambda value: str(-value),
    ),
    Criterion(
        "its own tests that fail",
        lambda standing: -standing.candidate.own_failing,
        lambda value: str(-value),
    ),
    Criterion(
        "the task is already done",
        lambda standing: int(standing.candidate.already_done),
        lambda value: "yes" if value else "no",
    ),
    # A revision has no reviews of its own if its draft was reviewed; its author knew these reviews.
    Criterion(
        "not replaced by its author",
        lambda standing: int(not standing.replaced),
        lambda value: "yes" if value else "no",
    ),
    Criterion("seats that behave the same", lambda standing: standing.cluster_size),
    Criterion(
        "reviews",
        lambda standing: standing.ranked_review_score,
        lambda value: f"{value / 1000:.3f}",
        tested=False,
    ),
    Criterion(
        "seats with the same change", lambda standing: standing.same_change_count, tested=False
    ),
    # A test that counts shows that its author reproduced the problem. Another code change that
    # passes this test and brings none of its own may do so by chance. The tie is still undecided.
    Criterion(
        "brings a test that counts",
        lambda standing: int(standing.brings_tests),
        lambda value: "yes" if value else "no",
        tested=False,
        decides=False,
    ),
    # The claimed level does not depend on a hash.
    Criterion(
        "passes a test of another seat",
        lambda standing: int(standing.candidate.level.independent),
        lambda value: "yes" if value else "no",
        tested=False,
        decides=False,
    ),
    Criterion(
        "tests of other authors that fail",
        lambda standing: -standing.tests_failed,
        lambda value: str(-value),
        tested=False,
        decides=False,
    ),
)
_TESTED_COUNT = sum(criterion.tested for criterion in CRITERIA)
_DECIDING_COUNT = sum(criterion.decides for criterion in CRITERIA)


def rank(candidates: Sequence[Candidate]) -> tuple[CandidateRank, ...]:
    """Return the rank of every candidate, best first.

    The first one is the winner if it `passed_gates`.
    """
    standings = _rank_standings(candidates)
    undecided = _find_undecided(standings)
    return tuple(
        CandidateRank(
            candidate=standing.candidate.proposal.candidate,
            seat=standing.candidate.proposal.seat,
            rank=position,
            score=_combined_score(standing, standings),
            reasons=(
                *_explain_standing(standing, standings),
                *_explain_undecided(standing, undecided),
                *_explain_neighbours(position - 1, standings),
            ),
            passed_gates=not standing.failures,
            level=standing.candidate.level,
            undecided=standing in undecided,
        )
        for position, standing in enumerate(standings, 1)
    )


def find_ties(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Return the distinct answers that share the first rank as far as tests decide; () if there is
    at most one.

    An answer that was given twice is returned once; its reviews count for both.
    """
    passing = [standing for standing in _rank_standings(candidates) if not standing.failures]
    best_values = max((standing.values[:_TESTED_COUNT] for standing in passing), default=None)
    distinct = {
        standing.answer: standing.candidate
        for standing in reversed(passing)
        if standing.values[:_TESTED_COUNT] == best_values
    }
    return tuple(reversed(distinct.values())) if len(distinct) > 1 else ()


def have_same_change(candidates: Sequence[Candidate]) -> bool:
    """True if candidates differ in comments, formatting or tests only."""
    return (
        len({candidate.assessment.change or candidate.proposal.diff for candidate in candidates})
        <= 1
    )


def _rank_standings(candidates: Sequence[Candidate]) -> list[_Standing]:
    all_values = [_CandidateValues.of(candidate) for candidate in candidates]
    accepted = [values for values in all_values if not values.failures]
    review_scores = score_answers(
        candidates,
        [values.answer for values in all_values],
        [values.failures for values in all_values],
    )
    seats_by_behaviour = _group_seats(
        (values.behaviour, values.candidate) for values in accepted if values.passes_all_tests
    )
    seats_by_change = _group_seats((values.change, values.candidate) for values in accepted)
    confirmed = {author for values in accepted for author, passed in values.votes.items() if passed}
    last_revisions = _last_revisions(values.candidate for values in accepted)
    tested_changes = {values.change for values in accepted if values.candidate.brings_tests}
    standings = [
        _Standing(
            candidate=values.candidate,
            failures=values.failures,
            votes=values.votes,
            dominated_count=sum(other.failed_tests < values.failed_tests for other in accepted),
            replaced=not values.candidate.about_text
            and values.candidate.proposal.revision
            < last_revisions.get(values.candidate.proposal.seat, 0),
            confirmed_failed=sum(
                author in confirmed and not passed for author, passed in values.votes.items()
            ),
            cluster_size=_cluster_size(values, seats_by_behaviour),
            same_change_count=0
            if values.candidate.about_text or values.failures
            else len(seats_by_change[values.change]),
            review_score=review_scores[values.answer],
            ranked_review_score=review_scores[values.answer].mean,
            brings_tests=values.change in tested_changes,
            answer=values.answer,
            change=values.change,
        )
        for values in all_values
    ]
    return sorted(_with_comparable_reviews(standings), key=lambda standing: standing.key)


@dataclass(frozen=True, slots=True)
class _CandidateValues:
    """The values of a candidate that do not depend on the other candidates."""

    candidate: Candidate
    failures: tuple[str, ...]
    votes: Mapping[str, bool]
    failed_tests: frozenset[tuple[str, str]]
    answer: str
    change: str

    @classmethod
    def of(cls, candidate: Candidate) -> _CandidateValues:
        answer = _answer_digest(candidate)
        return cls(
            candidate,
            list_failed_checks(candidate),
            _votes_on(candidate),
            _failed_tests(candidate),
            answer,
            candidate.assessment.change or answer,
        )

    @property
    def behaviour(self) -> str:
        """A digest that candidates share if no test distinguishes them."""
        return self.candidate.assessment.behaviour or self.answer

    @property
    def passes_all_tests(self) -> bool:
        """True if no test of another author fails."""
        return False not in self.votes.values()


def _group_seats(candidates: Iterable[tuple[str, Candidate]]) -> dict[str, set[str]]:
    """Return the seats of candidates by the key of each."""
    seats: dict[str, set[str]] = {}
    for key, candidate in candidates:
        seats.setdefault(key, set()).add(candidate.proposal.seat)
    return seats


def _last_revisions(candidates: Iterable[Candidate]) -> dict[str, int]:
    """Return the last revision of each seat."""
    revisions: dict[str, int] = {}
    for candidate in candidates:
        seat = candidate.proposal.seat
        revisions[seat] = max(candidate.proposal.revision, revisions.get(seat, 0))
    return revisions


def _cluster_size(values: _CandidateValues, seats_by_behaviour: Mapping[str, set[str]]) -> int:
    """Return the number of seats that behave the same under all tests."""
    if values.candidate.about_text or values.failures:
        return 0
    # Two candidates that fail the same test do not agree: each may be wrong in its own way.
    return len(seats_by_behaviour[values.behaviour]) if values.passes_all_tests else 1


def _with_comparable_reviews(standings: Sequence[_Standing]) -> list[_Standing]:
    """Set the review scores that count in the ranking.

    If tests leave answers tied, and a review of one is missing, only reviewers of all of them
    count, or none if there is no such reviewer: a missing review has no score.
    """
    tied_by_values: dict[tuple[int, ...], list[_Standing]] = {}
    for standing in standings:
        tied_by_values.setdefault(standing.values[:_TESTED_COUNT], []).append(standing)
    updated: list[_Standing] = []
    for tied in tied_by_values.values():
        is_about_text = any(standing.candidate.about_text for standing in tied)
        if is_about_text or not any(standing.candidate.missing for standing in tied):
            updated += tied
            continue
        shared_reviewers = frozenset.intersection(
            *(standing.review_score.names for standing in tied)
        )
        shared_candidates = [
            replace(
                standing.candidate,
                reviews=tuple(
                    review
                    for review in standing.candidate.reviews
                    if review.reviewer in shared_reviewers
                ),
            )
            for standing in tied
        ]
        review_scores = score_answers(
            shared_candidates,
            [standing.answer for standing in tied],
            [standing.failures for standing in tied],
        )
        updated += [
            replace(standing, ranked_review_score=review_scores[standing.answer].mean)
            for standing in tied
        ]
    return updated


def _find_undecided(standings: Sequence[_Standing]) -> list[_Standing]:
    """Return the winner and the other code changes that only a hash or criteria that do not decide
    rank behind it; [] if the first rank is decided. A proven winner is decided.
    """
    first = next(iter(standings), None)
    if (
        first is None
        or first.failures
        or first.candidate.about_text
        or first.candidate.level is EvidenceLevel.PROVEN
        or first.candidate.already_done
    ):
        return []
    distinct = {
        standing.change: standing
        for standing in reversed(standings)
        if standing.values[:_DECIDING_COUNT] == first.values[:_DECIDING_COUNT]
    }
    return list(reversed(distinct.values())) if len(distinct) > 1 else []


def _failed_tests(candidate: Candidate) -> frozenset[tuple[str, str]]:
    """Return the tests of other authors that a candidate fails, each with its author."""
    return frozenset(
        (run.author, case)
        for run in candidate.cross
        if run.author != candidate.proposal.seat
        for case in run.failed
    )


def _answer_digest(candidate: Candidate) -> str:
    return digest(candidate.proposal.content if candidate.about_text else candidate.proposal.diff)


def _votes_on(candidate: Candidate) -> dict[str, bool]:
    """Return by author whether all of its tests pass.

    Each author has one vote, and none for its own candidate.
    """
    votes: dict[str, bool] = {}
    for run in () if candidate.about_text else candidate.cross:
        if run.author != candidate.proposal.seat:
            votes[run.author] = votes.get(run.author, True) and run.passed
    return votes


def changed_files(diff: str) -> tuple[str, ...]:
    """Return the paths that a git diff changes: the new path, or the old one of a deleted file."""
    return tuple(dict.fromkeys(match[1] for match in _FILE.finditer(diff)))


def _combined_score(standing: _Standing, standings: Sequence[_Standing]) -> float:
    """Combine the criteria into one number in 0..1, starting with the last."""
    value = 0.0
    all_values = [other.values for other in standings]
    for index in range(len(CRITERIA) - 1, 0, -1):
        column = [values[index] for values in all_values]
        # "Proven" has the same weight in every council.
        lowest, highest = (0, 1) if index == 1 else (min(column), max(column))
        value = (standing.values[index] - lowest + value) / (highest - lowest + 1)
    most_failures = max(len(other.failures) for other in standings)
    value = (
        1 + value
        if not standing.failures
        else (most_failures - len(standing.failures) + value) / (most_failures + 1)
    )
    return round(value / 2, 6)


def _explain_standing(standing: _Standing, standings: Sequence[_Standing]) -> Iterable[str]:
    passed = sum(not other.failures for other in standings)
    if standing.candidate.about_text:
        yield from standing.failures
        yield _describe_reviews(standing)
        return
    yield from standing.failures or (_describe_pass(standing.candidate),)
    yield from _explain_evidence(standing)
    if still_failing := [
        case for evidence in standing.candidate.assessment.evidence for case in evidence.red_before
    ]:
        yield f"Still failing, as on the base: {format_cases(still_failing)}."
    if flaky := [
        case for evidence in standing.candidate.assessment.evidence for case in evidence.flaky
    ]:
        yield f"No evidence, since they differ from run to run: {format_cases(flaky)}."
    if unrelated := standing.candidate.assessment.unrelated:
        yield (
            "No evidence, since they have nothing to do with the change: "
            f"{format_cases(unrelated)}."
        )
    yield from _explain_cross_tests(standing)
    if standing.cluster_size > 1:
        yield (
            f"{standing.cluster_size} seats behave the same under every check and test; {passed} "
            "candidates passed all acceptance checks."
        )
    if standing.same_change_count > 1:
        yield f"{standing.same_change_count} seats make the same change of the code."
    if standing.review_score.reviewers:
        yield _describe_reviews(standing)
    if missing := standing.candidate.missing:
        total = len(missing) + standing.review_score.reviewers
        verb = "is" if len(missing) == 1 else "are"
        yield (
            f"{len(missing)} of {total} reviews {verb} missing: "
            f"{'; '.join(sanitize_line(reason, 300) for reason in missing)}."
        )


def _explain_cross_tests(standing: _Standing) -> Iterable[str]:
    if len(standing.votes) > 1:
        yield (
            f"Passes the tests of {len(standing.votes) - standing.cross_failed} of "
            f"{len(standing.votes)} other authors."
        )
    elif (
        True in standing.votes.values() and standing.candidate.level is not EvidenceLevel.REPRODUCED
    ):
        yield "Passes the tests of another author."
    for run in standing.candidate.cross:
        if run.failed and run.author != standing.candidate.proposal.seat:
            yield f"Fails tests of {sanitize_line(run.author)}: {format_cases(run.failed)}."


def _explain_evidence(standing: _Standing) -> Iterable[str]:
    assessment = standing.candidate.assessment
    yield from _explain_remarks(assessment.evidence)
    failed_advisory = [
        evidence.check
        for evidence in assessment.evidence
        if evidence.verdict is Verdict.FAILED
        and evidence.check not in {*assessment.required, *NO_CHECKS}
    ]
    if failed_advisory:
        yield f"Fails {format_cases(failed_advisory)}, which is advisory and decides nothing."
    yield from _explain_level(standing)
    if _passed_once(standing.candidate):
        yield (
            "These tests failed on the base, passed once, and did not run again, since another "
            f"answer ranks first: {format_cases(assessment.fixed)}."
        )
    if assessment.look:
        suspicious_lines = [
            sanitize_line(line, _LINE_CHARS) for line in assessment.look[:_MAX_SUSPICIOUS_LINES]
        ]
        yield f"A person should look: {'; '.join(suspicious_lines)}."


def _explain_level(standing: _Standing) -> Iterable[str]:
    assessment = standing.candidate.assessment
    level = standing.candidate.level
    if level is EvidenceLevel.PROVEN:
        yield (
            f"{level_prefix(level)}a test that failed on the base, and that its author did not "
            f"write, passes{_format_suffix(assessment.fixed)}."
        )
    elif level is EvidenceLevel.REPRODUCED:
        runs = standing.candidate.reproducing
        authors = ", ".join(
            sanitize_line(author) for author in sorted({run.author for run in runs})
        )
        cases = [case for run in runs for case in run.cases]
        yield (
            f"{level_prefix(level)}it passes tests by {authors} that failed on the base"
            f"{_format_suffix(cases)}."
        )
    elif level is EvidenceLevel.SELF_TESTED:
        yield from _explain_own_tests(standing.candidate)
    elif any(
        run.cases
        for run in standing.candidate.cross
        if run.author != standing.candidate.proposal.seat
    ):
        yield (
            f"{level_prefix(level)}it passes only some of the tests of other authors that failed "
            "on the base."
        )
    elif not standing.candidate.already_done:
        reasons = [
            entry.why
            for entry in assessment.evidence
            if entry.check in {CONTRADICTION, OWN_TESTS} and entry.why
        ]
        refuted = next(
            (entry.why for entry in assessment.evidence if entry.check == ALREADY_DONE), ""
        )
        if refuted:
            yield (
                f"{level_prefix(level)}it changes no code and claims that the task is already "
                "done, but "
                f"{sanitize_line(refuted, 300)}."
            )
        else:
            passes = "passes in three runs" if _passed_once(standing.candidate) else "passes"
            yield f"{level_prefix(level)}no test that failed on the base {passes}."
            if reasons:
                yield f"Its own tests are not evidence: {sanitize_line(reasons[0], 200)}."


def _explain_own_tests(candidate: Candidate) -> Iterable[str]:
    cases = [
        case
        for entry in candidate.assessment.evidence
        if entry.check == OWN_TESTS
        for case in entry.shown
    ]
    only = "" if candidate.reproducing else "only "
    yield (
        f"{level_prefix(candidate.level)}{only}its author's own tests fail on the base and pass "
        f"with it{_format_suffix(cases)}."
    )
    if candidate.reproducing:
        yield (
            "Tests of other authors that pass with it do not count, because it fails tests of "
            f"{' and '.join(candidate.refuting)}."
        )


def _passed_once(candidate: Candidate) -> bool:
    return candidate.proven and not candidate.assessment.confirmed


def level_prefix(level: EvidenceLevel) -> str:
    """Return the beginning of the reason for a level of evidence."""
    return f"{level.words.capitalize()}: "


def _explain_remarks(evidence: Sequence[Evidence]) -> Iterable[str]:
    for entry in evidence:
        if entry.check == SECRETS and entry.verdict is Verdict.PASSED:
            yield (
                "A person should check whether a key or password is hidden at "
                f"{format_cases(entry.look)}."
            )
        if entry.check == CANARY and entry.why:
            yield f"{entry.why}."
        if entry.check == SUPERSEDED:
            yield (
                "A person should look: it breaks tests that expect what the task asks to change, "
                f"as a reader of the task says: {format_cases(entry.shown)} "
                f"({sanitize_line(entry.why, 200)})."
            )
        if entry.check == EDITED_TESTS:
            yield (
                "A person should decide: it fails only tests that it edits or deletes, and passes "
                f"its own version of them: {format_cases(entry.shown)}."
            )
        if entry.check == UNNOTICED:
            yield from _explain_unnoticed(entry)
        if entry.check == OWN_TESTS and entry.failed:
            subject = (
                "test that it brings fails" if entry.failed == 1 else "tests that it brings fail"
            )
            yield f"{entry.failed} {subject} with its own change: {format_cases(entry.red)}."
    for entry in evidence:
        if entry.check == ALREADY_DONE and not entry.why:
            yield (
                "The task is already done: its tests pass on the base, and a reader of the "
                f"task finds that they ask for it{_format_suffix(entry.shown)}."
            )


def _explain_unnoticed(entry: Evidence) -> Iterable[str]:
    total = entry.passed + entry.failed
    if entry.why:
        yield f"{sanitize_line(entry.why, 200)}."
    if entry.failed:
        yield (
            f"No test fails without {entry.failed} of {total} parts of the change: "
            f"{format_cases(entry.look)}."
        )
    elif total:
        parts = "the change" if total == 1 else f"each of the {total} parts of the change"
        yield f"A test fails without {parts}."


def _format_suffix(cases: Sequence[str]) -> str:
    return f": {format_cases(cases)}" if cases else ""


def _describe_pass(candidate: Candidate) -> str:
    runs = {evidence.check: evidence for evidence in candidate.assessment.evidence}
    results = [
        f"{sanitize_line(name)} {_describe_result(runs[name])}{format_counts(runs[name])}"
        for name in dict.fromkeys(candidate.assessment.required)
    ]
    return (
        "Passes all acceptance checks: "
        f"{'; '.join(['the patch applies', *results, 'no test that passed on the base fails'])}."
    )


def _describe_result(run: Evidence) -> str:
    return "passed" if run.verdict is Verdict.PASSED else "failed as before"


def _describe_reviews(standing: _Standing) -> str:
    review_score = standing.review_score
    if not review_score.reviewers:
        return "Nobody reviewed it: counted as 0.50."
    if review_score.names == {COMPARISON}:
        return (
            f"Compared with other answers by summaries: {review_score.mean / 1000:.2f} between 0 "
            "(last) and 1 (first)."
        )
    mean = (
        f"Reviewed at {review_score.mean / 1000:.2f} by {review_score.reviewers} "
        f"{'seat' if review_score.reviewers == 1 else 'seats'}"
    )
    if not review_score.doubted:
        return f"{mean}."
    return (
        f"{mean}; of less weight, since their scores hardly distinguish proven answers from wrong "
        f"ones: {', '.join(map(sanitize_line, review_score.doubted))}."
    )


def _explain_undecided(standing: _Standing, undecided: Sequence[_Standing]) -> Iterable[str]:
    if standing not in undecided:
        return
    names = [
        sanitize_line(other.candidate.proposal.candidate)
        for other in undecided
        if other is not standing
    ]
    paths = dict.fromkeys(
        path for other in undecided for path in changed_files(other.candidate.proposal.diff)
    )
    files = format_cases(list(paths)[:_MAX_NAMED_FILES])
    evidence = (
        "no test or review"
        if any(other.review_score.reviewers for other in undecided)
        else "no test"
    )
    note = " Nobody reviewed them." if evidence == "no test" else ""
    if len({other.brings_tests for other in undecided}) > 1:
        last_resort = "The one that brings a test is first."
    elif len({other.candidate.level.independent for other in undecided}) > 1:
        last_resort = "The one that passes a test of another seat is first."
    elif len({other.tests_failed for other in undecided}) > 1:
        last_resort = "Fewer failing tests decide."
    else:
        last_resort = "A hash decides."
    yield (
        f"Undecided: {evidence} tells it from {format_cases(names)}; they differ in "
        f"{files}.{note} {last_resort}"
    )


def _explain_neighbours(index: int, standings: Sequence[_Standing]) -> Iterable[str]:
    if index:
        better = standings[index - 1]
        yield (
            f"Below {sanitize_line(better.candidate.proposal.candidate)}: "
            f"{_describe_difference(standings[index], better)}."
        )
    if index + 1 < len(standings):
        worse = standings[index + 1]
        yield (
            f"{ABOVE}{sanitize_line(worse.candidate.proposal.candidate)}: "
            f"{_describe_difference(standings[index], worse)}."
        )


def _describe_difference(standing: _Standing, other: _Standing) -> str:
    """Describe the criterion that decides between two neighbours, from the side of `standing`."""
    for criterion, own_value, other_value in zip(
        CRITERIA, standing.values, other.values, strict=True
    ):
        if own_value != other_value:
            own_text, other_text = (
                criterion.format_value(own_value),
                criterion.format_value(other_value),
            )
            return f"{criterion.label}: {own_text} against {other_text}"
    return (
        "the same answer"
        if standing.answer == other.answer
        else "level on everything; a hash of the answers decides"
    )
