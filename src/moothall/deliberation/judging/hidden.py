"""Hidden tests, which no seat sees: those of the caller, and of `[hidden]` in `.moothall.toml`.
Classification of test files by their paths.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from moothall.domain.evidence import HIDDEN, HIDDEN_CASE, CheckRun
from moothall.domain.proposal import Assessment, Candidate
from moothall.domain.repository import Prepared
from moothall.sandbox_runtime.checks import reports_cases

# Classification of test files by their paths.


_RUN_ALONE = re.compile(
    r"(?:^|/)test_[^/]*\.py$|_test\.(?:py|go)$|(?:^|/)tests?\.py$|\.(?:test|spec)\.[cm]?[jt]sx?$"
    r"|(?:^|/)(?:test|test-[^/]*|[^/]*[-_]test)\.[cm]?[jt]s$|(?:^|/)(?:tests?|__tests__|spec)/(?:.*/)?[^/]+\.(?:rs|[cm]?[jt]sx?)$"
)

_NAMED_AS_TEST = re.compile(
    r"(?:^|/)(?:[Tt]est(?:[A-Z_]\w*)?|\w+(?:_tests?|_spec|Tests?|TestCase|Spec|IT))"
    r"\.(?:java|kt|groovy|scala|c|cc|cpp|cs|php|rb|swift)$"
)


def is_crate_module(path: str) -> bool:
    """True if a test file is a module of a Rust crate, such as `src/tests.rs`, rather than a
    separate test target.
    """
    return path.endswith(".rs") and "src" in path.split("/")[:-1]


def is_run_alone(path: str) -> bool:
    """True if a runner accepts a test file by its path."""
    return bool(_RUN_ALONE.search(path)) and not is_crate_module(path)


def contains_tests(path: str) -> bool:
    """True if a file in a test folder contains tests by its name, and not only data or helpers."""
    return is_run_alone(path) or is_crate_module(path) or bool(_NAMED_AS_TEST.search(path))


# Hidden tests, which no seat sees: those of the caller, and of `[hidden]` in `.moothall.toml`.
#
# They form a separate check for each test check of the repository, and run on the base and on every
# candidate. The names of their cases begin with `hidden:`.


@dataclass(frozen=True, slots=True)
class HiddenTests:
    """The hidden tests of a base.

    files: their texts by path.
    paths: by check the files to pass to its runner; () for the whole check.
    unused: paths that no test check accepts.
    """

    files: Mapping[str, str] = field(default_factory=dict)
    paths: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unused: tuple[str, ...] = ()


def with_hidden_checks(prepared: Prepared) -> tuple[Prepared, HiddenTests]:
    """Return the base with a hidden check for each test check that has hidden tests in its folder,
    and the hidden tests.
    """
    if not prepared.hidden:
        return prepared, HiddenTests()
    profile = prepared.base.profile
    argv, folders, reports = dict(profile.checks), dict(profile.folders), dict(profile.reports)
    paths: dict[str, tuple[str, ...]] = {}
    unassigned = dict.fromkeys(prepared.hidden)
    by_depth = sorted(profile.checks, key=lambda name: -len(profile.folders.get(name, "")))
    for check in by_depth:
        if check in profile.advisory or not (
            check == "tests" or check.startswith("tests-") or reports_cases(argv[check])
        ):
            continue
        folder = profile.folders.get(check, "")
        assigned = [path for path in unassigned if not folder or path.startswith(f"{folder}/")]
        if not assigned:
            continue
        for path in assigned:
            del unassigned[path]
        name = (
            f"{HIDDEN}{check.removeprefix('tests')}"
            if check.startswith("tests")
            else f"{HIDDEN}-{check}"
        )
        runnable = tuple(path for path in assigned if is_run_alone(path))
        runs_whole_check = not runnable or any(
            path.endswith(".rs") and not is_run_alone(path) for path in assigned
        )
        paths[name] = () if runs_whole_check else runnable
        argv[name] = profile.checks[check]
        folders |= {name: folder} if folder else {}
        reports |= {name: profile.reports[check]} if check in profile.reports else {}
    extended = replace(profile, checks=argv, folders=folders, reports=reports)
    return replace(prepared, base=replace(prepared.base, profile=extended)), HiddenTests(
        prepared.hidden, paths, tuple(unassigned)
    )


def hide_cases(run: CheckRun) -> CheckRun:
    """Return a run of hidden tests with prefixed case names, and without the output, which quotes
    the tests.
    """
    return replace(
        run,
        cases={f"{HIDDEN_CASE}{case}": outcome for case, outcome in run.cases.items()},
        details={f"{HIDDEN_CASE}{case}": text for case, text in run.details.items()},
        durations={f"{HIDDEN_CASE}{case}": ms for case, ms in run.durations.items()},
        output="" if run.status == "success" else run.output.partition("\n")[0],
    )


def is_hidden(check: str) -> bool:
    """True if a check runs hidden tests."""
    return check == HIDDEN or check.startswith(f"{HIDDEN}-")


def visible_candidate(candidate: Candidate) -> Candidate:
    """Return a candidate without results of hidden tests, for seats and reviewers."""
    return replace(candidate, assessment=without_hidden(candidate.assessment))


def without_hidden(assessment: Assessment) -> Assessment:
    """Return an assessment without hidden tests, for seats and reviewers."""
    if not any(is_hidden(check) for check in assessment.required):
        return assessment

    def drop_hidden(cases: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(case for case in cases if not case.startswith(HIDDEN_CASE))

    return replace(
        assessment,
        required=tuple(check for check in assessment.required if not is_hidden(check)),
        evidence=tuple(
            evidence for evidence in assessment.evidence if not is_hidden(evidence.check)
        ),
        regressions=drop_hidden(assessment.regressions),
        fixed=drop_hidden(assessment.fixed),
        still_red=drop_hidden(assessment.still_red),
        unrelated=drop_hidden(assessment.unrelated),
        unsolved=drop_hidden(assessment.unsolved),
        look=drop_hidden(assessment.look),
        proven=bool(drop_hidden(assessment.fixed)),
        missed=assessment.missed and bool(drop_hidden(assessment.unsolved)),
    )
