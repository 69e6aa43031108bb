"""The list of tasks for commands: from the process that serves this data directory, which has all
modules loaded, or else from the log.

Lists are requested often, so a command imports the modules that read the log only if no process
answers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moothall.config import Settings
from moothall.domain.codec import dump, load
from moothall.domain.status import TaskView
from moothall.errors import InvalidRequest, MoothallError
from moothall.processes import send_request, serve_requests

if TYPE_CHECKING:
    from moothall.app.tasks import Tasks

_ANSWER_SECONDS = 5.0
"""How long a serving process may take until the log is read instead."""


@dataclass(frozen=True, slots=True)
class ListRequest:
    """The tasks to list, as in `Tasks.latest`."""

    state: str = ""
    limit: int = 20
    query: str = ""
    first: int = 0


@dataclass(frozen=True, slots=True)
class TaskList:
    """Tasks, and whether a process works on the unfinished ones."""

    served: bool
    tasks: tuple[TaskView, ...]


async def list_tasks(
    settings: Settings, request: ListRequest, report_progress: Callable[[str], None]
) -> TaskList:
    """Return the latest tasks, active ones first."""
    answer = await request_list(settings.data_dir, request)
    if answer is not None:
        return answer
    from moothall.app.tasks import open_tasks

    async with open_tasks(settings, report_progress) as tasks:
        return await _read_list(tasks, request)


async def request_list(data_dir: Path, request: ListRequest) -> TaskList | None:
    """Return the answer of the process that serves the data directory; None if none serves it, it
    does not answer in time, or it has another version.
    """
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            return load(TaskList, await send_request(_socket(data_dir), asdict(request)))
    except (OSError, ValueError, InvalidRequest):
        return None


def serve_task_list(tasks: Tasks, data_dir: Path) -> AbstractAsyncContextManager[None]:
    """Answer the requests of `list_tasks` for the duration of the block."""

    async def answer(line: bytes) -> Mapping[str, Any]:
        try:
            return dump(await _read_list(tasks, load(ListRequest, json.loads(line))))
        except MoothallError as error:
            return {"code": error.code, "message": error.message}

    return serve_requests(_socket(data_dir), answer)


async def _read_list(tasks: Tasks, request: ListRequest) -> TaskList:
    views = await tasks.latest(
        request.state, request.limit, query=request.query, first=request.first
    )
    return TaskList(tasks.served, tuple(views))


def _socket(data_dir: Path) -> Path:
    return data_dir / "tasks.sock"
