"""Ports: protocols for everything that inner packages need from outside, with only the methods that
are used.

Adapters in `events`, `llm`, `workspace` and other packages implement them; `app` connects them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from moothall.concurrency import Capacity
from moothall.domain.chat import (
    AnswerModel,
    ChatReply,
    ChatRequest,
    HarnessReport,
    HarnessTask,
    ModelDescription,
    ReplyMode,
    Writing,
)
from moothall.domain.event import Channel, Event, Recorded, Topic
from moothall.domain.ids import Principal, TaskId
from moothall.domain.repository import Base, ChangeRange, MergeResult, Patch, Prepared
from moothall.domain.tool import Ask, BlockRun, CodeBlock, ToolCall, ToolResult
from moothall.errors import Permanent

if TYPE_CHECKING:  # only annotations, and commands that read the log do without
    from moothall.domain.evidence import CheckRun
    from moothall.domain.outcome import DeliberationStatus, Outcome
    from moothall.domain.task import Deliberation, DeliberationRequest, RepositoryRef


class Receipt:
    """An awaitable that gives a posted event's seq once it is durable, or raises what `Log.publish`
    raises. `flush` sends events that are still waiting for their batch.
    """

    __slots__ = ("_answer", "_flush")

    def __init__(self, answer: asyncio.Future[int], flush: Callable[[], None]) -> None:
        self._answer = answer
        self._flush = flush

    def __await__(self) -> Generator[Any, None, int]:
        """Send waiting events at once, and wait for the seq."""
        self._flush()
        return self._answer.__await__()

    def done(self) -> bool:
        """Return whether the event is durable, or failed to be stored."""
        return self._answer.done()


class Log(Protocol):
    """The log: all events in one order. Topics of one call must belong to the same stream; without
    topics, the whole log is read.
    """

    async def publish(self, event: Event) -> int:
        """Return the event's seq once it is durable. A repeat (same id) changes nothing."""
        ...

    async def post(self, event: Event) -> Receipt:
        """Send an event at once or in a batch soon. Waits if too many events are in flight. Events
        about one id are recorded in order, and none before the previous one is durable.
        """
        ...

    async def create(self, event: Event, after_seq: int = 0) -> int:
        """Publish the next event of a topic after the one with `after_seq`, or its first event for
        0. Raises `AlreadyExists` if there is another event.
        """
        ...

    async def first(self, topic: Topic) -> Recorded | None:
        """Return the first event of a topic, or None."""
        ...

    def replay(
        self, topics: Sequence[Topic] = (), after_seq: int = 0
    ) -> AsyncGenerator[Recorded, None]:
        """Yield the events recorded now, then end."""
        ...

    def follow(
        self, topics: Sequence[Topic] = (), after_seq: int = 0
    ) -> AsyncGenerator[Recorded, None]:
        """Yield recorded events, then new ones, until closed."""
        ...

    async def list_ids(self, channel: Channel) -> Sequence[str]:
        """Return the ids that have events on a channel."""
        ...

    async def forget(self, topic: Topic) -> None:
        """Remove all records of one id."""
        ...


Publish = Callable[[Event], Awaitable[int]]
"""`Log.publish`, for users that need nothing else of the log."""
ReadFile = Callable[[Base, str, int], Awaitable[str]]
"""`Repositories.read`, for users that need nothing else of a repository."""
MergeCommits = Callable[[Base, Sequence[str]], Awaitable[Patch]]
"""Merges commits on a base. Raises `MergeConflict`, `PatchRefused`, `RepositoryError`."""
NOTHING: Mapping[str, str] = MappingProxyType({})
Handler = Callable[[Recorded], Awaitable[None]]
Answerer = Callable[[Mapping[str, Any]], Awaitable[tuple[Mapping[str, Any], bytes]]]
"""Answers a request with a JSON object, followed by bytes that fit into a message. If it raises a
`MoothallError` or `OSError`, no answer is sent.
"""
Glance = Callable[[Recorded], bool | asyncio.Future[None]]
"""Sees a message before its handler. Returns True if the message needs no handling, or a future
after which it needs none.
"""


class Bucket(Protocol):
    """Key-value documents, the newest under each key, that many processes follow."""

    async def put(self, key: str, document: Mapping[str, Any]) -> None:
        """Store a document, replacing an older one."""
        ...

    async def create(self, key: str, document: Mapping[str, Any]) -> None:
        """Store the first document under a key. Raises `AlreadyExists`."""
        ...

    async def get(self, key: str) -> Mapping[str, Any] | None:
        """Return the document or None."""
        ...

    async def get_with_revision(self, key: str) -> tuple[Mapping[str, Any] | None, int]:
        """Return the document and its revision, or None and 0."""
        ...

    async def replace(self, key: str, document: Mapping[str, Any], revision: int) -> None:
        """Replace a revision; 0 means no document. Raises `AlreadyExists` if another write was
        faster.
        """
        ...

    async def entries(self) -> Mapping[str, Mapping[str, Any]]:
        """Return all documents by key."""
        ...

    def follow(self) -> AsyncGenerator[tuple[str, Mapping[str, Any]], None]:
        """Yield (key, document) for all documents, then for each change, until closed."""
        ...


class Bus(Log, Protocol):
    """The log, and everything else on the same connection: work, signals, requests, documents and
    buckets.
    """

    async def enqueue(self, topic: Topic, event: Event, *, fresh: bool = False) -> None:
        """Put an event on the work queue; return once it is durable. `fresh`: no host can have
        begun it before its first delivery, which `extra` of that delivery reports.

        If many deliberations of a role wait, tenants take turns, so that a tenant with few does not
        wait for all of another's.
        """
        ...

    async def dispatch(self) -> None:
        """Give tenants their turns in the work queue until cancelled. One process does this at a
        time.
        """
        ...

    async def consume(
        self,
        durable: str,
        handler: Handler,
        *,
        concurrency: int | Capacity = 1,
        glance: Glance | None = None,
    ) -> None:
        """Pull messages of a registered durable consumer until cancelled. The handler persists its
        results, then returns, which acks the message. `Temporary` naks it with a growing delay.
        `Permanent` errors and undecodable messages become dead letters and are terminated. Progress
        notices keep the message alive while its handler runs.

        Consumers may share a `Capacity`, which limits how many messages they handle at a time in
        total. They leave further messages to other processes.

        `glance` is called with each message in order of delivery, and spares most of them the
        handler. It must neither persist nor raise anything. `extra` holds `deliveries`, from 1, and
        `place`: a number that grows by one with each delivery of this consumer to any process, so
        that a gap means that messages went to another process.
        """
        ...

    async def signal(self, topic: Topic, data: Mapping[str, Any]) -> None:
        """Send a message that is not stored. It is a hint that may be lost; the log repeats it if
        it matters.
        """
        ...

    def signals(self, topic: Topic) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield signals until closed."""
        ...

    async def ask(
        self, topic: Topic, request: Mapping[str, Any], seconds: float
    ) -> tuple[Mapping[str, Any], bytes]:
        """Send a request, which is not stored, and return the answer. Raises `BusUnavailable` if
        nobody answers within `seconds`.
        """
        ...

    def ask_all(
        self, topic: Topic, request: Mapping[str, Any], seconds: float
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield all answers to a request, until none has arrived for `seconds`. Raises
        `BusUnavailable`.
        """
        ...

    async def answer(self, topic: Topic, answerer: Answerer, *, shared: bool = False) -> None:
        """Answer requests concurrently until cancelled. `shared`: only one of several processes
        gets each request.
        """
        ...

    async def put(self, key: str, document: Mapping[str, Any]) -> None:
        """Store a document for polling clients, replacing an older one."""
        ...

    async def get(self, key: str) -> Mapping[str, Any] | None:
        """Return the document or None."""
        ...

    async def keys(self) -> Sequence[str]:
        """Return the keys of all documents."""
        ...

    async def remove(self, key: str) -> None:
        """Remove the document under a key, if there is one."""
        ...

    def bucket(self, name: str) -> Bucket:
        """Return a bucket of the registry."""
        ...


class ChatModel(Protocol):
    """An OpenAI-compatible chat server."""

    async def reply_mode(self) -> ReplyMode:
        """Return how the model is asked for tool calls (tools, json or blocks), as probed or
        configured.
        """
        ...

    async def describe(self) -> ModelDescription:
        """Return the model's name, reply mode and window, as far as the server reports them. Raises
        what `reply_mode` raises.
        """
        ...

    async def chat(
        self,
        request: ChatRequest,
        on_text: Callable[[str], None] | None = None,
        *,
        owns_work: Callable[[], bool] | None = None,
    ) -> ChatReply:
        """Return the complete answer; `on_text` is called with each partial reply.

        `owns_work` is called before each attempt; if it returns False, nothing is sent, and the
        call ends as cancelled. Raises `ModelUnavailable` after the last retry, `ContextOverflow` if
        the conversation is too long, `ModelReplyInvalid` for an invalid reply, and
        `DeadlineExceeded`.
        """
        ...


CountTokens = Callable[[str], Awaitable[int]]
"""Returns the number of tokens of a text for the model in use."""


HandleLines = Callable[[Sequence[str]], Awaitable[Sequence[str] | None]]
"""Receives the lines that a program has printed since the last call, and returns the lines that it
reads next, or None to end it. Raises nothing.
"""


class Workspace(Protocol):
    """An isolated checkout in which tools run."""

    @property
    def id(self) -> str:
        """The workspace's id."""
        ...

    async def call(self, call: ToolCall) -> ToolResult:
        """Run a tool whose arguments are already validated. An exceeded limit is a status, not an
        error. Raises `WorkspaceFailed` if the executor is gone.
        """
        ...

    async def check(
        self,
        name: str,
        paths: Sequence[str] = (),
        deadline: datetime | None = None,
        cases: Sequence[str] = (),
        *,
        alone: bool = False,
    ) -> CheckRun:
        """Run a check of the profile, limited to test files or to cases of an earlier run if its
        runner supports that. `alone`: wait until no other command runs on the machine. Changes that
        the check makes to files are discarded.
        """
        ...

    async def patch(self, message: str) -> Patch:
        """Commit all changes to the trusted clone and return them. Raises `PatchRefused`."""
        ...

    async def run_code(self, block: CodeBlock, ask: Ask) -> BlockRun:
        """Run a block in CPython with read access to the workspace's files. Its own writes are
        discarded when it ends; it changes the workspace only through tools. Raises what `ask`
        raises.
        """
        ...

    async def converse(
        self,
        argv: Sequence[str],
        handle_lines: HandleLines,
        *,
        seconds: float,
        max_bytes: int,
        keep_changes: bool,
        variables: Mapping[str, str] | None = None,
    ) -> str:
        """Run a program in the workspace, and pass lines between it and `handle_lines`.

        Stop it after `seconds` or `max_bytes` of output. Return the reason if it ended by itself or
        was stopped, otherwise ''. Its changes to files are kept only with `keep_changes`.

        With `variables`, it is an agent with these variables in its environment and with an HTTP
        server at the port of its loopback that replaces `{port}` in them and in `argv`. Lines are
        then JSON objects. Received: `{"line"}`, what it printed; `{"request", "method", "path",
        "body"}`, a request to the server; `{"ended"}`, why it ended. Returned: `{"line"}`;
        `{"reply", "status", "type", "content"}`, the answer to a request; `{"again": true}`: the
        next call comes at once, and otherwise when something has happened.
        """
        ...


RunCode = Callable[[CodeBlock, Workspace, Ask], Awaitable[BlockRun]]
"""Runs a block of Python that a model wrote, to its end or to the first limit. The result says how
it ended. `ask` is called for one question at a time. Raises what `ask` raises.
"""


RunHarness = Callable[[Workspace, HarnessTask, AnswerModel], Awaitable[HarnessReport]]
"""Runs an agent of another project in a workspace. Raises `WorkspaceFailed`, and the errors of the
model that end a deliberation.
"""


Toolkit = Callable[[ToolCall, Workspace, str], Awaitable[ToolResult]]
"""Runs a tool that no workspace runs itself, for a tenant, until `call.deadline`. Its arguments are
already validated. A failure is a status, not an error.
"""


class Workspaces(Protocol):
    """Opens workspaces. A workspace's processes and mounts are removed when its context ends."""

    def open(
        self,
        prepared: Prepared,
        name: str,
        *,
        patch: str = "",
        extra: str = "",
        judged: bool = False,
        files: Mapping[str, str] = NOTHING,
        append: Mapping[str, str] = NOTHING,
    ) -> AbstractAsyncContextManager[Workspace]:
        """Open a new workspace on `prepared`.

        The changes are applied in this order: `patch` (a git diff against the base), the test files
        of the diff `extra`, the texts `files` by path, and the texts `append` at the end of files.
        `judged`: test files and the configuration of test runners are as on the base, or absent if
        they are absent there; new tests come only from `extra`. Raises `PatchRefused`.
        """
        ...


class Repositories(Protocol):
    """The clones on the trusted side."""

    async def read(self, base: Base, path: str, limit: int = 65536) -> str:
        """Return a text file of the base commit, at most `limit` characters. Raises `NotFound`."""
        ...

    async def resolve(self, ref: RepositoryRef, *, tenant: str = "local") -> Base:
        """Fetch and pin a commit. Raises `RepositoryError`, `NotFound`, `Refused`."""
        ...

    async def resolve_change(
        self, ref: RepositoryRef, head: str, *, tenant: str = "local"
    ) -> ChangeRange:
        """Fetch a change: the commits of `head` that `ref` lacks. Raises `InvalidRequest` if there
        is none, and the errors of `resolve`.
        """
        ...

    async def prepare(
        self, base: Base, on_progress: Callable[[str], None] | None = None
    ) -> Prepared:
        """Prepare a base: set up once per lock file, check out once per commit, and run the checks
        once on the unchanged base. Tests that the profile hides are left out and returned
        separately.
        """
        ...

    async def check_delivery(self, repository: str, base_sha: str, branch: str) -> None:
        """Raise `RepositoryError` if a winner could not be delivered as that branch."""
        ...

    async def diff(self, base: Base, commit_sha: str) -> str:
        """Return the changes of a commit. Raises `PatchRefused` if the clone does not have it."""
        ...

    async def deliver(
        self, base: Base, diff: str, branch: str, message: str, merged: Sequence[str] = ()
    ) -> str:
        """Commit `diff` on the base and the commits merged in it, create the branch if the
        repository's push policy allows it, and return the commit's sha. The same input gives the
        same sha. The checked-out tree is not changed.
        """
        ...


class DeliverCommit(Protocol):
    """Delivers an approved commit."""

    async def __call__(
        self, ref: RepositoryRef, sha: str, branch: str, message: str, tenant: str, *, merge: bool
    ) -> MergeResult:
        """Apply the repository's policy to a commit on `branch`. With `merge`, merge it whatever
        the policy: a person requested it.
        """
        ...


class Deliberations(Protocol):
    """The deliberation service, called by the CLI and the gRPC services. Task ids are those of the
    caller's tenant, also in outcomes and events.
    """

    async def submit(self, request: DeliberationRequest, principal: Principal) -> Deliberation:
        """Check a request, fill in defaults, pin the base commit, then record and enqueue it. The
        same task_id with the same request is the same deliberation. Raises `AlreadyExists` for the
        same task_id with another request. The returned deliberation has the key of the task.
        """
        ...

    async def check(self, request: DeliberationRequest, principal: Principal) -> None:
        """Raise what `submit` would raise if this were a new task; record nothing."""
        ...

    async def refuse(
        self, request: DeliberationRequest, reason: Permanent, principal: Principal
    ) -> None:
        """Record a task that cannot start: its result is FAILED with this reason.

        Do nothing if the task id is taken.
        """
        ...

    async def result(self, task_id: TaskId, principal: Principal) -> Outcome:
        """Return the current outcome: PENDING, IN_PROGRESS or a final status. Raises `NotFound`,
        also for another tenant's task.
        """
        ...

    async def wait(self, task_id: TaskId, principal: Principal) -> Outcome:
        """Wait for the final outcome; the deliberation's deadline limits the wait."""
        ...

    def watch(
        self, task_id: TaskId, after_seq: int, principal: Principal
    ) -> AsyncGenerator[Recorded, None]:
        """Yield the events after a seq or `Recorded.position` in log order, each once. Ends after
        the decision.
        """
        ...

    def watch_text(self, task_id: TaskId, principal: Principal) -> AsyncGenerator[Writing, None]:
        """Yield the partial replies of seats until closed. Raises `NotFound`, also for another
        tenant's task.
        """
        ...

    async def cancel(
        self, task_id: TaskId, reason: str, principal: Principal
    ) -> DeliberationStatus:
        """Cancel a deliberation; its model calls, tools and workspaces stop within a second.

        Raises `NotFound`, and `Refused` unless the caller submitted it or has a role.
        """
        ...

    async def pause(self, task_id: TaskId, principal: Principal, *, paused: bool = True) -> bool:
        """Pause a deliberation before the next turn, or resume it; return whether its state
        changed. The deadline moves by the length of the pause. Raises `InvalidRequest` if it has
        ended, and `NotFound`, also for another tenant's task.
        """
        ...

    async def steer(self, task_id: TaskId, message: str, principal: Principal, *, key: str) -> None:
        """Send a message to the seats, which receive it at their next turn. `key` identifies the
        request. Raises `InvalidRequest`, also if the deliberation has ended.
        """
        ...
