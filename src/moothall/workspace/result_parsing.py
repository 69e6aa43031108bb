"""Parsing of an executor's answers. They are hostile, so each part is checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moothall.domain.evidence import CheckRun, Verdict
from moothall.domain.tool import ToolCall, ToolResult, ToolStatus, ToolUsage
from moothall.errors import WorkspaceFailed
from moothall.sandbox.bubblewrap import WORKSPACE
from moothall.sandbox.cgroups import cores
from moothall.sandbox_runtime import cases, checks
from moothall.sandbox_runtime.tool_proxy import plain

PARSE_ERRORS = (TypeError, ValueError, AttributeError, RecursionError)
"""Errors that the parsing of an invalid answer raises."""
_CASES_SHOWN = 50
_MIN_WAIT_SHARE, _ALL_CORES_SHARE = 0.2, 0.8
"""Shares of a command's time, and of the time of all cores."""
_MAX_INTEGER = 1 << 53
"""The largest integer that all APIs can represent."""
_RESULTS = frozenset({cases.PASSED, cases.FAILED, cases.ERRORED, cases.SKIPPED})


def parse_result(call: ToolCall, answer: dict[str, Any]) -> ToolResult:
    """Parse the result of a tool. Raises `WorkspaceFailed`."""
    try:
        return ToolResult(
            call.request_id,
            call.tool,
            ToolStatus(answer.get("status", "")),
            output=plain(dict(answer.get("output") or {})),
            error=str(answer.get("error") or ""),
            duration_ms=parse_integer(answer.get("duration_ms", 0)),
            usage=parse_usage(answer),
        )
    except PARSE_ERRORS as error:
        raise WorkspaceFailed(f"the executor broke its protocol: {error}") from error


def parse_integer(value: object) -> int:
    """Convert a number to an integer. Raises `ValueError` for anything else, such as Infinity,
    which Python's JSON parser accepts.
    """
    if not isinstance(value, int | float) or not abs(value) <= _MAX_INTEGER:
        raise ValueError(f"{str(value)[:40]!r} is not a number")
    return int(value)


def parse_usage(answer: Mapping[str, Any]) -> ToolUsage:
    """Parse the resource usage in an answer. Raises `PARSE_ERRORS`."""
    usage = answer.get("usage") or {}
    return ToolUsage(
        parse_integer(usage.get("cpu_ms", 0)), parse_integer(usage.get("max_rss_bytes", 0))
    )


def _is_contended(answer: Mapping[str, Any]) -> bool:
    """Return whether a command waited for cores that other processes used. That is not so if it
    used nearly all cores itself.
    """
    duration, cpu = parse_integer(answer.get("duration_ms", 0)), parse_usage(answer).cpu_ms
    waited = parse_integer(answer.get("contended_ms", 0)) >= _MIN_WAIT_SHARE * duration
    return waited and duration > 0 and cpu < _ALL_CORES_SHARE * duration * cores()


def _results(answer: dict[str, Any]) -> dict[str, str]:
    results = answer.get("cases") or {}
    if not isinstance(results, dict) or not _RESULTS.issuperset(map(str, results.values())):
        raise WorkspaceFailed("the executor broke its protocol: cases must be an object of results")
    return {str(case)[: cases.MAX_CASE_ID]: str(result) for case, result in results.items()}


def parse_tests_output(answer: dict[str, Any]) -> dict[str, Any]:
    """Parse the result of a test run for a model: counts, failing tests, and the end of the
    output.
    """
    results = _results(answer)
    failing = [case for case, result in results.items() if result in cases.RED]
    return {
        "verdict": answer.get("verdict", cases.ERRORED),
        **{
            result_name: sum(result == result_name for result in results.values())
            for result_name in ("passed", "failed", "errored", "skipped")
        },
        "red": failing[:_CASES_SHOWN],
        "exit_code": answer.get("exit_code", -1),
        "output": str(answer.get("output", "")),
    }


def parse_code_output(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the exit code and output of code, as far as it ran."""
    return {name: answer[name] for name in ("exit_code", "output") if answer.get(name) is not None}


def parse_shell_answer(answer: dict[str, Any], stopped: str) -> dict[str, Any]:
    """Parse the answer to a shell command; `stopped` is the reason if it did not end by itself."""
    folder, ended, note = (answer.get(name) for name in ("folder", "left", "note"))
    output = parse_code_output(answer)
    output |= (
        {"working_directory": folder} if isinstance(folder, str) and folder != WORKSPACE else {}
    )
    output |= (
        {"ended_processes": [str(process) for process in ended]}
        if isinstance(ended, list) and ended
        else {}
    )
    output |= {"note": str(note)} if note else {}
    return {**answer, "output": output, "error": answer.get("error") or stopped}


def parse_check_run(name: str, answer: dict[str, Any]) -> CheckRun:
    """Parse the answer to a check. Raises `WorkspaceFailed`."""
    try:
        status = ToolStatus(answer.get("status", ""))
        verdict = (
            Verdict(answer.get("verdict", checks.MISSING))
            if status is ToolStatus.SUCCESS
            else Verdict.ERRORED
        )
        return CheckRun(
            check=name,
            verdict=verdict,
            cases=_results(answer),
            output=str(answer.get("output") or answer.get("error") or ""),
            duration_ms=parse_integer(answer.get("duration_ms", 0)),
            exit_code=parse_integer(answer.get("exit_code", -1)),
            status=status,
            details={
                str(case): str(detail) for case, detail in dict(answer.get("details") or {}).items()
            },
            durations={
                str(case): parse_integer(ms)
                for case, ms in dict(answer.get("durations") or {}).items()
            },
            findings=tuple(str(line) for line in answer.get("findings") or ()),
            usage=parse_usage(answer),
            contended=_is_contended(answer),
        )
    except PARSE_ERRORS as error:
        raise WorkspaceFailed(f"the executor broke its protocol: {error}") from error
