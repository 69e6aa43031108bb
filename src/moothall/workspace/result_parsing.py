"""An executor's answers, taken as what they must be: it is hostile, so every part is checked."""

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

BROKEN = (TypeError, ValueError, AttributeError, RecursionError)
"""What reading an answer raises that is none."""
_CASES_SHOWN = 50
_WAITED, _ALL = 0.2, 0.8  # shares of a command's time, and of all cores
_MOST = 1 << 53  # beyond it not every door can tell a number
_RESULTS = frozenset({cases.PASSED, cases.FAILED, cases.ERRORED, cases.SKIPPED})


def result_of(call: ToolCall, answer: dict[str, Any]) -> ToolResult:
    """Return an answer as a tool's result. Raises `WorkspaceFailed`."""
    try:
        return ToolResult(
            call.request_id,
            call.tool,
            ToolStatus(answer.get("status", "")),
            output=plain(dict(answer.get("output") or {})),
            error=str(answer.get("error") or ""),
            duration_ms=whole(answer.get("duration_ms", 0)),
            usage=usage_of(answer),
        )
    except BROKEN as error:
        raise WorkspaceFailed(f"the executor broke its protocol: {error}") from error


def whole(value: object) -> int:
    """Return a number as a whole one that can be told. Raises `ValueError` for what is none: JSON
    as it is read here knows Infinity.
    """
    if not isinstance(value, int | float) or not abs(value) <= _MOST:
        raise ValueError(f"{str(value)[:40]!r} where a number belongs")
    return int(value)


def usage_of(answer: Mapping[str, Any]) -> ToolUsage:
    """Return what an answer says that was used. Raises what is `BROKEN`."""
    used = answer.get("usage") or {}
    return ToolUsage(whole(used.get("cpu_ms", 0)), whole(used.get("max_rss_bytes", 0)))


def _is_contended(answer: Mapping[str, Any]) -> bool:
    """Whether a command waited for cores that others used. It did not if it used nearly all cores
    itself.
    """
    duration, cpu = whole(answer.get("duration_ms", 0)), usage_of(answer).cpu_ms
    waited = whole(answer.get("contended_ms", 0)) >= _WAITED * duration
    return waited and duration > 0 and cpu < _ALL * duration * cores()


def _results(answer: dict[str, Any]) -> dict[str, str]:
    found = answer.get("cases") or {}
    if not isinstance(found, dict) or not _RESULTS.issuperset(map(str, found.values())):
        raise WorkspaceFailed("the executor broke its protocol: cases are no object of results")
    return {str(case)[: cases.MAX_CASE_ID]: str(result) for case, result in found.items()}


def tests_output(answer: dict[str, Any]) -> dict[str, Any]:
    """Return what a model is shown of a test run: counts, the tests that are not green, the end of
    the output.
    """
    results = _results(answer)
    red = [case for case, result in results.items() if result in cases.RED]
    return {
        "verdict": answer.get("verdict", cases.ERRORED),
        **{
            word: sum(result == word for result in results.values())
            for word in ("passed", "failed", "errored", "skipped")
        },
        "red": red[:_CASES_SHOWN],
        "exit_code": answer.get("exit_code", -1),
        "output": str(answer.get("output", "")),
    }


def code_output(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a caller is shown of a piece of code: nothing where it did not run."""
    return {name: answer[name] for name in ("exit_code", "output") if answer.get(name) is not None}


def shell_answer(answer: dict[str, Any], stopped: str) -> dict[str, Any]:
    """Return an answer to a command of the shell as the tool's; `stopped` says why it did not end
    by itself.
    """
    folder, left, note = (answer.get(name) for name in ("folder", "left", "note"))
    output = code_output(answer)
    output |= (
        {"working_directory": folder} if isinstance(folder, str) and folder != WORKSPACE else {}
    )
    output |= (
        {"ended_processes": [str(one) for one in left]} if isinstance(left, list) and left else {}
    )
    output |= {"note": str(note)} if note else {}
    return {**answer, "output": output, "error": answer.get("error") or stopped}


def check_run(name: str, answer: dict[str, Any]) -> CheckRun:
    """Return an answer to a command as the run of a check. Raises `WorkspaceFailed`."""
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
            duration_ms=whole(answer.get("duration_ms", 0)),
            exit_code=whole(answer.get("exit_code", -1)),
            status=status,
            details={
                str(case): str(said) for case, said in dict(answer.get("details") or {}).items()
            },
            durations={
                str(case): whole(ms) for case, ms in dict(answer.get("durations") or {}).items()
            },
            findings=tuple(str(line) for line in answer.get("findings") or ()),
            usage=usage_of(answer),
            contended=_is_contended(answer),
        )
    except BROKEN as error:
        raise WorkspaceFailed(f"the executor broke its protocol: {error}") from error
