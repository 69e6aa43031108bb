"""How long a check, and one of its cases, may take: by how long they took on the untouched base.
Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from moothall.config import SandboxSettings, WorkspaceSettings
from moothall.domain.repository import Prepared
from moothall.ranking.assess import HIT_LIMIT
from moothall.sandbox_runtime.checks import may_tell_cases

_BASE_CASE_FACTOR = 3
_SETTINGS = {
    "cpu": "sandbox.cpu_seconds",
    "memory": "sandbox.memory_bytes",
    "processes": "sandbox.processes",
    "disk": "sandbox.disk_bytes",
    "output": "sandbox.output_bytes",
}


@dataclass(frozen=True, slots=True)
class CheckLimit:
    """Seconds of a whole check and of one case; `why` says where the first comes from."""

    seconds: float
    case_seconds: float
    why: str


def limit(settings: WorkspaceSettings, prepared: Prepared, name: str) -> CheckLimit:
    """Return the limit of a check of `prepared`; without a run of the base, that of the base
    itself.
    """
    most, base = settings.check_seconds, prepared.runs.get(name)
    if base is None:
        why, profile = "workspace.check_seconds", prepared.base.profile
        silent = not may_tell_cases(profile.checks.get(name, ())) and name not in profile.reports
        if silent and settings.base_seconds < most:
            most, why = settings.base_seconds, "workspace.base_seconds"
        return CheckLimit(most, min(most, _BASE_CASE_FACTOR * settings.case_seconds), why)
    stopped = {case for case, said in base.details.items() if HIT_LIMIT in said}
    took = base.duration_ms / 1000 - sum(base.durations.get(case, 0) for case in stopped) / 1000
    if base.status != "success":  # it was stopped as a whole: what its cases took is what is known
        took = sum(ms for case, ms in base.durations.items() if case not in stopped) / 1000
    longest = (
        max((ms for case, ms in base.durations.items() if case not in stopped), default=0) / 1000
    )
    case_seconds = max(settings.case_seconds, settings.check_factor * longest)
    allowed = settings.check_factor * max(took, 0.0)
    if allowed > most:
        return CheckLimit(most, min(most, case_seconds), "workspace.check_seconds")
    if allowed > settings.check_floor_seconds:
        return CheckLimit(
            allowed,
            case_seconds,
            f"workspace.check_factor times the {took:.1f} s of the untouched base",
        )
    seconds = min(most, settings.check_floor_seconds)
    return CheckLimit(seconds, min(seconds, case_seconds), "workspace.check_floor_seconds")


def describe_limit(name: str, status: str, given: CheckLimit, sandbox: SandboxSettings) -> str:
    """Say which limit a check hit, and which setting it is."""
    if status == "timeout":
        return f"{name} {HIT_LIMIT} {given.seconds:.0f} s ({given.why})"
    if setting := _SETTINGS.get(status):
        value = getattr(sandbox, setting.partition(".")[2])
        return (
            f"{name} hit the limit of {status} ({setting} = {value:g})"
            if status != "cpu"
            else f"{name} hit a limit of CPU time"
        )
    return f"{name} was stopped: {status}"


def describe_shell_limit(
    status: str, seconds: float, asked: float, most: float, sandbox: SandboxSettings
) -> str:
    """Say why a command of the shell was stopped, and what to do about it; '' for one that ended by
    itself. `asked` is the time that it was to have, `seconds` what it had, and `most` what a
    command may have.
    """
    if status == "timeout":
        more = f"timeout_seconds gives a command up to {most:g} s (code.shell_seconds)"
        if asked >= most:
            more = (
                f"{most:g} s is the most that a command may take (code.shell_seconds); run less at "
                "once"
            )
        if seconds < min(asked, most) - 1:
            more = "no more time was left for it"
        return (
            f"the command was stopped after {seconds:.0f} s; {more}. What it printed until then is "
            "in the output"
        )
    if setting := _SETTINGS.get(status):
        if status == "cpu":
            return "the command hit a limit of CPU time and was stopped"
        value = getattr(sandbox, setting.partition(".")[2])
        return f"the command hit the limit of {status} and was stopped ({setting} = {value:g})"
    return "" if status == "success" else f"the command was stopped: {status}"


def describe_setup_limit(status: str, sandbox: SandboxSettings) -> str:
    """Return which of our limits a command of a set-up hit, with its setting, or ''."""
    setting = _SETTINGS.get(status, "")
    if not setting:
        return ""
    said = f"{setting} = {getattr(sandbox, setting.partition('.')[2]):g}"
    if status == "disk":
        return (
            f"a file may have {said} bytes, and /tmp half of sandbox.memory_bytes = "
            f"{sandbox.memory_bytes:g}; raise it, unless the disk itself is full"
        )
    return said
