"""Sessions with code in an executor: a block of Python that asks questions, or a program that talks
to its caller. All input from the executor is hostile.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from moothall.domain.code import Ask, BlockRun
from moothall.domain.text import encodable
from moothall.domain.tool import ToolStatus
from moothall.errors import MoothallError, WorkspaceFailed
from moothall.ports import HandleLines
from moothall.sandbox.bubblewrap import ENVIRONMENT
from moothall.sandbox_runtime import harness_process, stdio_process
from moothall.sandbox_runtime.tool_proxy import plain
from moothall.workspace.executor_client import Answer, ExecutorClient
from moothall.workspace.result_parsing import PARSE_ERRORS, parse_integer, parse_usage

BLOCK_OUTPUT_BYTES = 50_000
"""The maximum size of a block's output, and of its value."""
_ERROR_CHARS = 4000
_ENDS = frozenset({"success", "error", "memory"})
"""The statuses that a block may report itself; only its supervisor can know the others."""


class RequestAnswerer:
    """Answers questions of an executor with `ask`, and keeps the error that it raised.

    A block that asks more than `limit` questions is `endless`: its time does not run while it asks.
    """

    def __init__(self, ask: Ask, limit: int) -> None:
        self._ask = ask
        self._remaining = limit
        self.failed: MoothallError | None = None

    @property
    def endless(self) -> bool:
        """Whether there were too many questions."""
        return self._remaining < 0

    async def __call__(self, message: Answer) -> Answer:
        """Answer a question. Raises `WorkspaceFailed` if there were too many."""
        self._remaining -= 1
        if self.endless:
            raise WorkspaceFailed("it kept asking after the limit of questions")
        arguments = message.get("args")
        try:
            result = await self._ask(
                str(message.get("name")), arguments if isinstance(arguments, Mapping) else {}
            )
        except MoothallError as error:
            self.failed = error
            raise
        return {"status": str(result.status), "output": dict(result.output), "error": result.error}


def code_run(answer: Answer, max_bytes: int) -> BlockRun:
    """Parse an executor's answer, which is hostile. Raises `WorkspaceFailed`."""
    try:
        status = ToolStatus(answer.get("status", ""))
        duration, usage = parse_integer(answer.get("duration_ms") or 0), parse_usage(answer)
    except PARSE_ERRORS as error:
        raise WorkspaceFailed(f"the runner broke its protocol: {error}") from error
    value, error_text = answer.get("value"), cut(str(answer.get("error") or ""))
    if status is not ToolStatus.SUCCESS:
        value = None
    elif _size(value) > max_bytes:
        status, value, error_text = (
            ToolStatus.OUTPUT,
            None,
            f"its last expression has more than {max_bytes} bytes; keep it small",
        )
    printed = encodable(str(answer.get("printed") or "")[: 2 * max_bytes])
    return BlockRun(status, _read(value), printed, error_text, duration_ms=duration, usage=usage)


def full_run(answer: Answer, max_bytes: int) -> BlockRun:
    """Parse an executor's answer about a block in CPython. Raises `WorkspaceFailed`."""
    end = answer.get("end")
    printed, status = answer.get("output"), answer.get("status")
    fields: Answer = {
        "printed": printed,
        "duration_ms": answer.get("duration_ms"),
        "usage": answer.get("usage"),
    }
    if status != "success":
        return code_run(
            {**fields, "status": status, "error": f"it was stopped: {status}"}, max_bytes
        )
    if not isinstance(end, Mapping):
        return code_run(
            {
                **fields,
                "status": "error",
                "error": f"it ended by itself with exit code {answer.get('exit_code')}",
            },
            max_bytes,
        )
    reported_status = end.get("status")
    block_status = (
        reported_status
        if isinstance(reported_status, str) and reported_status in _ENDS
        else "error"
    )
    return code_run(
        {
            **fields,
            "status": block_status,
            "value": end.get("value"),
            "error": end.get("error"),
        },
        max_bytes,
    )


def max_questions(tool_calls: int) -> int:
    """Return how many questions a block may ask that may call so many tools. Refused calls count
    too.
    """
    return 2 * tool_calls + 100


def endless_run() -> BlockRun:
    """Return the result of an `endless` block."""
    return BlockRun(
        ToolStatus.BUDGET_EXCEEDED,
        error="it kept calling tools after their limit, and was ended",
    )


def _read(value: Any) -> Any:
    """Return a value as plain JSON for all APIs: no NaN, no deep nesting, no lone surrogates."""
    return json.loads(encodable(json.dumps(plain(value), ensure_ascii=False)))


def _size(value: Any) -> int:
    size, remaining = 0, [value]
    while remaining:
        item = remaining.pop()
        size += len(item) if isinstance(item, str) else 8
        if isinstance(item, Mapping):
            remaining += [*item.keys(), *item.values()]
        elif isinstance(item, list):
            remaining += item
    return size


def cut(text: str) -> str:
    """Return the end of a text, since the cause of an error is at its end."""
    text = encodable(text)
    return text if len(text) <= _ERROR_CHARS else f"…{text[-_ERROR_CHARS:]}"


_MAX_MESSAGES, _MAX_AGENT_MESSAGES = 10_000, 200_000


async def converse(
    executor: ExecutorClient,
    argv: Sequence[str],
    handle_lines: HandleLines,
    seconds: float,
    max_bytes: int,
    *,
    variables: Mapping[str, str] | None,
) -> str:
    """Run a program in an executor and pass lines between it and `handle_lines`. See
    `ports.Workspace.converse`.
    """
    remaining = _MAX_MESSAGES if variables is None else _MAX_AGENT_MESSAGES

    async def answer_lines(message: Answer) -> Answer:
        nonlocal remaining
        remaining -= 1
        arguments = message.get("args")
        lines = arguments.get("lines") if isinstance(arguments, Mapping) else None
        reply = await handle_lines(
            [line for line in lines if isinstance(line, str)] if isinstance(lines, list) else []
        )
        return {"lines": list(reply or ()), "end": reply is None or remaining < 0}

    env = executor.variables()
    # The operator chose the program, so one of that name in the repository's environment must not
    # be run.
    path = ":".join(
        folder for folder in env["PATH"].split(":") if not folder.startswith(f"{ENVIRONMENT}/")
    )
    block: dict[str, Any] = {"argv": list(argv), "most": max_bytes}
    if variables is None:
        command, env["PATH"] = stdio_process.COMMAND, path
    else:  # an agent runs the project's own commands, so only itself is looked for elsewhere
        command = harness_process.COMMAND
        block |= {"variables": dict(variables), "path": path}
    answer = await executor.request(
        "run" if variables is None else "shell",  # of the latter, `seconds` is the limit
        wall_seconds=seconds,
        answer_question=answer_lines,
        unslotted=True,  # it mostly waits for its caller
        argv=(executor.python, "-B", "-c", command),
        env=env,
        block=block,
    )
    end = answer.get("end")
    if answer.get("status") != "success":
        reason = f"it was stopped: {str(answer.get('status'))[:40]}"
    elif not isinstance(end, Mapping):
        reason = f"it ended by itself with exit code {answer.get('exit_code')}"
    elif not (reason := str(end.get("ended") or "")):
        return ""
    output = str(answer.get("output") or "").strip()
    return cut(f"{reason}; its output: {output}" if output else reason)
