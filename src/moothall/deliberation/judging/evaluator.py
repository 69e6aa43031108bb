"""Evaluation of candidates: their checks run again on clean checkouts, outside the reach of their
authors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from moothall.deliberation.event_writer import EventWriter
from moothall.deliberation.judging.author_tests import AuthorTests
from moothall.deliberation.judging.clean_runs import CheckRuns, CleanCheckoutRunner
from moothall.deliberation.judging.further_runs import (
    MAX_RERUN_CASES,
    MAX_RERUN_MS,
    BaseFailures,
    CanaryResults,
    FurtherRuns,
)
from moothall.deliberation.judging.hidden import (
    is_hidden,
    visible_candidate,
    with_hidden_checks,
    without_hidden,
)
from moothall.deliberation.prompts.repository_context import looks_like_test
from moothall.domain.codec import dump
from moothall.domain.evidence import (
    CANARY,
    FAILED_OUTCOMES,
    HIDDEN_CASE,
    OWN_TESTS,
    SECRETS,
    UNBELIEVED,
    CheckRun,
    Evidence,
    Verdict,
)
from moothall.domain.ids import digest
from moothall.domain.proposal import Assessment, Candidate, Proposal
from moothall.domain.repository import Prepared
from moothall.domain.text import clip, scrub
from moothall.errors import NotFound
from moothall.ranking import assess, changed_files, passes_acceptance_checks, rank
from moothall.ranking.assess import is_silent
from moothall.ranking.criteria import format_counts
from moothall.ranking.diffs import (
    change_digest,
    changes_only_wording,
    existing_code_files,
    normalize_change,
)
from moothall.ranking.screening import find_joined_secrets, find_suspicious_lines
from moothall.ranking.test_cases import concerns_change, find_altered_examples, find_test_file
from moothall.sandbox_runtime.cases import WRITTEN

_OUTPUT_CHARS = 8000
_MAX_OWN_FAILING = 20  # named failing cases of an author's own tests
_CANARY_NOT_REPORTED = (
    "its runner did not report a test that must fail, so its report is not believed"
)
_MAX_CASE_OUTPUTS = 4  # cases whose output is shown


@dataclass(slots=True)
class _Judgement:
    """The runs of a proposal's checks, and what is known about them so far.

    flaky: cases that are no evidence.
    unrelated: fixed cases that do not concern the change.
    confirmed: the deciding cases ran again, and so did the canaries.
    """

    proposal: Proposal
    runs: Mapping[str, CheckRun]
    flaky: set[str]
    applies: bool
    assessment: Assessment = field(default_factory=lambda: Assessment(applies=False))
    unrelated: Collection[str] = ()
    canaries: CanaryResults = field(default_factory=CanaryResults)
    confirmed: bool = False


class Evaluator:
    """Evaluates the candidates of one deliberation. Each distinct diff is evaluated once.

    To confirm a candidate means to run its deciding cases again. One that fails an acceptance check
    is confirmed at once, since it may fail by chance. One that passes them waits: `confirm` is
    called if it ranks first when that matters, and publishes its evidence. `publish_unconfirmed`
    publishes that of the others at the end.

    redact: removes secrets from a text.
    base_failures: the failures that earlier deliberations confirmed on the same base.
    """

    def __init__(
        self,
        runner: CleanCheckoutRunner,
        facts: EventWriter,
        redact: Callable[[str], str] = scrub,
        base_failures: BaseFailures | None = None,
    ) -> None:
        prepared, hidden = with_hidden_checks(runner.prepared)
        runner = self._runner = replace(runner, prepared=prepared, hidden=hidden)
        self._redact = redact
        self._prepared = prepared
        self._facts = facts
        self._author_tests = AuthorTests(runner, facts)
        self._locks: dict[str, asyncio.Lock] = {}
        self._assessments: dict[str, Assessment] = {}
        self._further = FurtherRuns(runner, prepared, base_failures or BaseFailures())
        self._waiting: dict[str, _Judgement] = {}
        self._confirmed: dict[str, tuple[_Judgement, tuple[str, ...]]] = {}
        """By diff, its judgement, and the cases that had passed once before it was confirmed."""
        self._first_evidence: dict[str, tuple[Evidence, ...]] = {}
        self._details: dict[str, Mapping[str, str]] = {}
        self._altered_examples: dict[str, Sequence[str]] = {}

    async def evaluate(self, proposal: Proposal, unredacted: str = "") -> Candidate:
        """Evaluate a proposal on a clean checkout. Publish the results unless it waits.

        unredacted: the diff before secrets were removed from it, if that changed it.
        """
        key = digest(proposal.diff)
        self._runner.store_unredacted(proposal.diff, unredacted or proposal.diff)
        async with self._locks.setdefault(key, asyncio.Lock()):
            if key not in self._assessments:
                self._assessments[key] = await self._assess_diff(proposal, key)
                for confirmed_key in [*self._confirmed]:
                    await self._share_confirmation(confirmed_key, key)
        evaluated = Candidate(proposal, self._assessments[key], details=self._details.get(key, {}))
        if evaluated.assessment.confirmed:
            await self._publish_assessment(evaluated)
        return evaluated

    async def confirm(self, diff: str, judged: Sequence[Candidate]) -> tuple[Candidate, ...]:
        """Run the deciding cases of a waiting diff again. Return its candidates with the results,
        and publish these. Candidates that make the same change of the code share the runs.
        """
        key = digest(diff)
        keys = {key}
        async with self._locks.setdefault(key, asyncio.Lock()):
            judgement = self._waiting.get(key)
            if judgement is not None:
                passed_once = judgement.assessment.fixed
                await self._confirm_cases(judgement)
                self._confirmed[key] = (judgement, passed_once)
                self._assessments[key] = await self._complete_assessment(judgement, key)
                self._waiting.pop(key, None)
                for other_key in [*self._waiting]:
                    if await self._share_confirmation(key, other_key):
                        keys.add(other_key)
        confirmed = []
        for candidate in judged:
            key = digest(candidate.proposal.diff)
            if key not in keys or candidate.assessment.confirmed:
                continue
            assessment = self._assessments[key]
            await self._publish_assessment(Candidate(candidate.proposal, assessment))
            # Other parts have added and published evidence of their own.
            published_evidence = self._first_evidence[key]
            further_evidence = tuple(
                item for item in candidate.assessment.evidence if item not in published_evidence
            )
            assessment = replace(assessment, evidence=(*assessment.evidence, *further_evidence))
            confirmed.append(
                replace(candidate, assessment=assessment, details=self._details.get(key, {}))
            )
        return tuple(confirmed)

    async def _share_confirmation(self, confirmed_key: str, key: str) -> bool:
        """Apply the further runs of a confirmed diff to a waiting one with the same effect on the
        code and the same fixed cases. Return whether they apply.

        They do not apply to a diff with tests of its own, since these could change what a run
        reports.
        """
        confirmed, passed_once = self._confirmed[confirmed_key]
        judgement = self._waiting.get(key)
        if (
            judgement is None
            or key not in self._assessments
            or judgement.proposal.own_tests
            or changed_files(judgement.proposal.diff) != changed_files(confirmed.proposal.diff)
            or self._assessments[key].change != self._assessments[confirmed_key].change
            or judgement.assessment.fixed != passed_once
        ):
            return False
        del self._waiting[key]
        judgement.runs = {
            **judgement.runs,
            **{check: run for check, run in confirmed.runs.items() if run.status == UNBELIEVED},
        }
        judgement.flaky |= confirmed.flaky
        judgement.canaries, judgement.confirmed = confirmed.canaries, True
        self._assess_runs(judgement)
        self._assessments[key] = await self._complete_assessment(judgement, key)
        return True

    async def confirm_first(self, candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
        """Confirm the candidate that ranks first. If another one ranks first then, confirm that.
        Return all candidates.
        """
        updated = {candidate.proposal.candidate: candidate for candidate in candidates}
        while updated:
            best_ranked = rank(tuple(updated.values()))[0]
            winner = updated[best_ranked.candidate]
            if winner.assessment.confirmed or not best_ranked.passed_gates:
                break
            confirmed = await self.confirm(winner.proposal.diff, tuple(updated.values()))
            updated |= {candidate.proposal.candidate: candidate for candidate in confirmed}
        return tuple(updated.values())

    async def publish_unconfirmed(self, judged: Sequence[Candidate]) -> None:
        """Publish the evidence of the candidates that are not confirmed."""
        for candidate in judged:
            if not candidate.assessment.confirmed:
                assessment = self._assessments[digest(candidate.proposal.diff)]
                await self._publish_assessment(Candidate(candidate.proposal, assessment))

    async def _assess_diff(self, proposal: Proposal, key: str) -> Assessment:
        await self._run_hidden_on_base()
        self._altered_examples[proposal.diff] = find_altered_examples(
            self._runner.unredact(proposal.diff), await self._read_changed_code(proposal.diff)
        )
        judgement = await self._run_all_checks(proposal, key)
        await self._exclude_unrelated(judgement)
        if passes_acceptance_checks(Candidate(proposal, judgement.assessment)):
            self._waiting[key] = judgement
        else:
            await self._confirm_cases(judgement)
        assessment = await self._complete_assessment(judgement, key)
        self._first_evidence[key] = assessment.evidence
        return assessment

    async def _confirm_cases(self, judgement: _Judgement) -> None:
        """Run the deciding cases again, on the candidate and on the base."""
        fixed, runs = judgement.assessment.fixed, judgement.runs
        async with asyncio.TaskGroup() as group:
            group.create_task(self._further.find_passing_on_base(fixed, runs))
            judgement.canaries = await self._run_deciding_cases_again(judgement)
        if failing_on_base := await self._further.find_failing_on_base(
            judgement.assessment.regressions
        ):
            judgement.flaky |= failing_on_base
            self._assess_runs(judgement)
        await self._exclude_passing_on_base(judgement)
        judgement.confirmed = True

    async def _complete_assessment(self, judgement: _Judgement, key: str) -> Assessment:
        """Return the assessment with the results of the author's tests and of static analysis."""
        proposal, own_failing = judgement.proposal, list[str]()
        if runs_with_own_tests := await self._run_own_tests(proposal, judgement.runs, own_failing):
            fixed = {*judgement.assessment.fixed}
            judgement = replace(judgement, runs=runs_with_own_tests)
            self._assess_runs(judgement)
            if not fixed.issuperset(judgement.assessment.fixed):
                await self._exclude_unrelated(judgement)
                await self._exclude_passing_on_base(judgement)
        assessment = replace(judgement.assessment, confirmed=judgement.confirmed)
        if judgement.applies:
            assessment = replace(
                assessment,
                evidence=(
                    *assessment.evidence,
                    *await self._other_evidence(proposal, judgement.canaries, own_failing),
                ),
            )
            assessment = await self._analyze_diff(
                proposal,
                assessment,
                _written_test_data(judgement.runs) - _written_test_data(self._prepared.runs),
            )
        failing_cases = {
            *assessment.regressions,
            *(case for evidence in assessment.evidence for case in evidence.red),
        }
        self._details[key] = {
            case: output
            for check, run in judgement.runs.items()
            for case, output in run.details.items()
            if case in failing_cases and not is_hidden(check)
        }
        return assessment

    async def _run_all_checks(self, proposal: Proposal, key: str) -> _Judgement:
        """Run all checks, and those that ran no test once more."""
        all_checks = dict.fromkeys(self._prepared.base.profile.checks, ())
        check_runs = (
            await self._runner.run_checks(all_checks, "check", key[:12], diff=proposal.diff)
            if proposal.diff.strip()
            else CheckRuns({}, refused=True)
        )
        judgement = _Judgement(
            proposal,
            await self._repeat_silent_checks(check_runs.runs, proposal.diff),
            {*self._prepared.flaky},
            applies=not check_runs.refused,
        )
        self._assess_runs(judgement)
        if checks_with_missing_cases := _find_checks_with_missing_cases(
            judgement.assessment, judgement.runs, self._prepared
        ):
            judgement.flaky |= {*await self._further.find_unstable_cases(checks_with_missing_cases)}
            self._assess_runs(judgement)
        return judgement

    async def _run_deciding_cases_again(self, judgement: _Judgement) -> CanaryResults:
        """Run the deciding cases twice more, alone and with canaries. Cases that differ are flaky.
        Checks whose runner reports no canary are not believed.
        """
        diff, runs = judgement.proposal.diff, judgement.runs
        deciding = _deciding_cases(judgement.assessment, runs, self._prepared)
        canaries = CanaryResults()
        async with asyncio.TaskGroup() as group:
            flaky = group.create_task(self._further.find_flaky(diff, runs, deciding))
            if judgement.applies:
                canaries = await self._further.run_canaries(
                    diff, runs, deciding, judgement.assessment
                )
        differing, differing_alone = flaky.result()
        # A case that fails alone each time depends on earlier cases, so a run of it alone is no
        # evidence.
        differing |= canaries.differing - differing_alone
        if differing or canaries.silent:
            judgement.flaky |= differing
            judgement.runs = {
                **judgement.runs,
                **{
                    check: CheckRun(
                        check, Verdict.MISSING, output=_CANARY_NOT_REPORTED, status=UNBELIEVED
                    )
                    for check in canaries.silent
                },
            }
            self._assess_runs(judgement)
        return canaries

    async def _exclude_unrelated(self, judgement: _Judgement) -> None:
        """Exclude fixed cases that do not concern the change, and those that are known to pass on
        the base sometimes.
        """
        fixed = judgement.assessment.fixed
        passing_on_base = self._further.known_passing_on_base(fixed)
        unrelated = await self._find_unrelated(fixed, changed_files(judgement.proposal.diff))
        if passing_on_base or unrelated:
            judgement.flaky |= passing_on_base
            judgement.unrelated = {*judgement.unrelated, *unrelated}
            self._assess_runs(judgement)

    async def _exclude_passing_on_base(self, judgement: _Judgement) -> None:
        """Exclude fixed cases that pass in one of two further runs on the base."""
        if passing_on_base := await self._further.find_passing_on_base(
            judgement.assessment.fixed, judgement.runs
        ):
            judgement.flaky |= passing_on_base
            self._assess_runs(judgement)

    async def _run_hidden_on_base(self) -> None:
        """Run the hidden tests on the unchanged base, once."""
        async with self._further.base_lock:
            hidden_checks = {
                check: () for check in self._runner.hidden.paths if check not in self._prepared.runs
            }
            if not hidden_checks:
                return
            runs = (await self._runner.run_checks(hidden_checks, "base", judged=False)).runs
            missing = {check: CheckRun(check, Verdict.MISSING) for check in hidden_checks}
            self._prepared = self._further.prepared = replace(
                self._prepared, runs={**self._prepared.runs, **missing, **runs}
            )

    async def _other_evidence(
        self, proposal: Proposal, canaries: CanaryResults, failing: Sequence[str]
    ) -> list[Evidence]:
        """Return evidence from the author's own tests, and about canaries that could not be placed.

        failing: the author's new cases that fail with its own change.
        """
        evidence = []
        if await self._author_tests.find_paths(proposal):
            own_evidence = (await self._author_tests.validate(proposal)).evidence
            evidence.append(
                replace(own_evidence, failed=len(failing), red=tuple(failing[:_MAX_OWN_FAILING]))
            )
        if canaries.missing:
            reason = self._explain_missing_canary(canaries.missing)
            evidence.append(Evidence(CANARY, Verdict.MISSING, why=reason))
        return evidence

    def _explain_missing_canary(self, checks: Sequence[str]) -> str:
        base_runs, names = self._prepared.runs, ", ".join(checks)
        if all(
            base_runs[check].duration_ms > MAX_RERUN_MS for check in checks if check in base_runs
        ):
            return (
                f"{names} took longer than {MAX_RERUN_MS // 1000} s on the base, so no test that "
                "must fail was run with it"
            )
        return (
            f"No test that must fail could be placed in {names}: what its runner reports is "
            "believed"
        )

    async def _repeat_silent_checks(
        self, runs: Mapping[str, CheckRun], diff: str
    ) -> Mapping[str, CheckRun]:
        """Run checks again that ran no test at all.

        That is an error of the run more often than of the patch.
        """
        silent = {
            check: ()
            for check, run in runs.items()
            if is_silent(self._prepared.runs.get(check), run)
        }
        repeated = (
            (
                await self._runner.run_checks(
                    silent, "check", digest(diff)[:12], "again", diff=diff
                )
            ).runs
            if silent
            else {}
        )
        return {**runs, **repeated}

    async def _find_unrelated(self, fixed: Sequence[str], changed: Sequence[str]) -> set[str]:
        """Return the fixed cases that concern neither the changed files nor the task."""
        test_files = [path for path in self._prepared.files if looks_like_test(path)]
        changed_code_files = [path for path in changed if not looks_like_test(path)]
        base_outputs = {
            case: text for run in self._prepared.runs.values() for case, text in run.details.items()
        }
        unrelated = set()
        for case in fixed:
            if case.startswith(HIDDEN_CASE):
                continue  # the caller chose it
            path = find_test_file(case, test_files)
            text = await self._runner.read_base_text(path) if path else ""
            if not concerns_change(
                case,
                text,
                base_outputs.get(case, ""),
                changed_code_files,
                self._facts.deliberation.description,
            ):
                unrelated.add(case)
        return unrelated

    async def _analyze_diff(
        self, proposal: Proposal, assessment: Assessment, written_paths: Iterable[str]
    ) -> Assessment:
        """Add the results of static analysis: suspicious lines, joined secrets and the normalized
        change.

        written_paths: test data that was written during the runs and is not on the base.
        """
        diff, own_tests = self._runner.unredact(proposal.diff), proposal.own_tests
        base_texts = await self._read_changed_code(proposal.diff)
        change = normalize_change(diff, base_texts, own_tests)
        secrets = find_joined_secrets(
            diff,
            base_texts,
            (path for path in changed_files(diff) if path in own_tests or looks_like_test(path)),
            self._redact,
        )
        verdict = Verdict.FAILED if secrets.certain else Verdict.PASSED
        secrets_evidence = Evidence(
            SECRETS, verdict, failed=len(secrets.certain), look=secrets.certain or secrets.doubtful
        )
        return replace(
            assessment,
            evidence=(*assessment.evidence, *([secrets_evidence] if secrets_evidence.look else [])),
            look=(
                *find_suspicious_lines(diff, own_tests),
                *(f"{path}:1: {WRITTEN}" for path in sorted(written_paths)),
            ),
            change=change_digest(change),
            # A change of documentation alone is a usual pull request.
            idle=not self._facts.deliberation.judges
            and changes_only_wording(diff, change, self._facts.deliberation.description),
        )

    async def _read_changed_code(self, diff: str) -> dict[str, str]:
        """Return the base texts of the code files that a diff changes."""
        base_texts: dict[str, str] = {}
        for path in existing_code_files(self._runner.unredact(diff)):
            with suppress(NotFound):
                base_texts[path] = await self._runner.read_base_file(path)
        return base_texts

    async def _run_own_tests(
        self, proposal: Proposal, runs: Mapping[str, CheckRun], failing: list[str]
    ) -> dict[str, CheckRun]:
        """Return the runs with the author's new cases that do not fail; {} if it brings no tests.
        Append the failing ones to `failing`.

        The author's tests are left out of the proving runs, since they could manipulate these. A
        failing test rejects nothing: a wrong test says little about the author's change.
        """
        joined_runs = dict(runs)
        test_paths = await self._author_tests.find_paths(proposal)
        for check, paths in test_paths.items():
            run = runs.get(check)
            if run is None or run.status != "success":
                continue
            known_cases = self._prepared.runs[check].cases.keys() | run.cases.keys()
            own_run = await self._author_tests.run_own_tests(proposal, check, paths)
            new = {
                case: outcome for case, outcome in own_run.cases.items() if case not in known_cases
            }
            failing += [case for case, outcome in new.items() if outcome in FAILED_OUTCOMES]
            joined_runs[check] = replace(
                run,
                cases={
                    **run.cases,
                    **{
                        case: outcome
                        for case, outcome in new.items()
                        if outcome not in FAILED_OUTCOMES
                    },
                },
                details={
                    **run.details,
                    **{case: output for case, output in own_run.details.items() if case in new},
                },
            )
        return joined_runs if test_paths else {}

    def _assess_runs(self, judgement: _Judgement) -> None:
        """Assess the runs as they are known now."""
        proposal = judgement.proposal
        judgement.assessment = assess(
            self._prepared.runs,
            judgement.runs,
            self._prepared.base.profile,
            own_tests=proposal.own_tests,
            applies=judgement.applies,
            flaky=sorted(judgement.flaky),
            changed=changed_files(proposal.diff),
            altered=self._altered_examples.get(proposal.diff, ()),
            task=self._facts.deliberation.description,
            unrelated=judgement.unrelated,
        )

    async def _publish_assessment(self, evaluated: Candidate) -> None:
        assessment, proposal = evaluated.assessment, evaluated.proposal
        applies = Verdict.PASSED if assessment.applies else Verdict.FAILED
        proven = assessment.proven and assessment.confirmed
        summary = Evidence("applies", applies, proven=proven, look=assessment.look)
        assessment_data = {
            name: value for name, value in dump(assessment).items() if name != "evidence"
        }
        await self._facts.publish_evidence(proposal, summary, "applies", assessment=assessment_data)
        for evidence in assessment.evidence:
            await self._facts.publish_evidence(
                proposal, replace(evidence, output=clip(evidence.output, _OUTPUT_CHARS))
            )

    @property
    def author_tests(self) -> AuthorTests:
        """The runner of tests written by seats and agents."""
        return self._author_tests

    async def find_cases_passing_with_own_tests(
        self, author: Proposal, lost_cases: Collection[str]
    ) -> list[str]:
        """Return the lost cases that pass on the author's answer with its own version of the test
        files.
        """
        passing: list[str] = []
        for check, paths in (await self._author_tests.find_paths(author)).items():
            own_run = await self._author_tests.run_own_tests(author, check, paths)
            passing += [case for case in lost_cases if own_run.cases.get(case) == "passed"]
        return passing

    def unredact(self, diff: str) -> str:
        """Return a diff as it was before secrets were removed from it."""
        return self._runner.unredact(diff)

    async def find_cases_passing_on_base(self, author: Proposal) -> tuple[tuple[str, ...], str]:
        """Return an author's new cases that pass on the unchanged base, and the reason if there are
        none.
        """
        return await self._author_tests.find_cases_passing_on_base(author)

    async def find_test_authors(self, evaluated: Sequence[Candidate]) -> tuple[Proposal, ...]:
        """Return the latest proposal of each seat whose tests count."""
        latest_by_seat = {
            candidate.proposal.seat: candidate.proposal
            for candidate in evaluated
            if candidate.assessment.applies
            and await self._author_tests.find_paths(candidate.proposal)
        }
        return tuple(
            [
                author
                for author in latest_by_seat.values()
                if (await self._author_tests.validate(author)).cases
            ]
        )

    async def run_cross_tests(
        self, evaluated: Sequence[Candidate], excluded_seats: Collection[str] = ()
    ) -> tuple[Candidate, ...]:
        """Run each author's tests on the candidates of other seats that pass the acceptance checks.

        excluded_seats: seats whose tests do not count.
        """
        if not _needs_cross_tests(evaluated):
            return tuple(evaluated)
        proposals = [
            candidate.proposal for candidate in evaluated if passes_acceptance_checks(candidate)
        ]
        authors = [
            author
            for author in await self.find_test_authors(evaluated)
            if author.seat not in excluded_seats
        ]
        votes = await self._author_tests.run_cross_tests(authors, proposals)
        return tuple(
            replace(candidate, cross=votes.get(candidate.proposal.candidate, ()))
            for candidate in evaluated
        )


def solves(candidate: Candidate) -> bool:
    """True if the author can see nothing left to repair: the acceptance checks and its own tests
    pass, and no failing case concerns the task.
    """
    visible = visible_candidate(candidate)
    return (
        not visible.own_failing
        and not visible.assessment.unsolved
        and passes_acceptance_checks(visible)
    )


def _find_checks_with_missing_cases(
    assessment: Assessment, runs: Mapping[str, CheckRun], prepared: Prepared
) -> tuple[str, ...]:
    """Return the required checks that completed but lack cases that passed on the base."""
    lost_cases = set(assessment.regressions)
    return tuple(
        name
        for name, run in runs.items()
        if name in assessment.required
        and run.cases
        and run.status == "success"
        and lost_cases & (prepared.runs[name].cases.keys() - run.cases.keys())
    )


def _deciding_cases(
    assessment: Assessment, runs: Mapping[str, CheckRun], prepared: Prepared
) -> dict[str, tuple[str, ...]]:
    """Return the deciding cases by check: regressions, new failures and proving cases.

    Only checks that are cheap to repeat are included.
    """
    deciding = {
        *assessment.regressions,
        *assessment.fixed,
        *(case for evidence in assessment.evidence for case in evidence.red),
    }
    cases = {
        name: tuple(sorted(deciding & run.cases.keys()))
        for name, run in runs.items()
        if name in assessment.required
    }
    return {
        name: names
        for name, names in cases.items()
        if names
        and len(names) <= MAX_RERUN_CASES
        and runs[name].status == "success"
        and prepared.runs[name].duration_ms <= MAX_RERUN_MS
    }


def _written_test_data(runs: Mapping[str, CheckRun]) -> frozenset[str]:
    """Return the test data that was written during these runs."""
    return frozenset(
        case for run in runs.values() for case, output in run.details.items() if output == WRITTEN
    )


def _needs_cross_tests(evaluated: Sequence[Candidate]) -> bool:
    """True if tests of other seats can change the result: candidates compete, or one is
    not proven.
    """
    passing = [candidate for candidate in evaluated if passes_acceptance_checks(candidate)]
    return len({candidate.proposal.diff for candidate in passing}) > 1 or any(
        not candidate.assessment.proven for candidate in passing
    )


def format_check_results(evaluated: Candidate, base_runs: Mapping[str, CheckRun]) -> str:
    """Format the check results of a candidate for its author or a reviewer, without names
    of seats.
    """
    assessment = without_hidden(evaluated.assessment)
    lines = (
        [] if assessment.applies else ["The patch is empty or does not apply on a clean checkout."]
    )
    if assessment.idle:
        lines.append("The patch changes comments, docstrings or formatting alone.")
    for evidence in assessment.evidence:
        lines.append(
            f"{evidence.check}: {evidence.verdict}{format_counts(evidence)}"
            f"{': ' if evidence.red else ''}{', '.join(evidence.red[:10])}"
            f"{f': {evidence.why}' if evidence.check == OWN_TESTS and evidence.why else ''}"
        )
        if evidence.red_before:
            lines.append(f"Failed before and still fails: {', '.join(evidence.red_before[:10])}")
        if evidence.verdict is not Verdict.PASSED and evidence.output and not evaluated.details:
            lines.append(clip(evidence.output, 1500))
    if assessment.regressions:
        lines.append(f"Passed before and not any more: {', '.join(assessment.regressions[:10])}")
    lines += [
        f"{case}:\n{clip(output.strip(), 1500)}"
        for case, output in list(evaluated.details.items())[:_MAX_CASE_OUTPUTS]
    ]
    if any(
        outcome in FAILED_OUTCOMES for run in base_runs.values() for outcome in run.cases.values()
    ):
        lines.append(
            "A test that failed before passes now."
            if assessment.proven
            else "No test that failed before passes now."
        )
    if evaluated.cross:
        lines.append(
            f"Passes the tests of {sum(run.passed for run in evaluated.cross)} of "
            f"{len(evaluated.cross)} colleagues."
        )
    return "\n".join(lines)
