"""An executor's answers, taken as what they must be: it is hostile, so every part is checked."""

from __future__ import annotations

from typing import Any

from moothall.domain.evidence import CheckRun, Verdict
from moothall.domain.tool import ToolCall, ToolResult, ToolStatus, ToolUsage
from moothall.errors import WorkspaceFailed
from moothall.inside import cases, checks

_CASES_SHOWN = 50
_RESULTS = frozenset({cases.PASSED, cases.FAILED, cases.ERRORED, cases.SKIPPED})


def result_of(call: ToolCall, answer: dict[str, Any]) -> ToolResult:
    """Return an answer as a tool's result. Raises `WorkspaceFailed`."""
    try:
        output = answer.get("output") or {}
        return ToolResult(
            call.request_id,
            call.tool,
            ToolStatus(answer.get("status", "")),
            output=dict(output),
            error=str(answer.get("error") or ""),
            duration_ms=int(answer.get("duration_ms", 0)),
            usage=_usage(answer),
        )
    except (TypeError, ValueError, AttributeError) as error:
        raise WorkspaceFailed(f"the executor broke its protocol: {error}") from error


def _usage(answer: dict[str, Any]) -> ToolUsage:
    used = answer.get("usage") or {}
    return ToolUsage(int(used.get("cpu_ms", 0)), int(used.get("max_rss_bytes", 0)))


def _results(answer: dict[str, Any]) -> dict[str, str]:
    found = answer.get("cases") or {}
    if not isinstance(found, dict) or not _RESULTS.issuperset(map(str, found.values())):
        raise WorkspaceFailed("the executor broke its protocol: cases are no object of results")
    return {str(case)[: cases.MAX_CASE_ID]: str(result) for case, result in found.items()}


def tests_output(answer: dict[str, Any]) -> dict[str, Any]:
    """Return what a model is shown of a test run: counts, the tests that are not green, the end of the output."""
    results = _results(answer)
    red = [case for case, result in results.items() if result in cases.RED]
    return {
        "verdict": answer.get("verdict", cases.ERRORED),
        **{word: sum(result == word for result in results.values()) for word in ("passed", "failed", "errored", "skipped")},
        "red": red[:_CASES_SHOWN],
        "exit_code": answer.get("exit_code", -1),
        "output": str(answer.get("output", "")),
    }


def check_run(name: str, answer: dict[str, Any]) -> CheckRun:
    """Return an answer to a command as the run of a check. Raises `WorkspaceFailed`."""
    try:
        status = ToolStatus(answer.get("status", ""))
        verdict = Verdict(answer.get("verdict", checks.MISSING)) if status is ToolStatus.SUCCESS else Verdict.ERRORED
        return CheckRun(
            check=name,
            verdict=verdict,
            cases=_results(answer),
            output=str(answer.get("output") or answer.get("error") or ""),
            duration_ms=int(answer.get("duration_ms", 0)),
            exit_code=int(answer.get("exit_code", -1)),
            status=status,
            details={str(case): str(said) for case, said in dict(answer.get("details") or {}).items()},
            durations={str(case): int(ms) for case, ms in dict(answer.get("durations") or {}).items()},
            findings=tuple(str(line) for line in answer.get("findings") or ()),
            usage=_usage(answer),
        )
    except (TypeError, ValueError, AttributeError) as error:
        raise WorkspaceFailed(f"the executor broke its protocol: {error}") from error
