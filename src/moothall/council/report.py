"""What a seat is told of its tools and checks: cut to a share of the window, and fenced."""

from __future__ import annotations

import json
from collections.abc import Mapping

from moothall.council.text import clip, fence
from moothall.domain.code import CodeRun
from moothall.domain.evidence import CheckRun
from moothall.domain.tool import ToolResult, ToolStatus


def result_text(number: int, result: ToolResult, room: int) -> str:
    """The status of the turn's `number`-th call, and its output or error within `room` characters."""
    said = result.error if result.status is not ToolStatus.SUCCESS else _output_text(result.output)
    head = f"{number}. {result.tool[:60]}: {result.status}"
    return f"{head}\n{fence('output', clip(said, room))}" if said else head


_TIERS = {"monty": "", "python": "in CPython, since "}


def block_text(run: CodeRun, room: int) -> str:
    """How a block of Python ended and where it ran; what it printed, its value or its error within `room` characters."""
    where = f" ({_TIERS[run.tier]}{' '.join(run.why.split())[:200]})" if run.why else ""
    said = {"printed": run.printed, "value": "" if run.value is None else json.dumps(run.value, ensure_ascii=False, default=str)}
    if run.status is not ToolStatus.SUCCESS:
        said["error"] = run.error
    parts = [fence(name, clip(text, room // 2)) for name, text in said.items() if text.strip()]
    return "\n".join([f"python: {run.status}{where}", *parts])


def _output_text(output: Mapping[str, object]) -> str:
    """A file's text as it is; anything else as JSON."""
    if len(output) == 0:
        return ""
    texts = [value for value in output.values() if isinstance(value, str) and "\n" in value]
    if len(texts) == 1:
        rest = {key: value for key, value in output.items() if value is not texts[0]}
        return f"{json.dumps(rest, ensure_ascii=False, default=str)}\n{texts[0]}" if rest else texts[0]
    return json.dumps(output, ensure_ascii=False, default=str)


def check_text(run: CheckRun, base: CheckRun | None, room: int) -> str:
    """A check's verdict; of a red one the red cases and the end of its output."""
    counted = list(run.cases.values())
    numbers = f" ({counted.count('passed')} of {len(counted)} passed)" if counted else ""
    head = f"Check {run.check}: {run.verdict}{numbers}"
    if run.verdict == "passed":
        return head
    red = [case for case, outcome in run.cases.items() if outcome in {"failed", "errored"}]
    news = [case for case in red if base is None or base.cases.get(case) == "passed"]
    broken = f"\nPassed before your change: {', '.join(news[:5])}" if news else ""
    return f"{head}\n{fence(f'output of {run.check}', clip(', '.join(red[:10]) + broken + chr(10) + run.output, room))}"
