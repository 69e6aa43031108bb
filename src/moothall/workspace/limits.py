"""Time limits of checks and their cases, derived from their times on the untouched base. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from moothall.config import SandboxSettings, WorkspaceSettings
from moothall.domain.repository import Prepared
from moothall.ranking.assess import HIT_LIMIT
from moothall.sandbox_runtime.checks import may_report_cases

_BASE_FACTOR = 5.0
"""The limit of a check or a case, as a multiple of its duration on the untouched base."""
_BASE_CASE_FACTOR = 3
_CASES_PER_FLOOR = 6
"""The minimum limit of a case is this part of `workspace.check_floor_seconds`."""
_FLOORS_WITHOUT_CASES = 4
"""The limit on the base of a command that names no cases, in `workspace.check_floor_seconds`."""
MAX_OUTPUT_BYTES = 200_000
"""The output of a command in its answer; more is truncated and counted."""
_SETTINGS = {
    "memory": "sandbox.memory_bytes",
    "processes": "sandbox.processes",
    "disk": "sandbox.disk_bytes",
}


@dataclass(frozen=True, slots=True)
class CheckLimit:
    """The limits of a check and of a case in seconds; `origin` explains the limit of the check."""

    seconds: float
    case_seconds: float
    origin: str


def limit(settings: WorkspaceSettings, prepared: Prepared, name: str) -> CheckLimit:
    """Return the limit of a check of `prepared`. If it did not run on the base yet, return the
    limit for the base.
    """
    max_seconds, base = settings.check_seconds, prepared.runs.get(name)
    min_case_seconds = settings.check_floor_seconds / _CASES_PER_FLOOR
    if base is None:
        reason, profile = "workspace.check_seconds", prepared.base.profile
        names_no_cases = (
            not may_report_cases(profile.checks.get(name, ())) and name not in profile.reports
        )
        whole_seconds = _FLOORS_WITHOUT_CASES * settings.check_floor_seconds
        if names_no_cases and whole_seconds < max_seconds:
            max_seconds = whole_seconds
            reason = f"{_FLOORS_WITHOUT_CASES} times workspace.check_floor_seconds"
        return CheckLimit(
            max_seconds, min(max_seconds, _BASE_CASE_FACTOR * min_case_seconds), reason
        )
    stopped_cases = {case for case, detail in base.details.items() if HIT_LIMIT in detail}
    base_seconds = (
        base.duration_ms / 1000 - sum(base.durations.get(case, 0) for case in stopped_cases) / 1000
    )
    if base.status != "success":  # it was stopped as a whole, so count the finished cases
        base_seconds = (
            sum(ms for case, ms in base.durations.items() if case not in stopped_cases) / 1000
        )
    longest = (
        max((ms for case, ms in base.durations.items() if case not in stopped_cases), default=0)
        / 1000
    )
    case_seconds = max(min_case_seconds, _BASE_FACTOR * longest)
    factor_seconds = _BASE_FACTOR * max(base_seconds, 0.0)
    if factor_seconds > max_seconds:
        return CheckLimit(max_seconds, min(max_seconds, case_seconds), "workspace.check_seconds")
    if factor_seconds > settings.check_floor_seconds:
        return CheckLimit(
            factor_seconds,
            case_seconds,
            f"{_BASE_FACTOR:g} times the {base_seconds:.1f} s of the untouched base",
        )
    seconds = min(max_seconds, settings.check_floor_seconds)
    return CheckLimit(seconds, min(seconds, case_seconds), "workspace.check_floor_seconds")


def describe_limit(
    name: str, status: str, check_limit: CheckLimit, sandbox: SandboxSettings
) -> str:
    """Return which limit a check hit, and its setting."""
    if status == "timeout":
        return f"{name} {HIT_LIMIT} {check_limit.seconds:.0f} s ({check_limit.origin})"
    if status == "cpu":
        return f"{name} hit a limit of CPU time"
    if status == "output":
        return f"{name} hit the limit of output"
    if setting := _SETTINGS.get(status):
        value = getattr(sandbox, setting.partition(".")[2])
        return f"{name} hit the limit of {status} ({setting} = {value:g})"
    return f"{name} was stopped: {status}"


def describe_shell_limit(
    status: str, seconds: float, requested: float, max_seconds: float, sandbox: SandboxSettings
) -> str:
    """Return why a shell command was stopped, with advice; '' for one that ended by itself.

    seconds: the time that it had.
    requested: the time that the caller asked for.
    max_seconds: the time that a command may have at most.
    """
    if status == "timeout":
        advice = (
            f"timeout_seconds gives a command up to {max_seconds:g} s (workspace.check_seconds)"
        )
        if requested >= max_seconds:
            advice = (
                f"a command may take at most {max_seconds:g} s (workspace.check_seconds); run "
                "less at once"
            )
        if seconds < min(requested, max_seconds) - 1:
            advice = "no time was left for it"
        return (
            f"the command was stopped after {seconds:.0f} s; {advice}. What it printed until then "
            "is in the output"
        )
    if status == "cpu":
        return "the command hit a limit of CPU time and was stopped"
    if status == "output":
        return "the command hit the limit of output and was stopped; print less"
    if setting := _SETTINGS.get(status):
        value = getattr(sandbox, setting.partition(".")[2])
        return f"the command hit the limit of {status} and was stopped ({setting} = {value:g})"
    return "" if status == "success" else f"the command was stopped: {status}"


def describe_setup_limit(status: str, sandbox: SandboxSettings) -> str:
    """Return which of our limits a command of a set-up hit, with its setting, or ''."""
    setting = _SETTINGS.get(status, "")
    if not setting:
        return ""
    value = f"{setting} = {getattr(sandbox, setting.partition('.')[2]):g}"
    if status == "disk":
        return (
            f"a file may have {value} bytes, and /tmp half of sandbox.memory_bytes = "
            f"{sandbox.memory_bytes:g}; raise it, unless the disk itself is full"
        )
    return value
