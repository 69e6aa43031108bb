"""Obstacles that keep the checks of a base from judging and that no candidate could remove, and
slow suites. Pure.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Sequence

from moothall.domain.evidence import RED, CheckRun
from moothall.ranking.gates import plain

_MODULE = re.compile(r"No module named '?(?P<name>\w+)\b(?!\.)")
_MAX_LINE = 300
_LONG_MS, _MANY = 120_000, 20_000
_UNCONFIGURED = re.compile(
    r"ImproperlyConfigured: Requested settings?\b.* settings are not configured"
)
# Messages of package managers, toolchains and drivers. None is one that a test would print by
# itself.
_ENVIRONMENT = re.compile(
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


def red_details(run: CheckRun) -> list[str]:
    """Return the output of each failed case."""
    return [run.details.get(case, "") for case, outcome in run.cases.items() if outcome in RED]


def environment_line(run: CheckRun) -> str:
    """Return the line that says why the environment kept a check from running a single case, or ''.

    If cases are reported, each failed one has to contain such a line.
    """
    found = [_ENVIRONMENT.search(text) for text in red_details(run) or [run.output]]
    if not run.exit_code or not found[0] or not all(found):
        return ""
    return plain(found[0][0].strip(), _MAX_LINE)


def unconfigured_django(run: CheckRun) -> bool:
    """Whether every failed case failed to load because Django's settings are not configured."""
    red = red_details(run)
    return bool(red) and all(_UNCONFIGURED.search(text) for text in red)


def suggest_fewer(run: CheckRun, argv: Sequence[str]) -> str:
    """Return advice for a suite that takes minutes, or ''."""
    if (
        not run.cases
        or run.findings
        or (run.duration_ms < _LONG_MS and len(run.cases) < _MANY and run.status != "timeout")
    ):
        return ""
    took = f"{run.duration_ms / 60_000:.1f} minutes for {len(run.cases):,} tests"
    shares: Counter[str] = Counter()
    for case, ms in run.durations.items():
        if "/" in (path := case.partition("::")[0]):
            shares[path.rpartition("/")[0]] += ms
    total = sum(shares.values())
    most = ", ".join(
        f"{folder} ({ms * 100 // total} %)" for folder, ms in shares.most_common(3) if total
    )
    where = f" Most of the time goes to {most}." if most else ""
    return (
        f"Each candidate is judged by the whole suite: {took}.{where} For a task that concerns a "
        f"part of it, name the test files near the change in a profile, [checks] {run.check} = "
        f'"{plain(shlex.join(argv))} PATH…", and pass it with --profile FILE.'
    )


def folder_off_the_path(run: CheckRun, files: Sequence[str]) -> tuple[str, str]:
    """Return a module of the project that the failed cases cannot import, and its folder; two empty
    strings for none.

    The folder is one such as src, which is not a package itself: it is not on the path, and the
    module is not installed.
    """
    names = [
        match["name"] if (match := _MODULE.search(text)) else ""
        for text in red_details(run) or [run.output]
    ]
    if not all(names):
        return "", ""
    present = set(files)
    for name in dict.fromkeys(names):
        ends = (f"/{name}/__init__.py", f"/{name}.py")
        holders = {path.removesuffix(end) for path in files for end in ends if path.endswith(end)}
        top = any(path in present for path in (f"{name}.py", f"{name}/__init__.py"))
        fit = sorted(folder for folder in holders if f"{folder}/__init__.py" not in present)
        if not top and fit:
            return name, min(fit, key=lambda folder: (folder.count("/"), folder))
    return "", ""
