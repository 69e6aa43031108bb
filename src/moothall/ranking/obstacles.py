"""Obstacles that prevent the checks of a base from judging, and that no candidate could remove;
and slow test suites. Time limits that a check hit on a busy machine.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from moothall.domain.evidence import RED, CheckRun, Verdict
from moothall.ranking.assess import HIT_LIMIT
from moothall.ranking.gates import sanitize_line
from moothall.sandbox_runtime.processes import BUSY

# Time limits that a check hit on a busy machine. They prove nothing about the code, so the check is
# run again alone.


# Our own limits if they were hit because the machine was busy, and the messages of runners and
# clients about a project's limits: jest, mocha, vitest, node:test, pytest-timeout, Go, nextest.
_TIME_LIMIT = re.compile(
    rf"{HIT_LIMIT} [^\n]{{0,40}}{BUSY}|\btimed?[ -]?out|exceeded (?:a |the |its "
    r")?(?:timeout|deadline|time)|deadline exceeded|too long\b",
    re.IGNORECASE,
)
_MAX_READ_CHARS = 20_000
_BUSY = (
    "a time limit was hit while the machine was busy, which proves nothing about the code; free "
    "some cores, or raise workspace.check_floor_seconds"
)


def hit_limit_under_load(run: CheckRun, base: CheckRun | None = None) -> bool:
    """True if a check hit a time limit while the machine was busy. Cases that fail on the base do
    not count.
    """
    if not run.contended:
        return False
    return (
        run.status == "timeout"
        or bool(stopped_cases(run, base))
        or (_is_silent(run) and _names_limit(run.output))
    )


def as_errored(run: CheckRun, base: CheckRun | None = None) -> CheckRun:
    """Return the run as unfinished: no case counts as failed because of a time limit."""
    stopped = stopped_cases(run, base)
    headline, rest = (
        (run.output.partition("\n")[::2]) if run.status == "timeout" else (run.check, run.output)
    )
    return replace(
        run,
        verdict=Verdict.ERRORED,
        status="timeout",
        cases={
            case: "errored" if case in stopped else outcome for case, outcome in run.cases.items()
        },
        output=f"{headline}: {_BUSY}\n{rest}",
    )


def stopped_cases(run: CheckRun, base: CheckRun | None = None) -> Sequence[str]:
    """Return the failed cases whose output names a time limit and that do not fail on the base."""
    known = base.cases if base else {}
    return [
        case
        for case, outcome in run.cases.items()
        if outcome in RED and known.get(case) not in RED and _names_limit(run.details.get(case, ""))
    ]


def _is_silent(run: CheckRun) -> bool:
    return not run.cases and run.status == "success" and run.verdict is Verdict.FAILED


def _names_limit(text: str) -> bool:
    return _TIME_LIMIT.search(text[-_MAX_READ_CHARS:]) is not None


# Obstacles that prevent the checks of a base from judging, and that no candidate could remove; and
# slow test suites. Pure.


_MISSING_MODULE = re.compile(r"No module named '?(?P<name>\w+)\b(?!\.)")
_MAX_LINE_CHARS = 300
_SLOW_SUITE_MS = 120_000
_LARGE_SUITE_CASES = 20_000
_DJANGO_UNCONFIGURED = re.compile(
    r"ImproperlyConfigured: Requested settings?\b.* settings are not configured"
)
# Messages of package managers, toolchains and drivers. No test would print one of them itself.
_ENVIRONMENT_ERROR = re.compile(
    r"(?m)^.*(?:"
    r"\bERR_PNPM_(?!RECURSIVE_RUN|TEST)\w+"
    r"|npm (?:ERR!|error) code "
    r"(?:ENOTCACHED|EAI_AGAIN|ENOTFOUND|ECONNREFUSED|ECONNRESET|EROFS|EBADENGINE)"
    r"|npm error code EBADDEVENGINES"
    r"|Error when performing the request to https?://"
    r"|EROFS: read-only file system.*/(?:corepack|pnpm|yarn|\.npm)\b"
    r"|Network access disabled by the environment"
    r"|This project's package\.json defines \"packageManager\":"
    r"|There appears to be trouble with your network connection"
    r"|The project in \S+ doesn't seem to have been installed"
    r"|doesn't seem to be present in your lockfile"
    r"|YN0001: .*RequestError"
    r"|The engine \"node\" is incompatible with this module"
    r"|error: Failed to fetch: `"
    r"|No solution found when resolving"
    r"|error: Request failed after \d+ retries"
    r"|All attempts to connect to \S+ failed"
    r"|ERROR: (?:Could not find a version that satisfies|No matching distribution found)"
    r"|module lookup disabled by GOPROXY=off"
    r"|go: (?:download|.* requires) go ?>?=? ?\d.*(?:GOTOOLCHAIN|toolchain)"
    r"|but --offline was specified"
    r"|error: toolchain '[^']+' is not installed"
    r"|Cannot connect to the Docker daemon"
    r"|OperationalError: .*(?:connection to server (?:at|on)|could not connect to server|Can't "
    r"connect to (?:local )?(?:MySQL|server))"
    r").*$"
)


def failure_outputs(run: CheckRun) -> list[str]:
    """Return the output of each failed case."""
    return [run.details.get(case, "") for case, outcome in run.cases.items() if outcome in RED]


def find_environment_error(run: CheckRun) -> str:
    """Return the error of the environment that prevented a check from running any case, or ''.

    If cases are reported, each failed one must contain such a line.
    """
    matches = [_ENVIRONMENT_ERROR.search(text) for text in failure_outputs(run) or [run.output]]
    if not run.exit_code or not matches[0] or not all(matches):
        return ""
    return sanitize_line(matches[0][0].strip(), _MAX_LINE_CHARS)


def is_django_unconfigured(run: CheckRun) -> bool:
    """True if every failed case could not load because Django's settings are not configured."""
    outputs = failure_outputs(run)
    return bool(outputs) and all(_DJANGO_UNCONFIGURED.search(text) for text in outputs)


def suggest_smaller_suite(run: CheckRun, argv: Sequence[str]) -> str:
    """Return advice for a suite that takes minutes, or ''."""
    if (
        not run.cases
        or run.findings
        or (
            run.duration_ms < _SLOW_SUITE_MS
            and len(run.cases) < _LARGE_SUITE_CASES
            and run.status != "timeout"
        )
    ):
        return ""
    duration = f"{run.duration_ms / 60_000:.1f} minutes for {len(run.cases):,} tests"
    ms_by_folder: Counter[str] = Counter()
    for case, ms in run.durations.items():
        if "/" in (path := case.partition("::")[0]):
            ms_by_folder[path.rpartition("/")[0]] += ms
    total = sum(ms_by_folder.values())
    slowest_folders = ", ".join(
        f"{folder} ({ms * 100 // total} %)" for folder, ms in ms_by_folder.most_common(3) if total
    )
    where = f" Most of the time goes to {slowest_folders}." if slowest_folders else ""
    return (
        f"Each candidate is judged by the whole suite: {duration}.{where} For a task that concerns "
        f"a part of it, name the test files near the change in a profile, [checks] {run.check} = "
        f'"{sanitize_line(shlex.join(argv))} PATH…", and pass it with --profile FILE.'
    )


def find_folder_off_path(run: CheckRun, files: Sequence[str]) -> tuple[str, str]:
    """Return a module of the project that the failed cases cannot import, and its folder; two empty
    strings if there is none.

    The folder is one like `src`, which is not a package itself, is not on the path, and whose
    module is not installed.
    """
    names = [
        match["name"] if (match := _MISSING_MODULE.search(text)) else ""
        for text in failure_outputs(run) or [run.output]
    ]
    if not all(names):
        return "", ""
    existing_paths = set(files)
    for name in dict.fromkeys(names):
        suffixes = (f"/{name}/__init__.py", f"/{name}.py")
        folders = {
            path.removesuffix(suffix)
            for path in files
            for suffix in suffixes
            if path.endswith(suffix)
        }
        is_top_level = any(path in existing_paths for path in (f"{name}.py", f"{name}/__init__.py"))
        candidates = sorted(
            folder for folder in folders if f"{folder}/__init__.py" not in existing_paths
        )
        if not is_top_level and candidates:
            return name, min(candidates, key=lambda folder: (folder.count("/"), folder))
    return "", ""
