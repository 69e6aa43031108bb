"""Between a box that runs a block of Python and whoever answers what the block asks. What comes from the box is hostile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moothall.domain.code import Ask, CodeRun
from moothall.domain.tool import ToolStatus, ToolUsage
from moothall.errors import MoothallError, WorkspaceFailed
from moothall.workspace.box import Answer

_ERROR_CHARS = 4000


class Asking:
    """Answers a box's questions with `ask`; remembers what that raised, which is not the box's fault."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self.failed: MoothallError | None = None

    async def __call__(self, message: Answer) -> Answer:
        """Return the answer to a question."""
        arguments = message.get("args")
        try:
            result = await self._ask(str(message.get("name")), arguments if isinstance(arguments, Mapping) else {})
        except MoothallError as error:
            self.failed = error
            raise
        return {"status": str(result.status), "output": dict(result.output), "error": result.error}


def code_run(answer: Answer, most: int) -> CodeRun:
    """Return a box's answer as a run; it is hostile, so every part is made what it must be. Raises `WorkspaceFailed`."""
    try:
        status = ToolStatus(answer.get("status", ""))
        duration, used = int(answer.get("duration_ms") or 0), answer.get("usage") or {}
        usage = ToolUsage(int(used.get("cpu_ms", 0)), int(used.get("max_rss_bytes", 0)))
    except (TypeError, ValueError, AttributeError) as error:
        raise WorkspaceFailed(f"the runner broke its protocol: {error}") from error
    value, error_text = answer.get("value"), cut(str(answer.get("error") or ""))
    if status is ToolStatus.SUCCESS and _size(value) > most:
        status, value, error_text = ToolStatus.OUTPUT, None, f"its last expression has more than {most} bytes; keep it small"
    printed = str(answer.get("printed") or "")[: 2 * most]
    return CodeRun(status, value, printed, error_text, duration_ms=duration, usage=usage)


def full_run(answer: Answer, most: int) -> CodeRun:
    """Return an executor's answer about a block under CPython as a run. Raises `WorkspaceFailed`."""
    end = answer.get("end")
    printed, status = answer.get("output"), answer.get("status")
    told: Answer = {"printed": printed, "duration_ms": answer.get("duration_ms"), "usage": answer.get("usage")}
    if status != "success":
        return code_run({**told, "status": status, "error": f"it was stopped: {status}"}, most)
    if not isinstance(end, Mapping):
        return code_run(
            {**told, "status": "error", "error": f"it ended by itself with exit code {answer.get('exit_code')}"}, most
        )
    return code_run({**told, "status": end.get("status"), "value": end.get("value"), "error": end.get("error")}, most)


def _size(value: Any) -> int:
    size, left = 0, [value]
    while left:
        item = left.pop()
        size += len(item) if isinstance(item, str) else 8
        if isinstance(item, Mapping):
            left += [*item.keys(), *item.values()]
        elif isinstance(item, list):
            left += item
    return size


def cut(text: str) -> str:
    """Return the end of a text, where errors say what they are."""
    return text if len(text) <= _ERROR_CHARS else f"…{text[-_ERROR_CHARS:]}"
