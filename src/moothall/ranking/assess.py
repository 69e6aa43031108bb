"""Compare the runs of a candidate's checks with the runs of the untouched base.

Case by case: a case that passed must pass still, and a new case must pass. A case that failed
before may fail still. A check that reports no cases is one case of its own name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet

from moothall.domain.evidence import RED, UNBELIEVED, CheckRun, Evidence, Verdict
from moothall.domain.ids import digest
from moothall.domain.proposal import Assessment
from moothall.domain.repository import Profile
from moothall.ranking.doctests import is_example_of
from moothall.ranking.test_authorship import containers, may_be_own, same_file

HIT_LIMIT = "hit the limit of"
"""What the details of a case say that was stopped at its time limit."""
_NAMED = 20
_FIXED = 200
_VARYING = re.compile(r"0x[0-9a-f]+|\d+")
_WORD = re.compile(r"\w+")
_LAST_PART = re.compile(r"::| > |[./]")
_COMMON = frozenset(
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
_ABOUT_TESTS = re.compile(
    r"\b(?:tests?|specs?|suite|checks?)\b[^.\n]{0,60}\b(?:fail\w*|pass\w*|red|green|broken|breaks?)\b"
    r"|\b(?:fail\w*|red|broken)\b[^.\n]{0,40}\b(?:tests?|specs?|suite|checks?)\b",
    re.IGNORECASE,
)
_SHORTEST = 3
_READ = 20_000


def is_done(found: Assessment) -> bool:
    """Whether it is proven, and nothing beside what it mended is still red: no case of the same
    file or package.
    """
    mended = {container for case in found.fixed for container in containers(case)[-1:]}
    return found.proven and not any(mended & set(containers(case)) for case in found.still_red)


def assess(
    prepared_runs: Mapping[str, CheckRun],
    candidate_runs: Mapping[str, CheckRun],
    profile: Profile,
    own_tests: Sequence[str],
    applies: bool,  # noqa: FBT001 - a fact among facts; callers name it
    *,
    flaky: Sequence[str] = (),
    changed: Sequence[str] = (),
    altered: Sequence[str] = (),
    task: str = "",
    unrelated: Collection[str] = (),
) -> Assessment:
    """Compare a candidate's runs on a clean checkout with the base's.

    `own_tests` are the paths of test files that the author added or changed: what passes in them
    proves nothing. `flaky` are cases that differ between two runs of the same tree: no evidence
    either way. `changed` are the paths that the candidate changes, `altered` those whose
    documentation examples changed and prove nothing, `task` the task's text, `unrelated` cases that
    prove nothing because they do not concern the change. If a patch does not apply, all its runs
    are missing.

    A check of an unproven candidate is failed, too, if cases that failed before fail still and
    concern the task. The acceptance checks count that against it only if the task asks for tests to
    pass (`missed`).
    """
    runs = candidate_runs if applies else {}
    forgiven = frozenset((*profile.known_failures, *flaky))
    names = (*profile.checks, *sorted(set(runs) - set(profile.checks)))
    required = tuple(name for name in profile.checks if name not in profile.advisory)
    compared = [
        _Compared(name, prepared_runs.get(name), runs.get(name), forgiven, changed)
        for name in names
    ]
    fixed = {
        item.name: [case for case in item.fixed_cases(own_tests, altered) if case not in unrelated]
        for item in compared
        if item.name not in profile.advisory
    }
    barren = not any(item.shows_green for item in compared if item.name in required)
    proven = any(fixed.values())
    evidence = tuple(
        item.evidence(
            proven=bool(fixed.get(item.name)),
            undone=not proven
            and item.name in required
            and (barren or bool(item.concerned(changed, task))),
            flaky=frozenset(flaky),
        )
        for item in compared
    )
    lost = (
        {case for item in compared if item.name in required for case in item.lost}
        if applies
        else set()
    )
    unsolved = [
        case
        for item in compared
        if item.name in required and not proven
        for case in item.concerned(changed, task)
    ]
    return Assessment(
        applies=applies,
        required=required,
        regressions=tuple(sorted(lost)),
        proven=proven,
        behaviour=_behaviour(
            prepared_runs,
            {name: run for name, run in runs.items() if name in required},
            own_tests,
            forgiven,
        )
        if applies
        else "",
        evidence=evidence,
        fixed=tuple(sorted(case for cases in fixed.values() for case in cases))[:_FIXED],
        still_red=tuple(
            sorted(case for item in compared if item.name in required for case in item.red_before)
        ),
        unrelated=tuple(sorted(unrelated)),
        unsolved=tuple(unsolved),
        missed=any(asks_for(case, task) for case in unsolved),
    )


def cases_of(run: CheckRun) -> Mapping[str, str]:
    """Return a run's cases; a check that tells none is one case of its own name, unless it did not
    run at all.
    """
    if run.cases or run.verdict is Verdict.MISSING:
        return run.cases
    return {run.check: str(run.verdict) if run.status == "success" else "errored"}


def differing_cases(one: CheckRun, other: CheckRun) -> set[str]:
    """Return the cases that two runs of the same tree tell differently. A run that was stopped
    tells nothing.
    """
    if other.status != "success" or one.status != "success":
        return set()
    first, second = cases_of(one), cases_of(other)
    return {
        case
        for case in first.keys() & second.keys()
        if (first[case] in RED) != (second[case] in RED)
    }


def unmatched_cases(one: CheckRun, other: CheckRun) -> set[str]:
    """Return the cases that only one of two runs of the untouched base told of, as where a name
    holds a random number or the time.

    Not for a candidate's runs: its code could end one of them early.
    """
    if one.status != "success" or other.status != "success" or not (one.cases and other.cases):
        return set()
    return set(one.cases.keys() ^ other.cases.keys())


class _Compared:
    """One check before and after."""

    def __init__(
        self,
        name: str,
        base: CheckRun | None,
        now: CheckRun | None,
        forgiven: AbstractSet[str],
        changed: Sequence[str],
    ) -> None:
        self.name, self.now = name, now
        self._base = base
        self._forgiven = forgiven
        self._before = cases_of(base) if base else {}
        self._after = cases_of(now) if now else {}
        self.shows_green = any(outcome == "passed" for outcome in self._after.values())
        red = [
            case for case, outcome in self._after.items() if outcome in RED and case not in forgiven
        ]
        self.red_before = [case for case in red if self._before.get(case) in RED]
        self.new_red = [case for case in red if self._before.get(case) not in RED]
        self._findings = _new_findings(base, now, changed)
        if now and now.findings:
            self.red_before, self.new_red = [], []  # a linter is judged by what it found

    @property
    def lost(self) -> list[str]:
        """Cases that passed and do not pass any more, or are gone. A run that was stopped, or ran
        no test, tells nothing of the rest.
        """
        before = self._base.cases if self._base else {}
        whole = self.now is None or (
            self.now.status == "success" and not is_silent(self._base, self.now)
        )
        return [
            case
            for case, outcome in before.items()
            if outcome == "passed"
            and self._after.get(case) != "passed"
            and case not in self._forgiven
            and (whole or case in self._after)
        ]

    def concerned(self, changed: Sequence[str], task: str) -> list[str]:
        """Return the cases that failed before, still fail, and have to do with the change or the
        task.
        """
        base, now = self._base, self.now
        if base is None or now is None:
            return []
        return [
            case
            for case in self.red_before
            if concerns(case, base.details.get(case, ""), now.details.get(case, ""), changed, task)
        ]

    def fixed_cases(self, own_tests: Sequence[str], altered: Sequence[str] = ()) -> list[str]:
        """Cases that were red and are green, and not by the author; a linter proves nothing."""
        base, now = self._base, self.now
        if base is None or now is None or base.findings or now.findings:
            return []
        packages = frozenset(case.partition("::")[0] for case in self._after)
        return [
            case
            for case, outcome in self._after.items()
            if outcome == "passed"
            and case not in self._forgiven
            and _was_red(base, self._before, case)
            and not _only_faster(base, now, case)
            and not may_be_own(case, own_tests, packages)
            and not is_example_of(case, altered)
        ]

    def evidence(self, *, proven: bool, undone: bool, flaky: AbstractSet[str]) -> Evidence:
        run = self.now
        if run is None:
            return Evidence(check=self.name, verdict=Verdict.MISSING)
        outcomes = list(run.cases.values())
        return Evidence(
            check=self.name,
            verdict=self._verdict(run, undone=undone),
            passed=outcomes.count("passed"),
            failed=sum(outcome in RED for outcome in outcomes),
            skipped=outcomes.count("skipped"),
            duration_ms=run.duration_ms,
            output=run.output,
            proven=proven,
            before=sum(case in run.cases for case in self.red_before),
            red=tuple((*self.new_red, *self._findings)[:_NAMED]),
            red_before=tuple(self.red_before[:_NAMED]),
            flaky=tuple(sorted(flaky & self._after.keys())[:_NAMED]),
            why=self._why(run),
        )

    def _why(self, run: CheckRun) -> str:
        """Return what stopped the run, or why it has no verdict; '' if it ran to its end."""
        if run.status != "success":
            return run.output.partition("\n")[0][:300]
        if is_silent(self._base, run):
            last = next(
                (line.strip() for line in reversed(run.output.splitlines()) if line.strip()), ""
            )
            return f"0 tests ran, exit code {run.exit_code}" + (f": {last}"[:250] if last else "")
        return ""

    def _verdict(self, run: CheckRun, *, undone: bool) -> Verdict:
        """The exit code alone is not believed where there are cases: code under test can end its
        process with any.
        """
        if run.status != "success":
            return Verdict.MISSING if run.status == UNBELIEVED else Verdict.ERRORED
        if run.verdict is Verdict.MISSING or is_silent(self._base, run):
            return Verdict.MISSING
        if run.verdict is Verdict.ERRORED and (
            not self._base or self._base.verdict is not Verdict.ERRORED
        ):
            return Verdict.ERRORED  # it did not run to its end, as it did on the base
        if self.new_red or self._findings:
            return Verdict.FAILED
        if run.cases and not self.shows_green:
            return Verdict.FAILED if self.red_before else Verdict.MISSING
        return Verdict.FAILED if undone and self.red_before else Verdict.PASSED


def _new_findings(base: CheckRun | None, now: CheckRun | None, changed: Sequence[str]) -> list[str]:
    """What a linter finds now and did not on the base: where it was red already, on changed files
    only.
    """
    if now is None or not now.findings:
        return []
    before = Counter(base.findings) if base else Counter[str]()
    new = list((Counter(now.findings) - before).elements())
    if base is None or base.verdict is Verdict.PASSED or not changed:
        return new if now.verdict is not Verdict.PASSED else []
    return [
        line for line in new if any(same_file(line.partition(":")[0], path) for path in changed)
    ]


def _was_red(base: CheckRun, before: Mapping[str, str], case: str) -> bool:
    """A test that could not even be collected or compiled was red too; its file, package or check
    is then the red case.
    """
    if case in before:
        return before[case] in RED
    if not base.cases:
        return before.get(base.check) in RED
    return any(before.get(container) in RED for container in containers(case))


def _only_faster(base: CheckRun, now: CheckRun, case: str) -> bool:
    """Whether a case was only stopped at its limit on the base, and is hardly faster now."""
    limit = base.durations.get(case, 0)
    return (
        HIT_LIMIT in base.details.get(case, "")
        and limit > 0
        and now.durations.get(case, 0) * 2 > limit
    )


def _behaviour(
    base: Mapping[str, CheckRun],
    now: Mapping[str, CheckRun],
    own_tests: Sequence[str],
    forgiven: AbstractSet[str],
) -> str:
    """Equal for candidates that no shared test tells apart. A new test of the author's own is not
    shared: counting it would put everyone who wrote one into a cluster of one. Checks without
    cases, such as linters, and advisory ones say nothing of behaviour; '' if there are no others.
    """
    parts: list[str] = []
    for name in sorted(now):
        before = base[name].cases if name in base else {}
        packages = frozenset(case.partition("::")[0] for case in now[name].cases)
        parts += [
            f"{name}/{case}={outcome}"
            for case, outcome in sorted(now[name].cases.items())
            if case not in forgiven
            and (case in before or not may_be_own(case, own_tests, packages))
        ]
    return digest(*parts) if parts else ""


def is_silent(base: CheckRun | None, run: CheckRun | None) -> bool:
    """Whether a run that reached its end reports no case although the base's run did: an error of
    the run, or a broken build.
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
    """Whether the task names this test or what it tests (`hello_world` of `test_hello_world`), or
    says that tests fail.
    """
    last = _LAST_PART.split(case.partition("[")[0])[-1]
    words = set(_WORD.findall(task))
    return bool(_ABOUT_TESTS.search(task[:_READ])) or (
        len(_bare(last)) > _SHORTEST and (last in words or _bare(last) in words)
    )


def concerns(case: str, before: str, after: str, changed: Sequence[str], task: str = "") -> bool:
    """Whether a case that stayed red concerns a change of the files `changed`: it says something
    else than `before`, or names one of the files, or its own name or place has the name of one; or
    the task names it, or speaks of tests that fail.
    """
    if _ABOUT_TESTS.search(task[:_READ]):
        return True
    before, after = before[:_READ], after[:_READ]
    if before and after and _VARYING.sub("", before) != _VARYING.sub("", after):
        return True
    said = frozenset(_WORD.findall(f"{case}\n{before}\n{after}"))
    words = {word for name in _WORD.findall(case) for word in (name, _bare(name))}
    for path in changed:
        name = path.rpartition("/")[2]
        stem = name.partition(".")[0]
        if (
            name in before
            or name in after
            or (
                len(stem) >= _SHORTEST
                and stem not in _COMMON
                and (stem in words or _bare(stem) in said)
            )
        ):
            return True
    last = _LAST_PART.split(case.partition("[")[0])[-1]
    asked = set(_WORD.findall(task))
    return last in asked or (len(_bare(last)) > _SHORTEST and _bare(last) in asked)


def _bare(name: str) -> str:
    """A test's name without what says that it is one."""
    return re.sub(r"^(?:test_?|Test|Example|Fuzz)|_?[tT]ests?$", "", name) or name
