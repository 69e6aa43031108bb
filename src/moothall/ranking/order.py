"""The order of candidates: total, deaf to the order in which they come and to their authors' names.

Candidates compare by, in this order: all gates passed (then fewer failed gates); proven; how many
tests that were red on the base are green; whether these agree with the code in a process that sees none of them; how few other authors' tests fail; how little speaks against it on distinguishing
inputs; how many distinct seats behave the same; on how many of these inputs it does what most seats do; mean review, as `opinions` has it; how many
seats make the same of the code; fewer changed lines; a hash of the answer. A candidate about text has neither tests nor size: reviews decide.

An author's tests count where another author agrees with them: a candidate of another seat passes them, or is the same answer.
Tests that fit their own author's answer alone are shown, and count for nobody. Failed tests are counted and not passed ones, since
an author's own tests do not score its candidates: whose tests count would else stand behind one who brought none.

The score shows the same order as one number, as digits of a mixed-radix number do:

    v = (same + 1 / (2 + lines)) / (n + 1)       n: the most seats or authors that could count
    v = (review + v) / 1001                      review in thousandths, 0..1000
    v = (with_most + v) / (most with_most + 1)
    v = (cluster + v) / (n + 1)
    v = (most against - against + v) / (most against + 1)
    v = (n - cross_failed + v) / (n + 1)              cross_failed: authors whose tests fail
    v = (apart + v) / 2
    v = (fixed + v) / (most fixed + 1)
    v = (proven + v) / 2
    score = 0.5 + v / 2                          all gates passed: at least 0.5, proven at least 0.75
    score = (most - failed + v) / (most + 1) / 2 else, below 0.5; `most`: the most failed gates

so each digit outweighs all that follow it; only the hash is not in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from moothall.domain.evidence import COUNTER, SECRETS, Evidence, Verdict
from moothall.domain.ids import digest
from moothall.domain.proposal import Candidate, RankedCandidate
from moothall.ranking.gates import counts, gate_failures, name_cases, plain
from moothall.ranking.opinions import Opinion, opinions

_LINES = 5
_FILE = re.compile(r"(?m)^diff --git (?:\"?a/.*\"? )?\"?b/(.*?)\"?$")


@dataclass(frozen=True, slots=True)
class _Standing:
    """What counts of one candidate. `cross_failed` of `authors` are those whose tests it fails, `uncounted` those whose tests count for nobody.

    An opinion is in thousandths: closer ones are the same.
    """

    candidate: Candidate
    failures: tuple[str, ...]
    proven: bool
    apart: bool
    fixed: int
    cross_failed: int
    against: int
    authors: int
    uncounted: tuple[str, ...]
    cluster: int
    with_most: int
    same: int
    opinion: Opinion
    lines: int
    answer: str

    @property
    def key(self) -> tuple[bool | int | str, ...]:
        """Smaller is better. The last two only tell apart candidates with the very same answer."""
        name = digest(self.answer, self.candidate.proposal.candidate)
        return (
            *(len(self.failures), not self.proven, -self.fixed, not self.apart, self.cross_failed, self.against),
            *(-self.cluster, -self.with_most, -self.opinion.mean, -self.same),
            *(self.lines, self.answer, self.candidate.proposal.revision, name),
        )

    @property
    def tested(self) -> tuple[bool, int, bool, int]:
        """What tests say of it."""
        return (self.proven, self.fixed, self.apart, -self.cross_failed)

    @property
    def evidence(self) -> tuple[tuple[bool, int, bool, int], int, int, int]:
        """What is known without anyone's opinion."""
        return (self.tested, -self.against, self.cluster, self.with_most)


@dataclass(frozen=True, slots=True)
class _Most:
    """The most that a candidate has here of what a score is made of; `radix`: one more than the seats or authors that could count."""

    radix: int
    failures: int
    fixed: int
    against: int
    with_most: int

    @classmethod
    def of(cls, standings: Sequence[_Standing]) -> _Most:
        """Look through all of them."""
        seats = len({item.candidate.proposal.seat for item in standings})
        return cls(
            radix=max([seats, *(item.cross_failed for item in standings)], default=0) + 1,
            failures=max((len(item.failures) for item in standings), default=0),
            fixed=max((item.fixed for item in standings), default=0),
            against=max((item.against for item in standings), default=0),
            with_most=max((item.with_most for item in standings), default=0),
        )


def rank(candidates: Sequence[Candidate]) -> tuple[RankedCandidate, ...]:
    """Return a place for every candidate, best first. The first is the winner if it `passed_gates`."""
    standings = _standings(candidates)
    most = _Most.of(standings)
    return tuple(
        RankedCandidate(
            candidate=item.candidate.proposal.candidate,
            seat=item.candidate.proposal.seat,
            rank=number,
            score=_score(item, most),
            reasons=(*_facts(item, standings), *_neighbours(number - 1, standings)),
            passed_gates=not item.failures,
            proven=item.proven,
        )
        for number, item in enumerate(standings, 1)
    )


def ties(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Return the distinct answers that share the first place on evidence alone; () if there is one or none.

    Of the same answer given twice only one is returned: its reviews count for both.
    """
    passing = [item for item in _standings(candidates) if not item.failures]
    top = max((item.evidence for item in passing), default=None)
    distinct = {item.answer: item.candidate for item in reversed(passing) if item.evidence == top}
    return tuple(reversed(distinct.values())) if len(distinct) > 1 else ()


def rivals(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Return the candidates that tests put first together, where they make different changes of the code; () where they don't."""
    passing = [item for item in _standings(candidates) if not item.failures and not item.candidate.about_text]
    top = max((item.tested for item in passing), default=None)
    first = [item for item in passing if item.tested == top]
    return (
        tuple(item.candidate for item in first)
        if len({item.candidate.assessment.change or item.answer for item in first}) > 1
        else ()
    )


def _standings(candidates: Sequence[Candidate]) -> list[_Standing]:
    failures = [gate_failures(candidate) for candidate in candidates]
    answers = [_answer(candidate) for candidate in candidates]
    thought = opinions(candidates, answers, failures)
    voted = [_votes(candidate) for candidate in candidates]
    alike = [_behaviour(candidate, answer, votes) for candidate, answer, votes in zip(candidates, answers, voted, strict=True)]
    clusters: dict[tuple[str, str, frozenset[str]], set[str]] = {}
    makers: dict[str, set[str]] = {}
    made = [candidate.assessment.change or answer for candidate, answer in zip(candidates, answers, strict=True)]
    for candidate, failed, behaviour, change in zip(candidates, failures, alike, made, strict=True):
        if not failed:
            clusters.setdefault(behaviour, set()).add(candidate.proposal.seat)
            makers.setdefault(change, set()).add(candidate.proposal.seat)
    authors = {author for votes in voted for author in votes}
    agreed = _confirmed_authors(candidates, answers, failures, voted)
    found = [
        _Standing(
            candidate=candidate,
            failures=failed,
            proven=candidate.proven and not candidate.about_text,
            apart=candidate.proven and candidate.apart and not candidate.about_text,
            fixed=0 if candidate.about_text or candidate.assessment.look else len(candidate.assessment.fixed),
            cross_failed=sum(not passed for author, passed in votes.items() if author in agreed),
            against=candidate.inputs.failed if candidate.inputs else 0,
            authors=len(votes.keys() & agreed),
            uncounted=tuple(sorted({*votes, *(authors & {candidate.proposal.seat})} - agreed)),
            cluster=0 if candidate.about_text or failed else len(clusters[behaviour]),
            with_most=candidate.inputs.passed if candidate.inputs else 0,
            same=0 if candidate.about_text or failed else len(makers[change]),
            opinion=thought[answer],
            lines=0 if candidate.about_text else changed_lines(candidate.proposal.diff),
            answer=answer,
        )
        for candidate, failed, answer, votes, behaviour, change in zip(
            *(candidates, failures, answers, voted, alike, made), strict=True
        )
    ]
    return sorted(found, key=lambda item: item.key)


def _counter(candidate: Candidate) -> Evidence | None:
    return next((item for item in candidate.assessment.evidence if item.check == COUNTER), None)


def _answer(candidate: Candidate) -> str:
    return digest(candidate.proposal.content if candidate.about_text else candidate.proposal.diff)


def _votes(candidate: Candidate) -> dict[str, bool]:
    """Author → whether all of its tests passed. One vote an author, none for its own candidate."""
    votes: dict[str, bool] = {}
    for run in () if candidate.about_text else candidate.cross:
        if run.author != candidate.proposal.seat:
            votes[run.author] = votes.get(run.author, True) and run.passed
    return votes


def _behaviour(candidate: Candidate, answer: str, votes: Mapping[str, bool]) -> tuple[str, str, frozenset[str]]:
    """What it does under every check and on every input, and the authors whose tests it fails, whether these count or not."""
    failed = frozenset(author for author, passed in votes.items() if not passed)
    return candidate.assessment.behaviour or answer, candidate.inputs.behaviour if candidate.inputs else "", failed


def _confirmed_authors(
    candidates: Sequence[Candidate],
    answers: Sequence[str],
    failures: Sequence[tuple[str, ...]],
    voted: Sequence[Mapping[str, bool]],
) -> set[str]:
    """Return the authors with whose tests another seat agrees, by an answer that passes the gates and them, or that is the same."""
    found: set[str] = set()
    givers: dict[str, set[str]] = {}
    for candidate, answer, failed, votes in zip(candidates, answers, failures, voted, strict=True):
        if not failed:
            found |= {author for author, passed in votes.items() if passed}
            givers.setdefault(answer, set()).add(candidate.proposal.seat)
    bringing = [(item.proposal.seat, answer) for item, answer in zip(candidates, answers, strict=True) if item.proposal.own_tests]
    return found | {seat for seat, answer in bringing if givers.get(answer, set()) - {seat}}


def changed_files(diff: str) -> tuple[str, ...]:
    """Return the paths that a git diff changes, as they are after it or were before."""
    return tuple(dict.fromkeys(match[1] for match in _FILE.finditer(diff)))


def changed_lines(diff: str) -> int:
    """Return how many lines a git diff adds and removes; a binary patch counts by its own lines."""
    total, counting = 0, ""
    for line in diff.split("\n"):
        if line.startswith("diff --git "):
            counting = ""
        elif line.startswith("@@ "):
            counting = "hunk"
        elif line == "GIT binary patch":
            counting = "binary"
        elif counting == "binary" or (counting == "hunk" and line[:1] in {"+", "-"}):
            total += bool(line)
    return total


def _score(item: _Standing, most: _Most) -> float:
    value = (item.same + 1 / (2 + item.lines)) / most.radix
    value = (item.opinion.mean + value) / 1001
    value = (item.with_most + value) / (most.with_most + 1)
    value = (item.cluster + value) / most.radix
    value = (most.against - item.against + value) / (most.against + 1)
    value = (most.radix - 1 - item.cross_failed + value) / most.radix
    value = (item.apart + value) / 2
    value = (item.fixed + value) / (most.fixed + 1)
    value = (item.proven + value) / 2
    value = 1 + value if not item.failures else (most.failures - len(item.failures) + value) / (most.failures + 1)
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
    if item.authors:
        yield f"Passes the tests of {item.authors - item.cross_failed} of {item.authors} other {'author' if item.authors == 1 else 'authors'}."
    if item.uncounted:
        yield f"No evidence, since they fit their own author's answer alone: the tests of {', '.join(map(plain, item.uncounted))}."
    if item.candidate.inputs:
        yield f"Where no test tells answers apart: {plain(item.candidate.inputs.why, 300)}."
    if item.cluster > 1:
        yield f"{item.cluster} seats behave the same under every check and test; {passed} candidates passed the gates."
    if item.same > 1:
        yield f"{item.same} seats make the same change of the code."
    if item.opinion.reviewers:
        yield _reviews(item)
    yield f"Changes {item.lines} {'line' if item.lines == 1 else 'lines'}."


def _evidence(item: _Standing) -> Iterable[str]:
    for found in item.candidate.assessment.evidence:
        if found.check == SECRETS and found.verdict is Verdict.PASSED:
            yield f"A person should look whether a key or password is hidden at {name_cases(found.look)}."
    counter = _counter(item.candidate)
    if item.proven:
        yield _proof(item.candidate.assessment.fixed)
        if counter is not None:
            yield f"Counter-proof: {plain(counter.why, 300)}."
        if item.apart:
            yield "These tests agree when its code runs in a process of its own, which sees none of them."
    elif look := item.candidate.assessment.look:
        yield f"Unproven: a person should look. It reaches for what judges it, or alters it: {'; '.join(plain(line, 160) for line in look[:_LINES])}."
    elif counter is not None and counter.verdict is not Verdict.MISSING:
        yield f"Unproven: {plain(counter.why, 300)}."
    else:
        yield "Unproven: no test that failed on the base, and that its author did not write, passes."


def _proof(fixed: Sequence[str]) -> str:
    if len(fixed) > 1:
        return (
            f"Proven: {len(fixed)} tests that failed on the base, and that their author did not write, pass: {name_cases(fixed)}."
        )
    name = f": {name_cases(fixed)}" if fixed else ""
    return f"Proven: a test that failed on the base, and that its author did not write, passes{name}."


def _describe_pass(candidate: Candidate) -> str:
    runs = {item.check: item for item in candidate.assessment.evidence}
    said = [
        f"{plain(name)} {'passed' if runs[name].verdict is Verdict.PASSED else 'failed as before'}{counts(runs[name])}"
        for name in dict.fromkeys(candidate.assessment.required)
    ]
    return f"Passes every gate: {'; '.join(['the patch applies', *said, 'nothing that was green is red'])}."


def _reviews(item: _Standing) -> str:
    said = item.opinion
    if not said.reviewers:
        return "Nobody reviewed it: counted as 0.50."
    mean = f"Reviewed at {said.mean / 1000:.2f} by {said.reviewers} {'seat' if said.reviewers == 1 else 'seats'}"
    if not said.doubted:
        return f"{mean}."
    return f"{mean}; weighed down, since their scores hardly tell right from wrong on what is proven: {', '.join(map(plain, said.doubted))}."


def _neighbours(index: int, standings: Sequence[_Standing]) -> Iterable[str]:
    if index > 0:
        better = standings[index - 1]
        yield f"Below {plain(better.candidate.proposal.candidate)}: {_difference(standings[index], better)}."
    if index + 1 < len(standings):
        worse = standings[index + 1]
        yield f"Above {plain(worse.candidate.proposal.candidate)}: {_difference(standings[index], worse)}."


def _difference(item: _Standing, other: _Standing) -> str:
    """Say what decides between two neighbours, from the side of `item`."""
    if len(item.failures) != len(other.failures):
        return f"{_gates(item)}, the other {_gates(other)}"
    if item.proven != other.proven:
        return f"{'proven' if item.proven else 'unproven'}, the other {'proven' if other.proven else 'unproven'}"
    for what, mine, theirs in (
        ("tests made green", item.fixed, other.fixed),
        ("code apart from the tests that agrees", int(item.apart), int(other.apart)),
        ("authors whose tests fail", item.cross_failed, other.cross_failed),
        ("examples broken and crashes", item.against, other.against),
        ("seats that behave the same", item.cluster, other.cluster),
        ("inputs on which it does what most seats do", item.with_most, other.with_most),
        ("reviews", item.opinion.mean / 1000, other.opinion.mean / 1000),
        ("seats with the same change", item.same, other.same),
        ("changed lines", item.lines, other.lines),
    ):
        if mine != theirs:
            return f"{what} {_number(mine)} against {_number(theirs)}"
    return "the same answer" if item.answer == other.answer else "level on everything; a hash of the answers decides"


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.3f}"


def _gates(item: _Standing) -> str:
    failed = len(item.failures)
    return f"fails {failed} {'gate' if failed == 1 else 'gates'}" if failed else "passes every gate"
