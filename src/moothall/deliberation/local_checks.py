"""A seat's own checks, after each change: all of a fast suite; of a slow one the cases near the
change.

Cases that fail on the base come first, then the tests of the changed code, as far as they fit into
a time limit, estimated from the base's own run. The re-check on a clean checkout runs the whole
suite.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from moothall import telemetry
from moothall.authorization.checks import CallContext, first_covered
from moothall.deliberation.case_files import (
    files_to_run,
    find_case_files,
    find_cases_near,
    import_pattern,
    is_about,
    map_to_base_names,
    rank_importers,
)
from moothall.deliberation.code_blocks import TurnContext
from moothall.deliberation.prompts.repository_context import looks_like_test
from moothall.domain.evidence import FAILED_OUTCOMES, CheckRun
from moothall.domain.ids import digest
from moothall.domain.proposal import Candidate, Proposal
from moothall.domain.repository import Patch, Prepared, checks_near
from moothall.domain.text import brings_secret
from moothall.domain.tool import ToolCall
from moothall.errors import PatchRefused
from moothall.ranking import assess, is_done, passes_acceptance_checks
from moothall.ranking.failures import as_errored, hit_limit_under_load
from moothall.ranking.screening import find_joined_secrets

Clean = Callable[[str], str]
T = TypeVar("T")
OWN_CHECK_SECONDS = 10.0
"""After each change, a seat runs the whole suite if it took no longer on the base; otherwise only
related tests.
"""
_KEY_REFUSAL = (
    "the change writes what looks like a key or password into a file; take it out again: read it "
    "from the environment, or in a test make it of parts."
)
_MAX_CASE_IDS = 200  # on a command line; more are run by their files
_IMPORT_SEARCH_SECONDS = 10.0
_SEPARATE_RUNS = re.compile(r"(?:^|[/ ])(?:cargo|npm|npx|pnpm|yarn|bun|node)\b")
"""Commands that run either selected cases or new test files, and not both at once."""


@dataclass(frozen=True, slots=True)
class CheckScope:
    """The part of a check that is run: all of it, or these cases (ids as on the base) and these new
    or changed test files.
    """

    check: str
    complete: bool = True
    cases: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()


@dataclass(slots=True)
class WorkspaceState:
    """The workspace after its last change: its patch and the results of the checks.

    complete: all checks were run as a whole.
    """

    patch: Patch | None = None
    runs: dict[str, CheckRun] = field(default_factory=dict)
    refusal: PatchRefused | None = None
    passed: bool = False
    proven: bool = False
    complete: bool = True
    partial_checks: tuple[str, ...] = ()
    """The checks that did not run completely: only cases near the change, or none."""
    regressions: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()
    still_failing: tuple[str, ...] = ()
    broken_examples: tuple[str, ...] = ()
    """Calls that the function's docstring shows, and that return something else."""

    @property
    def changed(self) -> bool:
        """True if there is a change to propose."""
        return self.patch is not None and bool(self.patch.diff.strip())

    @property
    def partly_fixed(self) -> bool:
        """True if the change fixed some failing cases, and some still fail."""
        return bool(self.fixed) and not self.proven

    @property
    def change_digest(self) -> str:
        """A digest of the change, empty for none."""
        return digest(self.patch.diff) if self.patch is not None and self.changed else ""

    @property
    def failing(self) -> frozenset[str]:
        """The failing cases, and the checks that fail without naming a case."""
        failing: set[str] = set()
        for name, run in self.runs.items():
            cases = failing_cases(run)
            failing.update(cases)
            if run.verdict != "passed" and not cases:
                failing.add(name)
        return frozenset(failing)

    @property
    def score(self) -> tuple[int, int, int, int, int]:
        """How good the change looks; more is better: proven, passed, fewer regressions, more fixed
        cases, fewer broken examples.
        """
        return (
            int(self.passed and self.proven),
            int(self.passed),
            -len(self.regressions),
            len(self.fixed),
            -len(self.broken_examples),
        )


@dataclass(frozen=True, slots=True)
class CheckedWorkspace:
    """The workspace of an agent, and its base.

    prepared: None for a sub-agent, whose changes its seat checks. required_cases: cases that are
    run after each change, whatever it touches. task: the description of the task.
    """

    turn_context: TurnContext
    prepared: Prepared | None = None
    required_cases: AbstractSet[str] = frozenset()
    task: str = ""


def failing_cases(run: CheckRun) -> list[str]:
    """Return the ids of the failing cases, in the run's order."""
    return [case for case, outcome in run.cases.items() if outcome in FAILED_OUTCOMES]


def select_checks(
    prepared: Prepared,
    patch: Patch,
    required_cases: AbstractSet[str],
    max_seconds: float,
    importers: Sequence[str] = (),
) -> Iterator[CheckScope]:
    """Yield the scope of each check to run after a change.

    A check that took at most `max_seconds` on the base is run completely. A slower one is limited
    to as many cases as take that long, with failing cases and `required_cases` first. A slow check
    without cases that passed on the base is left to the re-check on a clean checkout, and so is a
    passing check of a project that the change is not near. `importers` are test files that import
    changed files, the nearest first: they are used if no test file is named after a changed file.
    """
    near_checks = checks_near(prepared.base.profile, patch.paths)
    for name in prepared.base.profile.checks:
        base = prepared.runs.get(name)
        if (
            name not in near_checks
            and base is not None
            and base.verdict == "passed"
            and required_cases.isdisjoint(base.cases)
        ):
            continue
        if (
            base is None
            or base.duration_ms <= max_seconds * 1000
            or not (base.cases or base.verdict == "passed")
        ):
            yield CheckScope(name)
        elif base.cases:
            yield CheckScope(
                name,
                False,
                _choose_cases(
                    prepared,
                    base,
                    patch,
                    required_cases,
                    max_ms=max_seconds * 1000,
                    importers=importers,
                ),
                patch.tests,
            )


def _choose_cases(
    prepared: Prepared,
    base: CheckRun,
    patch: Patch,
    required_cases: AbstractSet[str],
    *,
    max_ms: float,
    importers: Sequence[str],
) -> tuple[str, ...]:
    """Return the cases that failed on the base and the required ones, then cases near the change,
    as many as take `max_ms`.
    """
    files = find_case_files(
        base.cases, prepared.files, prepared.base.profile.folders.get(base.check, "")
    )
    required = [
        case
        for case, outcome in base.cases.items()
        if outcome in FAILED_OUTCOMES or case in required_cases
    ]
    # The test files of a patch run as they are now, or were deleted.
    required = [case for case in required if files[case] not in patch.paths]
    subjects = [path for path in patch.paths if path not in patch.tests]
    by_file: dict[str, list[str]] = {}
    for case, file in files.items():
        by_file.setdefault(file, []).append(case)
    named_files = [file for file in by_file if any(is_about(file, path) for path in subjects)]
    related = [
        file
        for file in dict.fromkeys(named_files or importers)
        if file in by_file and file not in patch.paths
    ]
    nearest = [
        *(case for file in related for case in by_file[file]),
        *find_cases_near(by_file.get("", ()), subjects),
    ]
    used_ms: float = sum(base.durations.get(case, 0) for case in required)
    selected_cases = dict.fromkeys(required)
    # For runners that do not report how long each case took.
    average_ms = 0 if base.durations else base.duration_ms / max(len(base.cases), 1)
    for case in nearest:
        used_ms += base.durations.get(case, average_ms) if case not in selected_cases else 0
        if used_ms <= max_ms:
            selected_cases[case] = None
    return tuple(selected_cases)


async def check_changes(
    workspace: CheckedWorkspace,
    prepared: Prepared,
    state: WorkspaceState,
    message: str,
    *,
    clean: Clean,
    max_seconds: float,
) -> tuple[WorkspaceState, bool]:
    """Commit the changes of a turn and run the checks near them. Return the new state, and whether
    checks were run. Raises errors of the workspace.
    """
    try:
        patch = await commit_changes(workspace.turn_context.call_context, message, clean)
    except PatchRefused as error:
        return replace(state, refusal=error, passed=False, proven=False), False
    if patch.diff == (state.patch.diff if state.patch is not None else ""):
        return replace(state, patch=patch, refusal=None), False
    return await _run_selected_checks(workspace, prepared, patch, max_seconds), True


async def commit_changes(context: CallContext, message: str, clean: Clean) -> Patch:
    """Return the content of the workspace as a commit.

    Raises `PatchRefused` for protected files, and for changes that certainly write a key, whole or
    in parts. Doubtful ones are reported when the proposal is judged.
    """
    patch = await context.workspace.patch(message)
    if protected := first_covered(context.grant.protected, patch.paths):
        raise PatchRefused(f"{protected!r} may not be changed by this role; put it back as it was.")
    tests = (path for path in patch.paths if looks_like_test(path))
    if (
        brings_secret(patch.diff, clean)
        or find_joined_secrets(patch.diff, {}, tests, clean).certain
    ):
        raise PatchRefused(_KEY_REFUSAL)
    return patch


async def _run_selected_checks(
    workspace: CheckedWorkspace, prepared: Prepared, patch: Patch, max_seconds: float
) -> WorkspaceState:
    """Run the checks near the change and return the workspace's state."""
    context = workspace.turn_context.call_context
    profile = prepared.base.profile
    importers = await _find_importers(workspace, prepared, patch, max_seconds)
    scopes = list(select_checks(prepared, patch, workspace.required_cases, max_seconds, importers))
    runs: dict[str, CheckRun] = {}
    with telemetry.span("own checks", {"moothall.workspace": context.workspace_id}):
        for scope in scopes:
            if scope.complete or scope.cases or scope.paths:
                runs[scope.check] = await _run_check(context, prepared, scope)
    base_runs = {
        scope.check: _base_run(prepared, scope, runs)
        for scope in scopes
        if scope.check in runs and scope.check in prepared.runs
    }
    run_profile = replace(profile, checks={name: profile.checks[name] for name in runs})
    assessment = assess(
        base_runs,
        runs,
        run_profile,
        own_tests=patch.tests,
        applies=True,
        flaky=prepared.flaky,
        changed=patch.paths,
        task=workspace.task,
    )
    candidate = Candidate(Proposal(context.seat, context.role, "", patch.diff), assessment)
    return WorkspaceState(
        patch=patch,
        runs=runs,
        passed=passes_acceptance_checks(candidate) and not assessment.unsolved,
        proven=is_done(assessment),
        complete=len(scopes) == len(profile.checks) and all(scope.complete for scope in scopes),
        partial_checks=tuple(scope.check for scope in scopes if not scope.complete),
        regressions=assessment.regressions,
        fixed=assessment.fixed,
        still_failing=assessment.still_red,
    )


async def _find_importers(
    workspace: CheckedWorkspace, prepared: Prepared, patch: Patch, max_seconds: float
) -> tuple[str, ...]:
    """Return the test files that import changed files, those named after a word of the task first;
    none if every check is fast.
    """
    context = workspace.turn_context.call_context
    subjects = [path for path in patch.paths if path not in patch.tests]
    if not subjects or all(run.duration_ms <= max_seconds * 1000 for run in prepared.runs.values()):
        return ()
    deadline = min(context.deadline, datetime.now(UTC) + timedelta(seconds=_IMPORT_SEARCH_SECONDS))
    lines: list[tuple[str, str]] = []
    for glob in ("**/*test*/**", "**/*test*", "**/*spec*"):
        call = ToolCall(
            "importers",
            "files.search",
            {"pattern": import_pattern(subjects), "glob": glob},
            deadline,
        )
        output = (await context.workspace.call(call)).output.get("matches")
        if isinstance(output, list):
            lines += [
                (str(match.get("path")), str(match.get("text")))
                for match in output
                if isinstance(match, Mapping)
            ]
    return tuple(rank_importers(lines, subjects, f"{workspace.task} {' '.join(patch.paths)}"))


async def _run_check(context: CallContext, prepared: Prepared, scope: CheckScope) -> CheckRun:
    if (
        not scope.complete
        and scope.cases
        and scope.paths
        and _needs_separate_runs(prepared, scope.check)
    ):
        case_run = await _run_scope(context, prepared, replace(scope, paths=()))
        return _merge_runs(case_run, await _run_scope(context, prepared, replace(scope, cases=())))
    return await _run_scope(context, prepared, scope)


def _needs_separate_runs(prepared: Prepared, check: str) -> bool:
    return any(
        _SEPARATE_RUNS.search(word) for word in prepared.base.profile.checks.get(check, ())[:4]
    )


def _merge_runs(first: CheckRun, second: CheckRun) -> CheckRun:
    """Merge two runs of a check: the worse verdict, and all cases."""
    worse, better = (first, second) if first.verdict != "passed" else (second, first)
    return replace(
        worse,
        cases={**first.cases, **second.cases},
        durations={**first.durations, **second.durations},
        details={**first.details, **second.details},
        duration_ms=first.duration_ms + second.duration_ms,
        output="\n".join(filter(None, (worse.output, better.output))),
    )


async def _run_scope(context: CallContext, prepared: Prepared, scope: CheckScope) -> CheckRun:
    paths: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    base = prepared.runs.get(scope.check)
    if not scope.complete:
        folder = prepared.base.profile.folders.get(scope.check, "")
        named_files = files_to_run(scope.cases, prepared.files, folder)
        paths = (*named_files, *scope.paths)
        ids = (
            scope.cases
            if len(scope.cases) <= _MAX_CASE_IDS
            else named_files or scope.cases[:_MAX_CASE_IDS]
        )
        if not _needs_separate_runs(prepared, scope.check):
            ids = (*ids, *scope.paths)
        ids = tuple(
            case.removeprefix(f"{folder}/") if case in paths and folder else case for case in ids
        )
    run = await context.workspace.check(
        scope.check, paths=paths, cases=ids, deadline=context.deadline
    )
    if hit_limit_under_load(run, base):
        run = await context.workspace.check(
            scope.check, paths=paths, cases=ids, deadline=context.deadline, alone=True
        )
    if (
        base is not None
        and paths
        and (base_names := map_to_base_names(run.cases, _cases_in(prepared, base, paths)))
    ):
        run = replace(
            run,
            cases=_rename_cases(run.cases, base_names),
            details=_rename_cases(run.details, base_names),
            durations=_rename_cases(run.durations, base_names),
        )
    return as_errored(run, base) if hit_limit_under_load(run, base) else run


def _cases_in(prepared: Prepared, base: CheckRun, paths: Sequence[str]) -> Iterator[str]:
    files = find_case_files(
        base.cases, prepared.files, prepared.base.profile.folders.get(base.check, "")
    )
    return (case for case, file in files.items() if file in paths)


def _rename_cases(by_case: Mapping[str, T], new_names: Mapping[str, str]) -> dict[str, T]:
    return {new_names.get(case, case): value for case, value in by_case.items()}


def _base_run(prepared: Prepared, scope: CheckScope, runs: Mapping[str, CheckRun]) -> CheckRun:
    """Return the base's run, limited to the selected cases: a case that was not run is not a
    regression.
    """
    base = prepared.runs[scope.check]
    if scope.complete:
        return base
    selected = {*scope.cases, *runs[scope.check].cases}
    return replace(
        base, cases={case: outcome for case, outcome in base.cases.items() if case in selected}
    )
