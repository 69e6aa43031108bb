"""The blocking client: it runs the asynchronous client on an event loop in a separate thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from moothall.client.asynchronous import AsyncClient
from moothall.client.types import (
    EvaluationOptions,
    Story,
    StoryMove,
    StorySummary,
    TaskOptions,
    Update,
)
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.errors import InvalidRequest
from moothall.evaluate.report import Report

T = TypeVar("T")

_END_SECONDS = 30.0  # how long to wait for cancelled tasks


class Client:
    """A client for a server, or for a server in this process (`Client.local`).

    It is a context manager. It has the methods of `AsyncClient`. Several threads may call them at
    the same time.
    """

    def __init__(
        self,
        server: str = "",
        *,
        token: str = "",
        ca: Path | None = None,
        call_seconds: float = 30.0,
        retries: int = 5,
    ) -> None:
        """Choose a server, as in `AsyncClient`."""
        self._client = AsyncClient(
            server, token=token, ca=ca, call_seconds=call_seconds, retries=retries
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @classmethod
    def local(
        cls,
        *,
        base_url: str = "",
        model: str = "",
        api_key: str = "",
        data_dir: Path | str = "",
        config: Path | None = None,
        retries: int = 5,
        **settings: Any,
    ) -> Self:
        """Return a client with its own server in this process, as `AsyncClient.local` does."""
        client = cls()
        client._client = AsyncClient.local(
            base_url=base_url,
            model=model,
            api_key=api_key,
            data_dir=data_dir,
            config=config,
            retries=retries,
            **settings,
        )
        return client

    def __enter__(self) -> Self:
        """Connect, or start the server in this process."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="moothall client", daemon=True
        )
        self._thread.start()
        try:
            self._run_coroutine(self._client.__aenter__())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the connection, and stop the server in this process."""
        try:
            self._run_coroutine(self._client.__aexit__(kind, error, traceback))
        finally:
            self._stop()

    def deliberate(
        self,
        task: str,
        *,
        repository: str | Path = "",
        on_update: Callable[[Update], None] | None = None,
        **options: Unpack[TaskOptions],
    ) -> Outcome:
        """Submit a task and wait for its outcome. `on_update` is called on the client's thread. An
        interrupt (Ctrl-C) cancels the deliberation.
        """
        return self._run_coroutine(
            self._client.deliberate(task, repository=repository, on_update=on_update, **options)
        )

    def submit(
        self, task: str, *, repository: str | Path = "", **options: Unpack[TaskOptions]
    ) -> str:
        """Submit a task and return its id, as `AsyncClient.submit` does."""
        return self._run_coroutine(self._client.submit(task, repository=repository, **options))

    def watch(self, task_id: str, *, after_seq: int = 0) -> Iterator[Update]:
        """Yield a task's events until it has ended."""
        updates = self._client.watch(task_id, after_seq=after_seq)
        try:
            while (update := self._run_coroutine(_next(updates))) is not None:
                yield update
        finally:
            self._run_coroutine(updates.aclose())

    def wait(self, task_id: str, *, on_update: Callable[[Update], None] | None = None) -> Outcome:
        """Wait until a task has ended and return its outcome."""
        return self._run_coroutine(self._client.wait(task_id, on_update=on_update))

    def status(self, task_id: str) -> DeliberationStatus:
        """Return the status of a task. Raises `NotFound`."""
        return self._run_coroutine(self._client.status(task_id))

    def result(self, task_id: str) -> Outcome:
        """Return a task's outcome; while it runs, only its id and status. Raises `NotFound`."""
        return self._run_coroutine(self._client.result(task_id))

    def cancel(self, task_id: str, reason: str = "") -> DeliberationStatus:
        """Cancel a task and return its status. Its work stops within a second."""
        return self._run_coroutine(self._client.cancel(task_id, reason))

    def steer(self, task_id: str, message: str) -> None:
        """Send a message to the seats of a running task; they get it at their next turn."""
        self._run_coroutine(self._client.steer(task_id, message))

    def pause(self, task_id: str) -> bool:
        """Pause a task before its next turns. Return False if it was paused already."""
        return self._run_coroutine(self._client.pause(task_id))

    def resume(self, task_id: str) -> bool:
        """Resume a paused task. Return False if it was not paused."""
        return self._run_coroutine(self._client.resume(task_id))

    def create_story(
        self,
        title: str,
        *,
        brief: str = "",
        criteria: Sequence[str] = (),
        repository: str = "",
        rigor: str = "",
    ) -> StorySummary:
        """Create a story on the board."""
        return self._run_coroutine(
            self._client.create_story(
                title, brief=brief, criteria=criteria, repository=repository, rigor=rigor
            )
        )

    def stories(self) -> tuple[StorySummary, ...]:
        """Return the stories of the caller's tenant."""
        return self._run_coroutine(self._client.stories())

    def story(self, story_id: str) -> Story:
        """Return a story. Raises `NotFound`."""
        return self._run_coroutine(self._client.story(story_id))

    def move_story(self, story_id: str, event: str, *, comment: str = "") -> StoryMove:
        """Move a story by an event of the life cycle, such as `refine` or `submit`."""
        return self._run_coroutine(self._client.move_story(story_id, event, comment=comment))

    def comment_story(self, story_id: str, comment: str) -> None:
        """Comment on a story."""
        self._run_coroutine(self._client.comment_story(story_id, comment))

    def evaluate(
        self,
        repository: str | Path,
        **options: Unpack[EvaluationOptions],
    ) -> Report:
        """Measure councils on bugs that were fixed in a repository's history, as
        `AsyncClient.evaluate` does.
        """
        return self._run_coroutine(self._client.evaluate(repository, **options))

    def _run_coroutine(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the client's thread. If the caller is interrupted, cancel the
        coroutine, wait for its end, and raise the interrupt again.
        """
        if self._loop is None or threading.current_thread() is self._thread:
            coroutine.close()
            raise InvalidRequest(
                "the client is not open: use it as a context manager, `with`"
                if self._loop is None
                else "a callback of the client cannot call it: use another thread"
            )
        ended = threading.Event()

        async def call() -> T:
            try:
                return await coroutine
            finally:
                ended.set()

        future = asyncio.run_coroutine_threadsafe(call(), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            ended.wait(_END_SECONDS)
            raise

    def _stop(self) -> None:
        """End the loop's tasks, so that no thread waits for one, and then stop the loop."""
        if self._loop is None or self._thread is None:
            return
        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(_end_tasks(), self._loop).result(_END_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = self._thread = None


async def _end_tasks() -> None:
    """Cancel all tasks except the current one, and wait until they have ended."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


async def _next(updates: AsyncGenerator[Update, None]) -> Update | None:
    return await anext(updates, None)
