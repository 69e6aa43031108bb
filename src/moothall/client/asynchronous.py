"""The asynchronous client, and the calls of a server's gRPC services that it makes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

import grpc.aio

from moothall.api import protobuf
from moothall.api.identity import is_loopback
from moothall.api.kernel_client import local_server, open_channel, translate_errors
from moothall.client.types import (
    EvaluationOptions,
    Story,
    StoryMove,
    StorySummary,
    TaskOptions,
    Update,
    check_options,
)
from moothall.concurrency import leaves
from moothall.config import find_default_file
from moothall.domain.budget import Budget
from moothall.domain.codec import load
from moothall.domain.event import EventType
from moothall.domain.ids import new_task_id
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.domain.task import Constraints, DeliberationRequest, RepositoryRef
from moothall.errors import (
    ConfigurationError,
    InvalidRequest,
    MoothallError,
    QuotaExceeded,
    Temporary,
)
from moothall.evaluate.report import Report
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as council_pb
from moothall.pb.orchestrator.v1 import orchestrator_pb2_grpc as council_grpc
from moothall.pb.planning.v1 import planning_pb2 as story_pb
from moothall.pb.planning.v1 import planning_pb2_grpc as story_grpc

if TYPE_CHECKING:
    from moothall.app.embedded import Embedded


# The calls of a server's gRPC services.


class Calls:
    """The services of one server, for one caller. Methods raise the errors of `moothall.errors`."""

    def __init__(self, channel: grpc.aio.Channel, token: str, seconds: float) -> None:
        self._councils: Any = council_grpc.OrchestratorServiceStub(channel)
        self._stories: Any = story_grpc.PlanningServiceStub(channel)
        self._metadata = (("authorization", f"Bearer {token}"),)
        self._seconds = seconds

    async def submit(self, request: DeliberationRequest) -> str:
        """Submit a task and return its id."""
        submitted = await self._call(
            self._councils.SubmitDeliberation, protobuf.request_message(request)
        )
        return str(submitted.task_id)

    async def watch(self, task_id: str, after_seq: int) -> AsyncGenerator[Update, None]:
        """Yield a task's events after a position, until it has ended. Events of a type that only a
        newer version knows are left out.
        """
        request = council_pb.WatchDeliberationRequest(task_id=task_id, after_seq=after_seq)
        stream = self._councils.WatchDeliberation(request, metadata=self._metadata)
        try:
            with translate_errors():
                async for message in stream:
                    if (update := _update(message)) is not None:
                        yield update
        finally:
            stream.cancel()

    async def status(self, task_id: str) -> DeliberationStatus:
        """Return how a task stands."""
        request = council_pb.GetDeliberationResultRequest(task_id=task_id)
        response = await self._call(self._councils.GetDeliberationResult, request)
        return protobuf.read_status(response.status)

    async def cancel(self, task_id: str, reason: str) -> DeliberationStatus:
        """Cancel a task and return its status."""
        request = council_pb.CancelDeliberationRequest(task_id=task_id, reason=reason)
        response = await self._call(self._councils.CancelDeliberation, request)
        return protobuf.read_status(response.status)

    async def steer(self, task_id: str, message: str, request_id: str) -> None:
        """Send a message to the seats of a task. The same request id is sent once."""
        request = council_pb.SteerDeliberationRequest(
            task_id=task_id, message=message, request_id=request_id
        )
        await self._call(self._councils.SteerDeliberation, request)

    async def pause(self, task_id: str) -> bool:
        """Pause a task; return whether that changed anything."""
        request = council_pb.PauseDeliberationRequest(task_id=task_id)
        return bool((await self._call(self._councils.PauseDeliberation, request)).changed)

    async def resume(self, task_id: str) -> bool:
        """Resume a task; return whether that changed anything."""
        request = council_pb.ResumeDeliberationRequest(task_id=task_id)
        return bool((await self._call(self._councils.ResumeDeliberation, request)).changed)

    async def create_story(
        self, title: str, brief: str, criteria: Sequence[str], repository: str, rigor: str
    ) -> str:
        """Put a story on the board and return its id."""
        request = story_pb.CreateStoryRequest(
            title=title, brief=brief, ac=criteria, repository=repository, rigor_level=rigor
        )
        return str((await self._call(self._stories.CreateStory, request)).story_id)

    async def list_stories(self) -> tuple[StorySummary, ...]:
        """Return the stories of the caller's tenant."""
        response = await self._call(self._stories.ListStories, story_pb.ListStoriesRequest())
        return tuple(protobuf.from_message(StorySummary, story) for story in response.stories)

    async def read_story(self, story_id: str) -> Story:
        """Return a story."""
        request = story_pb.GetStoryRequest(story_id=story_id)
        response = await self._call(self._stories.GetStory, request)
        plan = json.loads(response.plan_json) if response.plan_json else {}
        return Story(
            protobuf.from_message(StorySummary, response.story),
            tuple(response.ac),
            tuple(str(task["task_id"]) for task in plan.get("tasks", ())),
            response.check.passed,
            response.check.branch,
            response.check.commit_sha,
            response.check.why,
        )

    async def move_story(self, story_id: str, event: str, comment: str) -> StoryMove:
        """Move a story."""
        request = story_pb.TransitionRequest(story_id=story_id, event=event, comment=comment)
        return protobuf.from_message(StoryMove, await self._call(self._stories.Transition, request))

    async def comment_story(self, story_id: str, comment: str, request_id: str) -> None:
        """Comment on a story. The same request id is recorded once."""
        request = story_pb.CommentRequest(story_id=story_id, comment=comment, request_id=request_id)
        await self._call(self._stories.Comment, request)

    async def _call(self, method: Any, request: Any) -> Any:
        with translate_errors():
            return await method(request, metadata=self._metadata, timeout=self._seconds)


def _update(message: council_pb.DeliberationUpdate) -> Update | None:
    try:
        event_type = EventType(message.event.type)
    except ValueError:
        return None
    return Update(
        message.seq,
        event_type,
        protobuf.struct_data(message.event.data, "data"),
        message.status,
        message.progress_percent,
        message.current_step,
        message.current_agent,
    )


# The client.


T = TypeVar("T")

_CANCEL_SECONDS = 5.0
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.5, 5.0


class AsyncClient:
    """A client for a server, or for a server in this process (`AsyncClient.local`).

    It is a context manager, which closes connections at its end. Methods raise the errors of
    `moothall.errors`, which correspond to the server's codes. Calls that are safe to repeat are
    retried while the server cannot be reached.
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
        """Choose a server. No connection is opened before the context is entered.

        server: HOST:PORT, in plain text on loopback, otherwise over TLS; empty: grpc.host and
        grpc.port of the settings, 127.0.0.1:50055 by default.
        token: the caller's token; empty: the operator's token, for a server on this machine only.
        ca: a PEM file of the authority that signed the server's certificate; not needed if this
        machine trusts it.
        call_seconds: the time limit of one call that does not wait for a deliberation.
        retries: how often a call is retried if the server cannot be reached or is overloaded.
        """
        self._server = server
        self._token = token
        self._ca = ca
        self._call_seconds = call_seconds
        self._retries = retries
        self._overrides: Mapping[str, Any] | None = None
        self._config: Path | None = None
        self._embedded: _EmbeddedServer | None = None
        self._stack = AsyncExitStack()
        self._api: Calls | None = None

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
        """Return a client with its own server in this process.

        If another process already serves the data directory, the client connects to that one.

        base_url: the URL of an OpenAI-compatible server, such as http://localhost:8000/v1; empty:
        the small local model is used.
        model: the name of the model on that server.
        data_dir: the folder in which tasks are stored; the setting `data_dir` by default.
        config: a TOML file of settings; the file of the command line by default.
        settings: further settings by section, such as `limits={"deliberation_seconds": 600}`.
        """
        llm = {"base_url": base_url, "model": model, "api_key": api_key}
        llm_settings = {name: value for name, value in llm.items() if value}
        overrides: dict[str, Any] = dict(settings)
        if llm_settings:
            overrides["llm"] = {**llm_settings, **dict(overrides.get("llm") or {})}
        if data_dir:
            overrides["data_dir"] = Path(data_dir)
        client = cls(retries=retries)
        client._overrides, client._config = overrides, config
        return client

    async def __aenter__(self) -> Self:
        """Connect, or start the server in this process."""
        try:
            if self._overrides is None:
                server, token, ca = await asyncio.to_thread(
                    _find_server, self._server, self._token, self._ca
                )
            else:
                self._embedded = await self._stack.enter_async_context(
                    _EmbeddedServer(self._overrides, self._config)
                )
                embedded = self._embedded.connection
                server, token, ca = embedded.address, embedded.token, embedded.certificate
            channel = await self._stack.enter_async_context(await open_channel(server, ca))
        except BaseException:
            await self._stack.aclose()
            raise
        self._api = Calls(channel, token, self._call_seconds)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the connection, and stop the server in this process."""
        self._api = None
        await self._stack.aclose()

    # ---- deliberations

    async def deliberate(
        self,
        task: str,
        *,
        repository: str | Path = "",
        on_update: Callable[[Update], Awaitable[None] | None] | None = None,
        **options: Unpack[TaskOptions],
    ) -> Outcome:
        """Submit a task, as `submit` does, and wait for its outcome.

        on_update: receives each event; a coroutine function is awaited.
        If the wait is cancelled, the deliberation is cancelled too.
        """
        task_id = options.get("task_id") or new_task_id()
        options["task_id"] = task_id
        try:
            await self.submit(task, repository=repository, **options)
            return await self.wait(task_id, on_update=on_update)
        except asyncio.CancelledError:
            with contextlib.suppress(Exception):
                await asyncio.shield(self._cancel_and_wait(task_id))
            raise

    async def _cancel_and_wait(self, task_id: str) -> None:
        """Cancel a task and wait for its end, because a server in this process may stop next."""
        await self.cancel(task_id, "the caller went away")
        async with asyncio.timeout(_CANCEL_SECONDS):
            await self.wait(task_id)

    async def submit(
        self, task: str, *, repository: str | Path = "", **options: Unpack[TaskOptions]
    ) -> str:
        """Submit a task and return its id.

        repository: a path, a URL, or the id of a registered repository. If it is empty, the
        server's default repository is used, or the task is about text. A server in another process
        accepts only paths that were registered there (`moothall repo add`).
        """
        check_options(options, TaskOptions.__annotations__)
        request = DeliberationRequest(
            description=task,
            role=options.get("role", "dev"),
            constraints=Constraints(
                options.get("rubric", ""),
                tuple(options.get("requirements", ())),
                max_iterations=options.get("turns", 0),
                timeout_seconds=options.get("seconds", 0),
            ),
            rounds=options.get("rounds"),
            num_agents=options.get("agents", 0),
            task_id=options.get("task_id") or new_task_id(),
            repository=await self._find_repository(str(repository), options.get("ref", "")),
            protocol=options.get("protocol", ""),
            budget=Budget(
                tokens=options.get("budget_tokens", 0), cost_usd=options.get("budget_usd", 0.0)
            ),
            adaptive=options.get("adaptive", False),
            follows=options.get("follows", ""),
            hidden_tests=dict(options.get("hidden_tests", {})),
            head=options.get("head", ""),
            tests_only=options.get("tests_only", False),
        )
        return await self._retry(lambda: self._connected.submit(request))

    async def watch(self, task_id: str, *, after_seq: int = 0) -> AsyncGenerator[Update, None]:
        """Yield a task's events until it has ended. After a lost connection, continue after the
        last event, so that no event is missed or repeated.
        """
        last_seq, failures = after_seq, 0
        while True:
            try:
                async with aclosing(self._connected.watch(task_id, last_seq)) as updates:
                    async for update in updates:
                        last_seq, failures = update.seq, 0
                        yield update
            except Temporary as error:
                failures += 1
                if failures > self._retries:
                    raise
                await asyncio.sleep(_pause(error, failures))
            else:
                return

    async def wait(
        self, task_id: str, *, on_update: Callable[[Update], Awaitable[None] | None] | None = None
    ) -> Outcome:
        """Wait until a task has ended and return its outcome. `on_update` receives its events."""
        async with aclosing(self.watch(task_id)) as updates:
            async for update in updates:
                if on_update is not None and (awaitable := on_update(update)) is not None:
                    await awaitable
                if update.type is EventType.DELIBERATION_DECIDED:
                    return load(Outcome, update.data)
        return Outcome(task_id, await self.status(task_id))

    async def status(self, task_id: str) -> DeliberationStatus:
        """Return the status of a task. Raises `NotFound`."""
        return await self._retry(lambda: self._connected.status(task_id))

    async def result(self, task_id: str) -> Outcome:
        """Return a task's outcome; while it runs, only its id and status. Raises `NotFound`."""
        status = await self.status(task_id)
        return await self.wait(task_id) if status.ended else Outcome(task_id, status)

    async def cancel(self, task_id: str, reason: str = "") -> DeliberationStatus:
        """Cancel a task and return its status. Its work stops within a second."""
        return await self._retry(lambda: self._connected.cancel(task_id, reason))

    async def steer(self, task_id: str, message: str) -> None:
        """Send a message to the seats of a running task; they get it at their next turn."""
        request_id = new_task_id()
        await self._retry(lambda: self._connected.steer(task_id, message, request_id))

    async def pause(self, task_id: str) -> bool:
        """Pause a task before its next turns. Return False if it was paused already."""
        return await self._retry(lambda: self._connected.pause(task_id))

    async def resume(self, task_id: str) -> bool:
        """Resume a paused task. Return False if it was not paused."""
        return await self._retry(lambda: self._connected.resume(task_id))

    # ---- stories

    async def create_story(
        self,
        title: str,
        *,
        brief: str = "",
        criteria: Sequence[str] = (),
        repository: str = "",
        rigor: str = "",
    ) -> StorySummary:
        """Create a story on the board. `repository` is the id of a registered repository. The call
        is not retried if the server cannot be reached, because the story may have been created.
        """
        story_id = await self._connected.create_story(title, brief, criteria, repository, rigor)
        return (await self.story(story_id)).summary

    async def stories(self) -> tuple[StorySummary, ...]:
        """Return the stories of the caller's tenant."""
        return await self._retry(self._connected.list_stories)

    async def story(self, story_id: str) -> Story:
        """Return a story. Raises `NotFound`."""
        return await self._retry(lambda: self._connected.read_story(story_id))

    async def move_story(self, story_id: str, event: str, *, comment: str = "") -> StoryMove:
        """Move a story by an event of the life cycle, such as `refine` or `submit`. If evidence is
        missing, the story does not move, and the result says what is missing.
        """
        return await self._connected.move_story(story_id, event, comment)

    async def comment_story(self, story_id: str, comment: str) -> None:
        """Comment on a story."""
        request_id = new_task_id()
        await self._retry(lambda: self._connected.comment_story(story_id, comment, request_id))

    # ---- evaluation

    async def evaluate(
        self,
        repository: str | Path,
        **options: Unpack[EvaluationOptions],
    ) -> Report:
        """Measure councils on bugs that were fixed in a repository's history, as `moothall
        evaluate` does.

        Raises `InvalidRequest` unless the client was created by `AsyncClient.local`, and `NotFound`
        if no commit is suitable as a task.
        """
        if self._embedded is None:
            raise InvalidRequest("an evaluation runs in this process: use AsyncClient.local(…)")
        self._embedded.check()
        from moothall.client.types import run_evaluation

        return await run_evaluation(self._embedded.connection.settings, str(repository), options)

    # ---- connection

    async def _find_repository(self, name: str, ref: str) -> RepositoryRef | None:
        """Return the repository with a name. A path is registered at an embedded server. At another
        server, the operator must have registered it.
        """
        if not name:
            if ref:
                raise InvalidRequest(f"ref {ref[:80]!r} needs a repository")
            return None
        path = await asyncio.to_thread(_find_folder, name)
        if path is None:
            return RepositoryRef.from_name(name, ref)
        if self._embedded is not None:
            return await self._embedded.connection.register(path, ref)
        return RepositoryRef(url=str(path), ref=ref)

    @property
    def _connected(self) -> Calls:
        if self._api is None:
            raise InvalidRequest("the client is not open: use it as a context manager, `with`")
        if self._embedded is not None:
            self._embedded.check()
        return self._api

    async def _retry(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call, and retry it while the server cannot be reached."""
        failures = 0
        while True:
            try:
                return await call()
            except Temporary as error:
                failures += 1
                if self._embedded is not None:
                    self._embedded.check()
                if failures > self._retries or isinstance(error, QuotaExceeded):
                    raise
                await asyncio.sleep(_pause(error, failures))


def _pause(error: Temporary, failures: int) -> float:
    doubled: float = min(_FIRST_PAUSE_SECONDS * 2 ** (failures - 1), _MAX_PAUSE_SECONDS)
    return max(doubled, error.retry_after or 0.0)


def _find_folder(name: str) -> Path | None:
    """Return the absolute path of a folder; None if the name is a URL or an id."""
    path = Path(name).expanduser()
    return path.resolve() if "://" not in name and path.is_dir() else None


def _find_server(server: str, token: str, ca: Path | None) -> tuple[str, str, Path | None]:
    """Return the address, the token and the certificate to trust. Empty arguments are replaced by
    the values of this machine's server. Its token is not sent to other machines.
    """
    if server and token:
        return server, token, ca
    from moothall.settings import load_settings

    settings = load_settings(find_default_file())
    if server and not is_loopback(server.rpartition(":")[0]):
        raise ConfigurationError(f"a client of {server[:80]!r} needs a token: token=…")
    local_address, own_token, certificate = local_server(
        settings.grpc, settings.data_dir, settings.grpc.port
    )
    return server or local_address, token or own_token, ca or (None if server else certificate)


class _EmbeddedServer:
    """A server in this process. It runs in its own task, so that an error of the server does not
    cancel the program. Later calls raise that error.
    """

    def __init__(self, overrides: Mapping[str, Any], config: Path | None) -> None:
        self._overrides, self._config = overrides, config
        self._ending = asyncio.Event()
        self._started: asyncio.Future[Embedded] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Start the server. Raise the error with which the start failed."""
        self._task = asyncio.create_task(self._serve(), name="embedded server")
        try:
            pending: set[asyncio.Future[Any]] = {self._task, self._started}
            await asyncio.wait(pending, return_when="FIRST_COMPLETED")
        except asyncio.CancelledError:
            self._task.cancel()
            await asyncio.wait({self._task})
            raise
        self.check()
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Stop the server, and wait until everything is closed."""
        self._ending.set()
        if self._task is not None:
            await asyncio.wait({self._task})
            if not self._task.cancelled():
                self._task.exception()  # calls have raised it

    @property
    def connection(self) -> Embedded:
        """The address, token and certificate of the server."""
        return self._started.result()

    def check(self) -> None:
        """Raise the error of the server if it has ended."""
        if self._task is None or not self._task.done() or self._ending.is_set():
            return
        error = None if self._task.cancelled() else self._task.exception()
        if isinstance(error, BaseExceptionGroup):
            expected = [leaf for leaf in leaves(error) if isinstance(leaf, MoothallError)]
            error = expected[0] if expected else error
        raise error or ConfigurationError("the server in this process has ended")

    async def _serve(self) -> None:
        from moothall.app.embedded import open_embedded

        async with open_embedded(self._overrides, self._config) as embedded:
            self._started.set_result(embedded)
            await self._ending.wait()
