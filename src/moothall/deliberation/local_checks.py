"""A seat's own checks, after each change: all of a quick suite; of a slow one the cases near the
change.

What is red on the base comes first, then the tests of what was changed, as far as they fit into a
time that follows from the base's own. The whole suite is the business of the clean re-check.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from moothall import telemetry
from moothall.authorization.call_context import CallContext
from moothall.authorization.paths import first_covered
from moothall.deliberation.case_files import (
    case_files,
    files_to_run,
    import_pattern,
    importing,
    in_names_of,
    is_about,
    near_cases,
)
from moothall.deliberation.code_blocks import TurnContext
from moothall.deliberation.prompts.repository_context import looks_like_test
from moothall.domain.evidence import RED, CheckRun
from moothall.domain.ids import digest
from moothall.domain.proposal import Candidate, Proposal
from moothall.domain.repository import Patch, Prepared, checks_near
from moothall.domain.secrets import brings_secret
from moothall.domain.tool import ToolCall
from moothall.errors import PatchRefused
from moothall.ranking import assess, is_done, passes_acceptance_checks
from moothall.ranking.contention import as_errored, hit_limit_under_load
from moothall.ranking.joined_secrets import find_joined_secrets

Clean = Callable[[str], str]
T = TypeVar("T")
_NOT_TAKEN_OVER = (
    "the change writes what looks like a key or password into a file; take it out again: read it "
    "from the environment, or in a "
    "test make it of parts."
)
_MOST_IDS = 200  # on a command line; more are run by their files
_SEARCH_SECONDS = 10.0
_UNPICKED = re.compile(r"(?:^|[/ ])(?:cargo|npm|npx|pnpm|yarn|bun|node)\b")
"""Commands that run either some cases or new test files, and not both at once."""


@dataclass(frozen=True, slots=True)
class CheckScope:
    """What is run of a check: everything, or these cases (ids as on the base) and these new or
    changed test files.
    """

    check: str
    whole: bool = True
    cases: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()


@dataclass(slots=True)
class WorkspaceState:
    """The workspace after its last change: its patch and what the checks said of it. `whole`: all
    that there is was run.
    """

    patch: Patch | None = None
    runs: dict[str, CheckRun] = field(default_factory=dict)
    refused: PatchRefused | None = None
    green: bool = False
    proven: bool = False
    whole: bool = True
    narrowed: tuple[str, ...] = ()
    """The checks that did not run completely: only cases near the change, or none."""
    lost: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()
    still_red: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    """Calls that the docstring of the function shows, and that return something else."""

    @property
    def changed(self) -> bool:
        """Whether there is anything to propose."""
        return self.patch is not None and bool(self.patch.diff.strip())

    @property
    def partly(self) -> bool:
        """Whether it mended some of what was red in one place, and some is red there yet."""
        return bool(self.fixed) and not self.proven

    @property
    def tree(self) -> str:
        """A digest of the change, empty for none."""
        return digest(self.patch.diff) if self.patch is not None and self.changed else ""

    @property
    def red(self) -> frozenset[str]:
        """The red cases, and the checks that are red without naming a case."""
        found = {case for run in self.runs.values() for case in red_ids(run)}
        return frozenset(
            found
            | {
                name
                for name, run in self.runs.items()
                if run.verdict != "passed" and not red_ids(run)
            }
        )

    @property
    def worth(self) -> tuple[int, int, int, int, int]:
        """How good it looks from here; more is better: proven, green, fewer cases lost, more cases
        mended, fewer doubts.
        """
        return (
            int(self.green and self.proven),
            int(self.green),
            -len(self.lost),
            len(self.fixed),
            -len(self.doubts),
        )


@dataclass(frozen=True, slots=True)
class CheckedWorkspace:
    """Where an agent works, and on what base: None of a sub-agent, whose changes its seat looks at.
    `also` are cases that are run after each change, whatever it touches; `task` is what was asked
    for.
    """

    turn: TurnContext
    prepared: Prepared | None = None
    also: AbstractSet[str] = frozenset()
    task: str = ""


def red_ids(run: CheckRun) -> list[str]:
    """Return the ids of the red cases, in the run's order."""
    return [case for case, outcome in run.cases.items() if outcome in RED]


def near(
    prepared: Prepared,
    patch: Patch,
    also: AbstractSet[str],
    seconds: float,
    importers: Sequence[str] = (),
) -> Iterator[CheckScope]:
    """Yield what is run of each check after this change. A check that took at most `seconds` on the
    base is run whole;
    of a slower one as many cases as take so long, red ones and `also` first. A slow check without
    cases that was green on the base is left to the clean re-check, and so is a green one of a
    project that the change is not near. `importers` are test files that import what was changed,
    the nearest first: they are near where no test file is named after it.
    """
    holding = checks_near(prepared.base.profile, patch.paths)
    for name in prepared.base.profile.checks:
        base = prepared.runs.get(name)
        if (
            name not in holding
            and base is not None
            and base.verdict == "passed"
            and also.isdisjoint(base.cases)
        ):
            continue
        if (
            base is None
            or base.duration_ms <= seconds * 1000
            or not (base.cases or base.verdict == "passed")
        ):
            yield CheckScope(name)
        elif base.cases:
            yield CheckScope(
                name,
                False,
                _choose_cases(
                    prepared, base, patch, also, most_ms=seconds * 1000, importers=importers
                ),
                patch.tests,
            )


def _choose_cases(
    prepared: Prepared,
    base: CheckRun,
    patch: Patch,
    also: AbstractSet[str],
    *,
    most_ms: float,
    importers: Sequence[str],
) -> tuple[str, ...]:
    """Return the cases that failed on the base and those in `also`, then those near the change, as
    many as take `most_ms`.
    """
    files = case_files(
        base.cases, prepared.files, prepared.base.profile.folders.get(base.check, "")
    )
    first = [case for case, outcome in base.cases.items() if outcome in RED or case in also]
    first = [
        case for case in first if files[case] not in patch.paths
    ]  # its test file is run as it is now, or gone
    subjects = [path for path in patch.paths if path not in patch.tests]
    by_file: dict[str, list[str]] = {}
    for case, file in files.items():
        by_file.setdefault(file, []).append(case)
    named = [file for file in by_file if any(is_about(file, path) for path in subjects)]
    related = [
        file
        for file in dict.fromkeys(named or importers)
        if file in by_file and file not in patch.paths
    ]
    nearest = [
        *(case for file in related for case in by_file[file]),
        *near_cases(by_file.get("", ()), subjects),
    ]
    used: float = sum(base.durations.get(case, 0) for case in first)
    taken = dict.fromkeys(first)
    share = (
        0 if base.durations else base.duration_ms / max(len(base.cases), 1)
    )  # where the runner does not say how long a case took
    for case in nearest:
        used += base.durations.get(case, share) if case not in taken else 0
        if used <= most_ms:
            taken[case] = None
    return tuple(taken)


async def stand(
    place: CheckedWorkspace,
    prepared: Prepared,
    state: WorkspaceState,
    message: str,
    *,
    clean: Clean,
    seconds: float,
) -> tuple[WorkspaceState, bool]:
    """Commit what a turn may have changed, and run the checks near it. Return how it stands now,
    and whether checks were run. Raises what the workspace raises.
    """
    try:
        patch = await commit_changes(place.turn.context, message, clean)
    except PatchRefused as error:
        return replace(state, refused=error, green=False, proven=False), False
    if patch.diff == (state.patch.diff if state.patch is not None else ""):
        return replace(state, patch=patch, refused=None), False
    return await _look(place, prepared, patch, seconds), True


async def commit_changes(context: CallContext, message: str, clean: Clean) -> Patch:
    """Return what the workspace holds as a commit. Raise `PatchRefused` for what may not be
    changed, and for what certainly writes a key, whole or in parts: what is doubtful is shown when
    it is judged.
    """
    patch = await context.workspace.patch(message)
    if held := first_covered(context.grant.protected, patch.paths):
        raise PatchRefused(f"{held!r} may not be changed by this role; put it back as it was.")
    tests = (path for path in patch.paths if looks_like_test(path))
    if (
        brings_secret(patch.diff, clean)
        or find_joined_secrets(patch.diff, {}, tests, clean).certain
    ):
        raise PatchRefused(_NOT_TAKEN_OVER)
    return patch


async def _look(
    place: CheckedWorkspace, prepared: Prepared, patch: Patch, seconds: float
) -> WorkspaceState:
    """Run what is near the change and return the workspace's state."""
    context, also, task = place.turn.context, place.also, place.task
    profile = prepared.base.profile
    chosen = list(
        near(prepared, patch, also, seconds, await _find_importers(place, prepared, patch, seconds))
    )
    runs: dict[str, CheckRun] = {}
    with telemetry.span("own checks", {"moothall.workspace": context.workspace_id}):
        for item in chosen:
            if item.whole or item.cases or item.paths:
                runs[item.check] = await _run(context, prepared, item)
    before = {
        item.check: _base_of(prepared, item, runs)
        for item in chosen
        if item.check in runs and item.check in prepared.runs
    }
    seen = replace(profile, checks={name: profile.checks[name] for name in runs})
    found = assess(
        before,
        runs,
        seen,
        own_tests=patch.tests,
        applies=True,
        flaky=prepared.flaky,
        changed=patch.paths,
        task=task,
    )
    candidate = Candidate(Proposal(context.seat, context.role, "", patch.diff), found)
    return WorkspaceState(
        patch=patch,
        runs=runs,
        green=passes_acceptance_checks(candidate) and not found.unsolved,
        proven=is_done(found),
        whole=len(chosen) == len(profile.checks) and all(item.whole for item in chosen),
        narrowed=tuple(item.check for item in chosen if not item.whole),
        lost=found.regressions,
        fixed=found.fixed,
        still_red=found.still_red,
    )


async def _find_importers(
    place: CheckedWorkspace, prepared: Prepared, patch: Patch, seconds: float
) -> tuple[str, ...]:
    """Return the test files that import what was changed, those named after a word of the task
    first; none where every check is quick.
    """
    context = place.turn.context
    subjects = [path for path in patch.paths if path not in patch.tests]
    if not subjects or all(run.duration_ms <= seconds * 1000 for run in prepared.runs.values()):
        return ()
    deadline = min(context.deadline, datetime.now(UTC) + timedelta(seconds=_SEARCH_SECONDS))
    lines: list[tuple[str, str]] = []
    for glob in ("**/*test*/**", "**/*test*", "**/*spec*"):
        call = ToolCall(
            "importers",
            "files.search",
            {"pattern": import_pattern(subjects), "glob": glob},
            deadline,
        )
        found = (await context.workspace.call(call)).output.get("matches")
        if isinstance(found, list):
            lines += [
                (str(one.get("path")), str(one.get("text")))
                for one in found
                if isinstance(one, Mapping)
            ]
    return tuple(importing(lines, subjects, f"{place.task} {' '.join(patch.paths)}"))


async def _run(context: CallContext, prepared: Prepared, item: CheckScope) -> CheckRun:
    if not item.whole and item.cases and item.paths and _runs_one_kind(prepared, item.check):
        known = await _run_scope(context, prepared, replace(item, paths=()))
        return _join(known, await _run_scope(context, prepared, replace(item, cases=())))
    return await _run_scope(context, prepared, item)


def _runs_one_kind(prepared: Prepared, check: str) -> bool:
    return any(_UNPICKED.search(word) for word in prepared.base.profile.checks.get(check, ())[:4])


def _join(one: CheckRun, other: CheckRun) -> CheckRun:
    """Return two runs of a check as one: the worse verdict, and all cases."""
    worse, better = (one, other) if one.verdict != "passed" else (other, one)
    return replace(
        worse,
        cases={**one.cases, **other.cases},
        durations={**one.durations, **other.durations},
        details={**one.details, **other.details},
        duration_ms=one.duration_ms + other.duration_ms,
        output="\n".join(filter(None, (worse.output, better.output))),
    )


async def _run_scope(context: CallContext, prepared: Prepared, item: CheckScope) -> CheckRun:
    paths: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    base = prepared.runs.get(item.check)
    if not item.whole:
        folder = prepared.base.profile.folders.get(item.check, "")
        named = files_to_run(item.cases, prepared.files, folder)
        paths = (*named, *item.paths)
        ids = item.cases if len(item.cases) <= _MOST_IDS else named or item.cases[:_MOST_IDS]
        if not _runs_one_kind(prepared, item.check):
            ids = (*ids, *item.paths)
        ids = tuple(
            one.removeprefix(f"{folder}/") if one in paths and folder else one for one in ids
        )
    run = await context.workspace.check(
        item.check, paths=paths, cases=ids, deadline=context.deadline
    )
    if hit_limit_under_load(run, base):
        run = await context.workspace.check(
            item.check, paths=paths, cases=ids, deadline=context.deadline, alone=True
        )
    if (
        base is not None
        and paths
        and (other := in_names_of(run.cases, _cases_in(prepared, base, paths)))
    ):
        run = replace(
            run,
            cases=_renamed(run.cases, other),
            details=_renamed(run.details, other),
            durations=_renamed(run.durations, other),
        )
    return as_errored(run, base) if hit_limit_under_load(run, base) else run


def _cases_in(prepared: Prepared, base: CheckRun, paths: Sequence[str]) -> Iterator[str]:
    files = case_files(
        base.cases, prepared.files, prepared.base.profile.folders.get(base.check, "")
    )
    return (case for case, file in files.items() if file in paths)


def _renamed(by_case: Mapping[str, T], names: Mapping[str, str]) -> dict[str, T]:
    return {names.get(case, case): value for case, value in by_case.items()}


def _base_of(prepared: Prepared, item: CheckScope, runs: Mapping[str, CheckRun]) -> CheckRun:
    """Return what the base said of the cases that were asked for: one that was not run is not
    lost.
    """
    base = prepared.runs[item.check]
    if item.whole:
        return base
    asked = {*item.cases, *runs[item.check].cases}
    return replace(
        base, cases={case: outcome for case, outcome in base.cases.items() if case in asked}
    )
