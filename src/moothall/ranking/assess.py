"""Comparison of the check runs of a candidate with those of the unchanged base, case by case.

A case that passed on the base must still pass, and a new case must pass. A case that failed on the
base may still fail. A check that reports no cases counts as one case with its own name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet

from moothall.domain.evidence import FAILED_OUTCOMES, UNBELIEVED, CheckRun, Evidence, Verdict
from moothall.domain.ids import digest
from moothall.domain.proposal import Assessment
from moothall.domain.repository import Profile
from moothall.ranking.test_cases import containers, is_example_of, may_be_own, may_be_same_file

HIT_LIMIT = "hit the limit of"
"""The text in the details of a case that was stopped at its time limit."""
_MAX_NAMED_CASES = 20
_MAX_FIXED_CASES = 200
_VARYING = re.compile(r"0x[0-9a-f]+|\d+")
_WORD = re.compile(r"\w+")
_LAST_PART = re.compile(r"::| > |[./]")
_COMMON_STEMS = frozenset(
    {
        "index",
        "main",
        "lib",
        "mod",
        "test",
        "tests",
        "init",
        "__init__",
        "src",
        "spec",
        "util",
        "conftest",
    }
)
_TASK_ABOUT_TESTS = re.compile(
    r"\b(?:tests?|specs?|suite|checks?)\b[^.\n]{0,60}\b(?:fail\w*|pass\w*|red|green|broken|breaks?)\b"
    r"|\b(?:fail\w*|red|broken)\b[^.\n]{0,40}\b(?:tests?|specs?|suite|checks?)\b",
    re.IGNORECASE,
)
_MIN_NAME_CHARS = 3
_MAX_READ_CHARS = 20_000


def is_done(assessment: Assessment) -> bool:
    """True if the candidate is proven, and no case in the files or packages of its fixed cases
    still fails.
    """
    fixed_containers = {
        container for case in assessment.fixed for container in containers(case)[-1:]
    }
    return assessment.proven and not any(
        fixed_containers & set(containers(case)) for case in assessment.still_red
    )


def assess(
    prepared_runs: Mapping[str, CheckRun],
    candidate_runs: Mapping[str, CheckRun],
    profile: Profile,
    own_tests: Sequence[str],
    applies: bool,  # noqa: FBT001 - callers pass it by name
    *,
    flaky: Sequence[str] = (),
    changed: Sequence[str] = (),
    altered: Sequence[str] = (),
    task: str = "",
    unrelated: Collection[str] = (),
) -> Assessment:
    """Compare a candidate's runs on a clean checkout with those of the base.

    own_tests: paths of test files that the author added or changed. Their cases prove nothing.
    applies: the patch applies. If not, all its runs are missing.
    flaky: cases that differ between two runs of the same tree. They are no evidence either way.
    changed: paths that the candidate changes.
    altered: files whose documentation examples changed. Their cases prove nothing.
    task: the task's text.
    unrelated: cases that prove nothing, because they do not concern the change.

    A check of an unproven candidate also fails if cases that failed on the base still fail and
    concern the task. The acceptance checks count this against the candidate only if the task asks
    for tests to pass (`missed`).
    """
    runs = candidate_runs if applies else {}
    ignored_cases = frozenset((*profile.known_failures, *flaky))
    names = (*profile.checks, *sorted(set(runs) - set(profile.checks)))
    required = tuple(name for name in profile.checks if name not in profile.advisory)
    comparisons = [
        _CheckComparison(name, prepared_runs.get(name), runs.get(name), ignored_cases, changed)
        for name in names
    ]
    decisive = [comparison for comparison in comparisons if comparison.name not in profile.advisory]
    fixed = _fixed_cases(decisive, own_tests, altered, unrelated)
    mandatory = [comparison for comparison in comparisons if comparison.name in required]
    nothing_passed = not any(comparison.has_passing for comparison in mandatory)
    proven = any(fixed.values())
    concerned = {item.name: item.concerned_cases(changed, task) for item in mandatory if not proven}
    undone = {name for name, cases in concerned.items() if nothing_passed or cases}
    unsolved = [case for cases in concerned.values() for case in cases]
    regressions = {case for comparison in mandatory for case in comparison.lost}
    still_failing = {case for comparison in mandatory for case in comparison.still_failing}
    return Assessment(
        applies=applies,
        required=required,
        regressions=tuple(sorted(regressions)) if applies else (),
        proven=proven,
        behaviour=_behaviour_digest(prepared_runs, runs, required, own_tests, ignored_cases),
        evidence=_create_evidence(comparisons, fixed, undone, flaky),
        fixed=tuple(sorted(case for cases in fixed.values() for case in cases))[:_MAX_FIXED_CASES],
        still_red=tuple(sorted(still_failing)),
        unrelated=tuple(sorted(unrelated)),
        unsolved=tuple(unsolved),
        missed=any(asks_for(case, task) for case in unsolved),
    )


def _create_evidence(
    comparisons: Sequence[_CheckComparison],
    fixed: Mapping[str, Collection[str]],
    undone: Collection[str],
    flaky: Sequence[str],
) -> tuple[Evidence, ...]:
    return tuple(
        comparison.evidence(
            proven=bool(fixed.get(comparison.name)),
            undone=comparison.name in undone,
            flaky=frozenset(flaky),
        )
        for comparison in comparisons
    )


def _fixed_cases(
    comparisons: Sequence[_CheckComparison],
    own_tests: Sequence[str],
    altered: Sequence[str],
    unrelated: Collection[str],
) -> Mapping[str, Sequence[str]]:
    """Return the cases that prove the candidate, by check."""
    return {
        comparison.name: [
            case for case in comparison.fixed_cases(own_tests, altered) if case not in unrelated
        ]
        for comparison in comparisons
    }


def effective_cases(run: CheckRun) -> Mapping[str, str]:
    """Return the cases of a run. A check that reports none counts as one case with its own name,
    unless it did not run.
    """
    if run.cases or run.verdict is Verdict.MISSING:
        return run.cases
    return {run.check: str(run.verdict) if run.status == "success" else "errored"}


def differing_cases(first_run: CheckRun, second_run: CheckRun) -> set[str]:
    """Return the cases whose results differ between two runs of the same tree.

    A run that was stopped gives no results.
    """
    if second_run.status != "success" or first_run.status != "success":
        return set()
    first_cases, second_cases = effective_cases(first_run), effective_cases(second_run)
    return {
        case
        for case in first_cases.keys() & second_cases.keys()
        if (first_cases[case] in FAILED_OUTCOMES) != (second_cases[case] in FAILED_OUTCOMES)
    }


def unmatched_cases(first_run: CheckRun, second_run: CheckRun) -> set[str]:
    """Return the cases that only one of two runs of the unchanged base reported, such as names with
    a random number or the time.

    Do not use this for a candidate's runs: its code could end one of them early.
    """
    if (
        first_run.status != "success"
        or second_run.status != "success"
        or not (first_run.cases and second_run.cases)
    ):
        return set()
    return set(first_run.cases.keys() ^ second_run.cases.keys())


class _CheckComparison:
    """The runs of one check on the base and on a candidate."""

    def __init__(
        self,
        name: str,
        base: CheckRun | None,
        run: CheckRun | None,
        ignored_cases: AbstractSet[str],
        changed: Sequence[str],
    ) -> None:
        self.name, self.run = name, run
        self._base = base
        self._ignored_cases = ignored_cases
        self._base_cases = effective_cases(base) if base else {}
        self._cases = effective_cases(run) if run else {}
        self.has_passing = any(outcome == "passed" for outcome in self._cases.values())
        failing = [
            case
            for case, outcome in self._cases.items()
            if outcome in FAILED_OUTCOMES and case not in ignored_cases
        ]
        self.still_failing = [
            case for case in failing if self._base_cases.get(case) in FAILED_OUTCOMES
        ]
        self.new_failures = [
            case for case in failing if self._base_cases.get(case) not in FAILED_OUTCOMES
        ]
        self._findings = _new_findings(base, run, changed)
        if run and run.findings:
            self.still_failing, self.new_failures = [], []  # a linter is judged by its findings

    @property
    def lost(self) -> list[str]:
        """The cases that passed on the base and now fail or are missing.

        A run that was stopped, or that ran no test, gives no result for missing cases.
        """
        base_cases = self._base.cases if self._base else {}
        is_complete = self.run is None or (
            self.run.status == "success" and not is_silent(self._base, self.run)
        )
        return [
            case
            for case, outcome in base_cases.items()
            if outcome == "passed"
            and self._cases.get(case) != "passed"
            and case not in self._ignored_cases
            and (is_complete or case in self._cases)
        ]

    def concerned_cases(self, changed: Sequence[str], task: str) -> list[str]:
        """Return the cases that failed on the base, still fail, and concern the change or
        the task.
        """
        base, run = self._base, self.run
        if base is None or run is None:
            return []
        return [
            case
            for case in self.still_failing
            if concerns(case, base.details.get(case, ""), run.details.get(case, ""), changed, task)
        ]

    def fixed_cases(self, own_tests: Sequence[str], altered: Sequence[str] = ()) -> list[str]:
        """Return the cases that failed on the base, pass now, and are not by the author. A linter
        proves nothing.
        """
        base, run = self._base, self.run
        if base is None or run is None or base.findings or run.findings:
            return []
        packages = frozenset(case.partition("::")[0] for case in self._cases)
        return [
            case
            for case, outcome in self._cases.items()
            if outcome == "passed"
            and case not in self._ignored_cases
            and _failed_on_base(base, self._base_cases, case)
            and not _only_faster(base, run, case)
            and not may_be_own(case, own_tests, packages)
            and not is_example_of(case, altered)
        ]

    def evidence(self, *, proven: bool, undone: bool, flaky: AbstractSet[str]) -> Evidence:
        run = self.run
        if run is None:
            return Evidence(check=self.name, verdict=Verdict.MISSING)
        outcomes = list(run.cases.values())
        return Evidence(
            check=self.name,
            verdict=self._verdict_of(run, undone=undone),
            passed=outcomes.count("passed"),
            failed=sum(outcome in FAILED_OUTCOMES for outcome in outcomes),
            skipped=outcomes.count("skipped"),
            duration_ms=run.duration_ms,
            output=run.output,
            proven=proven,
            before=sum(case in run.cases for case in self.still_failing),
            red=tuple((*self.new_failures, *self._findings)[:_MAX_NAMED_CASES]),
            red_before=tuple(self.still_failing[:_MAX_NAMED_CASES]),
            flaky=tuple(sorted(flaky & self._cases.keys())[:_MAX_NAMED_CASES]),
            why=self._explain_stop(run),
        )

    def _explain_stop(self, run: CheckRun) -> str:
        """Return why the run stopped or has no verdict; '' if it completed."""
        if run.status != "success":
            return run.output.partition("\n")[0][:300]
        if is_silent(self._base, run):
            last_line = next(
                (line.strip() for line in reversed(run.output.splitlines()) if line.strip()), ""
            )
            return f"0 tests ran, exit code {run.exit_code}" + (
                f": {last_line}"[:250] if last_line else ""
            )
        return ""

    def _verdict_of(self, run: CheckRun, *, undone: bool) -> Verdict:
        """Return the verdict of a run.

        The exit code alone is not trusted if there are cases, since code under test can exit with
        any code.
        """
        if run.status != "success":
            return Verdict.MISSING if run.status == UNBELIEVED else Verdict.ERRORED
        if run.verdict is Verdict.MISSING or is_silent(self._base, run):
            return Verdict.MISSING
        if run.verdict is Verdict.ERRORED and (
            not self._base or self._base.verdict is not Verdict.ERRORED
        ):
            return Verdict.ERRORED  # it stopped early, unlike on the base
        if self.new_failures or self._findings:
            return Verdict.FAILED
        if run.cases and not self.has_passing:
            return Verdict.FAILED if self.still_failing else Verdict.MISSING
        return Verdict.FAILED if undone and self.still_failing else Verdict.PASSED


def _new_findings(base: CheckRun | None, run: CheckRun | None, changed: Sequence[str]) -> list[str]:
    """Return the findings of a linter that are not on the base. If the linter failed on the base,
    return only those in changed files.
    """
    if run is None or not run.findings:
        return []
    base_findings = Counter(base.findings) if base else Counter[str]()
    new_findings = list((Counter(run.findings) - base_findings).elements())
    if base is None or base.verdict is Verdict.PASSED or not changed:
        return new_findings if run.verdict is not Verdict.PASSED else []
    return [
        line
        for line in new_findings
        if any(may_be_same_file(line.partition(":")[0], path) for path in changed)
    ]


def _failed_on_base(base: CheckRun, base_cases: Mapping[str, str], case: str) -> bool:
    """True if a case failed on the base.

    A test that could not be collected or compiled failed too; the failed case is then its file,
    package or check.
    """
    if case in base_cases:
        return base_cases[case] in FAILED_OUTCOMES
    if not base.cases:
        return base_cases.get(base.check) in FAILED_OUTCOMES
    return any(base_cases.get(container) in FAILED_OUTCOMES for container in containers(case))


def _only_faster(base: CheckRun, run: CheckRun, case: str) -> bool:
    """True if a case was stopped at its limit on the base, and is hardly faster now."""
    base_ms = base.durations.get(case, 0)
    return (
        HIT_LIMIT in base.details.get(case, "")
        and base_ms > 0
        and run.durations.get(case, 0) * 2 > base_ms
    )


def _behaviour_digest(
    base_runs: Mapping[str, CheckRun],
    runs: Mapping[str, CheckRun],
    required: Collection[str],
    own_tests: Sequence[str],
    ignored_cases: AbstractSet[str],
) -> str:
    """Return a digest that is equal for candidates that no shared test distinguishes.

    An author's own new tests are not shared: each author would form a separate cluster. Checks
    without cases, such as linters, and advisory checks do not describe behaviour. Return '' if
    there are no others.
    """
    parts: list[str] = []
    for name in sorted(runs.keys() & set(required)):
        base_cases = base_runs[name].cases if name in base_runs else {}
        packages = frozenset(case.partition("::")[0] for case in runs[name].cases)
        parts += [
            f"{name}/{case}={outcome}"
            for case, outcome in sorted(runs[name].cases.items())
            if case not in ignored_cases
            and (case in base_cases or not may_be_own(case, own_tests, packages))
        ]
    return digest(*parts) if parts else ""


def is_silent(base: CheckRun | None, run: CheckRun | None) -> bool:
    """True if a completed run reports no case, although the base's run did.

    This is an error of the run, or a broken build.
    """
    return bool(
        base
        and base.cases
        and run
        and run.status == "success"
        and not run.cases
        and not run.findings
    )


def asks_for(case: str, task: str) -> bool:
    """True if the task names this test or the function under test (`hello_world` of
    `test_hello_world`), or says that tests fail.
    """
    test_name = _LAST_PART.split(case.partition("[")[0])[-1]
    task_words = set(_WORD.findall(task))
    return bool(_TASK_ABOUT_TESTS.search(task[:_MAX_READ_CHARS])) or (
        len(_strip_test_affixes(test_name)) > _MIN_NAME_CHARS
        and (test_name in task_words or _strip_test_affixes(test_name) in task_words)
    )


def concerns(case: str, before: str, after: str, changed: Sequence[str], task: str = "") -> bool:
    """True if a case that still fails concerns a change of the files `changed`, or the task.

    This holds if its output differs from `before`, if the output or the case's name mentions one of
    the files, if the task names the case, or if the task says that tests fail.
    """
    if _TASK_ABOUT_TESTS.search(task[:_MAX_READ_CHARS]):
        return True
    before, after = before[:_MAX_READ_CHARS], after[:_MAX_READ_CHARS]
    if before and after and _VARYING.sub("", before) != _VARYING.sub("", after):
        return True
    mentioned_words = frozenset(_WORD.findall(f"{case}\n{before}\n{after}"))
    case_words = {
        word for name in _WORD.findall(case) for word in (name, _strip_test_affixes(name))
    }
    for path in changed:
        file_name = path.rpartition("/")[2]
        stem = file_name.partition(".")[0]
        if (
            file_name in before
            or file_name in after
            or (
                len(stem) >= _MIN_NAME_CHARS
                and stem not in _COMMON_STEMS
                and (stem in case_words or _strip_test_affixes(stem) in mentioned_words)
            )
        ):
            return True
    test_name = _LAST_PART.split(case.partition("[")[0])[-1]
    task_words = set(_WORD.findall(task))
    return test_name in task_words or (
        len(_strip_test_affixes(test_name)) > _MIN_NAME_CHARS
        and _strip_test_affixes(test_name) in task_words
    )


def _strip_test_affixes(name: str) -> str:
    """Return a test's name without the prefix or suffix that marks it as a test."""
    return re.sub(r"^(?:test_?|Test|Example|Fuzz)|_?[tT]ests?$", "", name) or name
