"""Between a box and whoever answers what runs in it: a block of Python that asks, a program that is
talked to. What comes from the box is hostile.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from moothall.domain.code import Ask, BlockRun
from moothall.domain.text import encodable
from moothall.domain.tool import ToolStatus
from moothall.errors import MoothallError, WorkspaceFailed
from moothall.ports import Hear
from moothall.sandbox.bubblewrap import ENVIRONMENT
from moothall.sandbox_runtime.stdio_process import COMMAND
from moothall.sandbox_runtime.tool_proxy import plain
from moothall.workspace.executor_client import Answer, ExecutorClient
from moothall.workspace.result_parsing import BROKEN, usage_of, whole

_ERROR_CHARS = 4000
_ENDS = frozenset({"success", "error", "memory"})
"""How a block may say that it ended: all else only those can know who watch it."""


class RequestAnswerer:
    """Answers a box's questions with `ask`; remembers what that raised, which is not the box's
    fault. One that goes on asking after `most` questions, whatever it was answered, is `endless`:
    its time stands still while it asks.
    """

    def __init__(self, ask: Ask, most: int) -> None:
        self._ask = ask
        self._left = most
        self.failed: MoothallError | None = None

    @property
    def endless(self) -> bool:
        """Whether it asked too often."""
        return self._left < 0

    async def __call__(self, message: Answer) -> Answer:
        """Return the answer to a question. Raises `WorkspaceFailed` where it is one too many."""
        self._left -= 1
        if self.endless:
            raise WorkspaceFailed("it asked for more than it may, again and again")
        arguments = message.get("args")
        try:
            result = await self._ask(
                str(message.get("name")), arguments if isinstance(arguments, Mapping) else {}
            )
        except MoothallError as error:
            self.failed = error
            raise
        return {"status": str(result.status), "output": dict(result.output), "error": result.error}


def code_run(answer: Answer, most: int) -> BlockRun:
    """Return a box's answer as a run; it is hostile, so every part is made what it must be. Raises
    `WorkspaceFailed`.
    """
    try:
        status = ToolStatus(answer.get("status", ""))
        duration, usage = whole(answer.get("duration_ms") or 0), usage_of(answer)
    except BROKEN as error:
        raise WorkspaceFailed(f"the runner broke its protocol: {error}") from error
    value, error_text = answer.get("value"), cut(str(answer.get("error") or ""))
    if status is not ToolStatus.SUCCESS:
        value = None
    elif _size(value) > most:
        status, value, error_text = (
            ToolStatus.OUTPUT,
            None,
            f"its last expression has more than {most} bytes; keep it small",
        )
    printed = encodable(str(answer.get("printed") or "")[: 2 * most])
    return BlockRun(status, _read(value), printed, error_text, duration_ms=duration, usage=usage)


def full_run(answer: Answer, most: int) -> BlockRun:
    """Return an executor's answer about a block under CPython as a run. Raises
    `WorkspaceFailed`.
    """
    end = answer.get("end")
    printed, status = answer.get("output"), answer.get("status")
    told: Answer = {
        "printed": printed,
        "duration_ms": answer.get("duration_ms"),
        "usage": answer.get("usage"),
    }
    if status != "success":
        return code_run({**told, "status": status, "error": f"it was stopped: {status}"}, most)
    if not isinstance(end, Mapping):
        return code_run(
            {
                **told,
                "status": "error",
                "error": f"it ended by itself with exit code {answer.get('exit_code')}",
            },
            most,
        )
    said = end.get("status")
    ended = said if isinstance(said, str) and said in _ENDS else "error"
    return code_run(
        {**told, "status": ended, "value": end.get("value"), "error": end.get("error")}, most
    )


def most_asked(tool_calls: int) -> int:
    """Return how often a block may ask that may call so many tools: refusals are heard, and the
    last of them.
    """
    return 2 * tool_calls + 100


def endless_run() -> BlockRun:
    """Return how a block ended that was `endless`."""
    return BlockRun(
        ToolStatus.BUDGET_EXCEEDED,
        error="it went on asking for more than tools may be called, and was ended",
    )


def _read(value: Any) -> Any:
    """Return a value as plain JSON, which every door can tell: no NaN, no depths, no halves of
    characters.
    """
    return json.loads(encodable(json.dumps(plain(value), ensure_ascii=False)))


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
    text = encodable(text)
    return text if len(text) <= _ERROR_CHARS else f"…{text[-_ERROR_CHARS:]}"


_MOST_ASKED = 10_000


async def converse(
    box: ExecutorClient, argv: Sequence[str], hear: Hear, seconds: float, most: int
) -> str:
    """Run a program in a box and carry lines between it and `hear`. See
    `ports.Workspace.converse`.
    """
    left = _MOST_ASKED

    async def answer_lines(message: Answer) -> Answer:
        nonlocal left
        left -= 1
        arguments = message.get("args")
        lines = arguments.get("lines") if isinstance(arguments, Mapping) else None
        told = await hear(
            [line for line in lines if isinstance(line, str)] if isinstance(lines, list) else []
        )
        return {"lines": list(told or ()), "end": told is None or left < 0}

    env = box.variables()
    # What is run is the operator's choice, and no program of that name that a repository brought.
    env["PATH"] = ":".join(
        folder for folder in env["PATH"].split(":") if not folder.startswith(f"{ENVIRONMENT}/")
    )
    answer = await box.request(
        "run",
        wall_seconds=seconds,
        asked=answer_lines,
        unslotted=True,  # it waits for the other side for most of its life
        argv=(box.python, "-B", "-c", COMMAND),
        env=env,
        block={"argv": list(argv), "most": most},
    )
    end = answer.get("end")
    if answer.get("status") != "success":
        why = f"it was stopped: {str(answer.get('status'))[:40]}"
    elif not isinstance(end, Mapping):
        why = f"it ended by itself with exit code {answer.get('exit_code')}"
    elif not (why := str(end.get("ended") or "")):
        return ""
    said = str(answer.get("output") or "").strip()
    return cut(f"{why}; it said: {said}" if said else why)
