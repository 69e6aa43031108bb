"""Tests that no seat sees: the caller's, and those that `[hidden]` in `.moothall.toml` names.

They are checks of their own beside each test check of the repository, and run on the base and on
every candidate. The names of their cases begin with `hidden:`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from moothall.deliberation.judging.test_files import is_run_alone
from moothall.domain.evidence import HIDDEN, HIDDEN_CASE, CheckRun
from moothall.domain.proposal import Assessment
from moothall.domain.repository import Prepared
from moothall.sandbox_runtime.checks import tells_cases


@dataclass(frozen=True, slots=True)
class HiddenTests:
    """Hidden tests of a base.

    files: their texts by path. paths: by check the files that its runner is given; () for the whole
    check. unused: the paths that no check of tests takes.
    """

    files: Mapping[str, str] = field(default_factory=dict)
    paths: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unused: tuple[str, ...] = ()


def with_hidden_checks(prepared: Prepared) -> tuple[Prepared, HiddenTests]:
    """Return a base with a check for its hidden tests beside each test check whose folder holds
    some.
    """
    if not prepared.hidden:
        return prepared, HiddenTests()
    profile = prepared.base.profile
    argv, folders, reports = dict(profile.checks), dict(profile.folders), dict(profile.reports)
    paths: dict[str, tuple[str, ...]] = {}
    left = dict.fromkeys(prepared.hidden)
    by_depth = sorted(profile.checks, key=lambda name: -len(profile.folders.get(name, "")))
    for check in by_depth:
        if check in profile.advisory or not (
            check == "tests" or check.startswith("tests-") or tells_cases(argv[check])
        ):
            continue
        folder = profile.folders.get(check, "")
        some = [path for path in left if not folder or path.startswith(f"{folder}/")]
        if not some:
            continue
        for path in some:
            del left[path]
        name = (
            f"{HIDDEN}{check.removeprefix('tests')}"
            if check.startswith("tests")
            else f"{HIDDEN}-{check}"
        )
        alone = tuple(path for path in some if is_run_alone(path))
        whole = not alone or any(path.endswith(".rs") and not is_run_alone(path) for path in some)
        paths[name] = () if whole else alone
        argv[name] = profile.checks[check]
        folders |= {name: folder} if folder else {}
        reports |= {name: profile.reports[check]} if check in profile.reports else {}
    extended = replace(profile, checks=argv, folders=folders, reports=reports)
    return replace(prepared, base=replace(prepared.base, profile=extended)), HiddenTests(
        prepared.hidden, paths, tuple(left)
    )


def renamed(run: CheckRun) -> CheckRun:
    """Return a run of hidden tests with the names that its cases have everywhere else, and without
    the output, which quotes them.
    """
    return replace(
        run,
        cases={f"{HIDDEN_CASE}{case}": outcome for case, outcome in run.cases.items()},
        details={f"{HIDDEN_CASE}{case}": text for case, text in run.details.items()},
        durations={f"{HIDDEN_CASE}{case}": ms for case, ms in run.durations.items()},
        output="" if run.status == "success" else run.output.partition("\n")[0],
    )


def is_hidden(check: str) -> bool:
    """Whether a check is one of hidden tests."""
    return check == HIDDEN or check.startswith(f"{HIDDEN}-")


def without_hidden(found: Assessment) -> Assessment:
    """Return what seats and reviewers may know of an assessment: nothing of hidden tests."""
    if not any(is_hidden(check) for check in found.required):
        return found

    def seen(cases: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(case for case in cases if not case.startswith(HIDDEN_CASE))

    return replace(
        found,
        required=tuple(check for check in found.required if not is_hidden(check)),
        evidence=tuple(item for item in found.evidence if not is_hidden(item.check)),
        regressions=seen(found.regressions),
        fixed=seen(found.fixed),
        still_red=seen(found.still_red),
        unrelated=seen(found.unrelated),
        unsolved=seen(found.unsolved),
        look=seen(found.look),
        proven=bool(seen(found.fixed)),
        missed=found.missed and bool(seen(found.unsolved)),
    )
