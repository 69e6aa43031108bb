"""What the inner rooms need of the outside, each Protocol with as few methods as its users call.

Adapters in bus, model, workspace and fleet implement these; `wiring` alone knows which.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from types import MappingProxyType
from typing import Any, Protocol

from moothall.concurrency import Capacity
from moothall.domain.chat import ChatReply, ChatRequest, ModelDescription, ReplyMode, Writing
from moothall.domain.code import Ask, BlockRun, CodeBlock
from moothall.domain.event import Event, Recorded
from moothall.domain.evidence import CheckRun
from moothall.domain.identity import Principal
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.domain.repository import Base, MergeResult, Patch, Prepared
from moothall.domain.task import Deliberation, DeliberationRequest, RepositoryRef
from moothall.domain.tool import ToolCall, ToolResult
from moothall.domain.topic import Channel, Topic
from moothall.errors import Permanent


class Receipt:
    """Gives a posted event's seq once it is durable, or raises what `Log.publish` raises. `flush`
    sends what is held back.
    """

    __slots__ = ("_answer", "_flush")

    def __init__(self, answer: asyncio.Future[int], flush: Callable[[], None]) -> None:
        self._answer = answer
        self._flush = flush

    def __await__(self) -> Generator[Any, None, int]:
        """Send at once what is still held back, and wait."""
        self._flush()
        return self._answer.__await__()

    def done(self) -> bool:
        """Whether it is durable, or could not be made so."""
        return self._answer.done()


class Log(Protocol):
    """The facts, in one order. Topics named together are all of one stream; none: the whole log."""

    async def publish(self, event: Event) -> int:
        """Return the event's seq once it is durable. A repeat (same id) changes nothing."""
        ...

    async def post(self, event: Event) -> Receipt:
        """Send, at once or soon with others. Waits where too much is on its way. What is said of
        one thing is recorded in that order, and nothing while what was said before is not.
        """
        ...

    async def create(self, event: Event, after_seq: int = 0) -> int:
        """Publish what must be the next event of its topic after that of `after_seq`, the first one
        for 0. Raises `AlreadyExists`.
        """
        ...

    async def first(self, topic: Topic) -> Recorded | None:
        """Return the first event of a topic, or None."""
        ...

    def replay(
        self, topics: Sequence[Topic] = (), after_seq: int = 0
    ) -> AsyncGenerator[Recorded, None]:
        """Yield what is recorded now and end."""
        ...

    def follow(
        self, topics: Sequence[Topic] = (), after_seq: int = 0
    ) -> AsyncGenerator[Recorded, None]:
        """Yield what is recorded, then what comes, until closed."""
        ...

    async def list_ids(self, channel: Channel) -> Sequence[str]:
        """Return the ids of what a channel tells of."""
        ...

    async def forget(self, topic: Topic) -> None:
        """Remove all records of one thing."""
        ...


Publish = Callable[[Event], Awaitable[int]]
"""`Log.publish`, of those who do nothing else with the log."""
ReadFile = Callable[[Base, str, int], Awaitable[str]]
"""`Repositories.read`, of those who do nothing else with a repository."""
MergeCommits = Callable[[Base, Sequence[str]], Awaitable[Patch]]
"""Returns what commits come to together on a base. Raises `MergeConflict`, `PatchRefused`,
`RepositoryError`.
"""
NOTHING: Mapping[str, str] = MappingProxyType({})
Handler = Callable[[Recorded], Awaitable[None]]
Answerer = Callable[[Mapping[str, Any]], Awaitable[tuple[Mapping[str, Any], bytes]]]
"""Answers a request: a JSON object, and bytes beside it that fit into a message. Where it raises a
`MoothallError` or `OSError`, nobody hears anything.
"""
Glance = Callable[[Recorded], bool | asyncio.Future[None]]
"""Sees a message before its handler does; True where nothing is left to be done, a future where
that is so once it is done.
"""


class Bucket(Protocol):
    """Documents under keys, the newest of each, that many processes follow."""

    async def put(self, key: str, document: Mapping[str, Any]) -> None:
        """Store, replacing."""
        ...

    async def create(self, key: str, document: Mapping[str, Any]) -> None:
        """Store what must be the first under its key. Raises `AlreadyExists`."""
        ...

    async def get(self, key: str) -> Mapping[str, Any] | None:
        """Return the document or None."""
        ...

    async def get_with_revision(self, key: str) -> tuple[Mapping[str, Any] | None, int]:
        """Return the document and its revision; None and 0 where there is none."""
        ...

    async def replace(self, key: str, document: Mapping[str, Any], revision: int) -> None:
        """Store what stands in for a revision, 0 for none. Raises `AlreadyExists` where another was
        faster.
        """
        ...

    async def entries(self) -> Mapping[str, Mapping[str, Any]]:
        """Return all that is there now."""
        ...

    def follow(self) -> AsyncGenerator[tuple[str, Mapping[str, Any]], None]:
        """Yield (key, document) of all that is there, then of what changes, until closed."""
        ...


class Bus(Log, Protocol):
    """The log, and what goes over the same connection: work, plain messages, documents and buckets
    of them.
    """

    async def enqueue(self, topic: Topic, event: Event, *, fresh: bool = False) -> None:
        """Put an event on the work queue; returns once durable. `fresh`: nobody can have begun it
        before its first delivery, whose `extra` says so.
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
        """Pull messages of a durable consumer named in the registry, until cancelled. The handler
        persists, then returns: that is the ack. `Temporary` → nak with a growing delay; anything
        undecodable or `Permanent` → dead letter, then term. While a handler runs the message is
        kept alive by in-progress notices.

        Consumers may share a `Capacity`, which limits what they handle at a time in all. They leave
        further messages to others.

        `glance` is called with one message after the other, in the order of their delivery, and
        spares most of them the handler. It persists nothing and raises nothing. `extra` holds
        `deliveries`, from 1, and `place`: a number that grows by one with each delivery of this
        consumer to anybody, so that a gap tells of messages that went elsewhere.
        """
        ...

    async def signal(self, topic: Topic, data: Mapping[str, Any]) -> None:
        """Send a plain message that is not stored: a hint that may be lost, repeated in the log
        where it matters.
        """
        ...

    def signals(self, topic: Topic) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield what is sent until closed."""
        ...

    async def ask(
        self, topic: Topic, asked: Mapping[str, Any], seconds: float
    ) -> tuple[Mapping[str, Any], bytes]:
        """Return the answer to a request that is stored nowhere. Raises `BusUnavailable` where
        nobody answers within `seconds`.
        """
        ...

    def ask_all(
        self, topic: Topic, asked: Mapping[str, Any], seconds: float
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield the answers of all who answer for a topic, until none has come for `seconds`.
        Raises `BusUnavailable`.
        """
        ...

    async def answer(self, topic: Topic, answerer: Answerer, *, shared: bool = False) -> None:
        """Answer what is asked, requests side by side, until cancelled. `shared`: of several that
        answer, one is asked.
        """
        ...

    async def put(self, key: str, document: Mapping[str, Any]) -> None:
        """Store a document that clients poll, replacing."""
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
        """Return how the model is asked for tool calls: tools, json or blocks, as a probe or the
        operator says.
        """
        ...

    async def describe(self) -> ModelDescription:
        """Return the model's name, reply mode and window, as far as the server tells them. Raises
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
        """Return the complete reply; `on_text` receives each new piece of text. `owns_work` is
        called before each attempt; if it returns False, the call is cancelled.

        Raises `ModelUnavailable` if all retries failed, `ContextOverflow` if the conversation is
        too long, `ModelReplyInvalid` for a response that is not a reply, and `DeadlineExceeded`.
        """
        ...


CountTokens = Callable[[str], Awaitable[int]]
"""Returns how many tokens the model that is asked makes of a text."""


Hear = Callable[[Sequence[str]], Awaitable[Sequence[str] | None]]
"""Is told the lines that a program has printed since it was last asked, and returns those that the
program reads next; None: it is to end. Raises nothing.
"""


class Workspace(Protocol):
    """An isolated checkout where tools act."""

    @property
    def id(self) -> str:
        """The workspace's id."""
        ...

    async def call(self, call: ToolCall) -> ToolResult:
        """Run a tool whose arguments are already validated. A limit that was hit is a status, not
        an error.
        Raises `WorkspaceFailed` when the executor is gone.
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
        """Run a check of the profile, narrowed to test files or to cases of an earlier run where
        its runner can be narrowed. `alone`: while no other command runs on its machine. What a
        check leaves in files is gone when it ends.
        """
        ...

    async def patch(self, message: str) -> Patch:
        """Commit all changes so far to the trusted clone and return them. Raises `PatchRefused`."""
        ...

    async def run_code(self, block: CodeBlock, ask: Ask) -> BlockRun:
        """Run a block in CPython, where it can read the workspace's files. What it writes there
        itself is gone when it ends: it changes the workspace by tools alone. Raises what `ask`
        raises.
        """
        ...

    async def converse(
        self, argv: Sequence[str], hear: Hear, *, seconds: float, most: int, keeps: bool
    ) -> str:
        """Run a program among the workspace's files, and carry lines between it and `hear`. Return
        why it ended, where it did by itself or had to be stopped, after `seconds` or `most` bytes
        too; else nothing. What it writes to files stays only where `keeps` says so.
        """
        ...


RunCode = Callable[[CodeBlock, Workspace, Ask], Awaitable[BlockRun]]
"""Runs a block of Python that a model wrote, to its end or to the first limit; however it ends, it
is said in what is returned. `ask` is called for one question after the other. Raises what it
raises.
"""


Toolkit = Callable[[ToolCall, Workspace, str], Awaitable[ToolResult]]
"""Runs a tool of a category that no workspace runs itself, for a tenant, until `call.deadline`. Its
arguments are already validated; what fails is a status, not an error.
"""


class Workspaces(Protocol):
    """Opens workspaces. All are gone, with processes and mounts, when their context ends."""

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
        """A fresh workspace on `prepared`, with `patch` (a git diff against the base) applied, and
        then of
        the diff `extra` only the test files, then the texts `files` by path, and at the end
        of files those of `append`. `judged`: test files, and what configures their runners, are as
        they were on the
        base, and not there where it has none; new tests come by `extra` alone. Raises
        `PatchRefused`.
        """
        ...


class Repositories(Protocol):
    """The trusted side's clones."""

    async def read(self, base: Base, path: str, limit: int = 65536) -> str:
        """Return a text file of the base commit, at most `limit` characters. Raises `NotFound`."""
        ...

    async def resolve(self, ref: RepositoryRef, *, tenant: str = "local") -> Base:
        """Fetch and pin a commit. Raises `RepositoryError`, `NotFound`, `Refused`."""
        ...

    async def prepare(
        self, base: Base, on_progress: Callable[[str], None] | None = None
    ) -> Prepared:
        """Set up once per lock file, check out once per commit, run the checks once on the
        untouched base. Tests that the profile hides are not in it, and are returned beside it.
        """
        ...

    async def check_delivery(self, repository: str, base_sha: str, branch: str) -> None:
        """Raise `RepositoryError` if a winner would be delivered as that branch and could not."""
        ...

    async def diff(self, base: Base, commit_sha: str) -> str:
        """Return what a commit has changed. Raises `PatchRefused` where the clone does not have
        it.
        """
        ...

    async def deliver(
        self, base: Base, diff: str, branch: str, message: str, merged: Sequence[str] = ()
    ) -> str:
        """Commit `diff` on the base and the commits that are merged in it (same input, same sha),
        make the branch where the repository's push policy allows and return the commit's sha. The
        checked-out tree stays untouched.
        """
        ...


Land = Callable[[RepositoryRef, str, str, str, str], Awaitable[MergeResult]]
"""Does with an approved commit of a repository, which lies on a branch, what the repository's
policy says: commit, branch, message, tenant.
"""


class Deliberations(Protocol):
    """The deliberation service: what the CLI and the gRPC services call."""

    async def submit(self, request: DeliberationRequest, who: Principal) -> Deliberation:
        """Check, fill in defaults, pin the base commit, record and enqueue. The same task_id with
        the same
        request is the same deliberation; with another one, `AlreadyExists`.
        """
        ...

    async def check(self, request: DeliberationRequest, who: Principal) -> None:
        """Raise what `submit` would raise if this were a new task; record nothing."""
        ...

    async def refuse(self, request: DeliberationRequest, reason: Permanent, who: Principal) -> None:
        """Record a task that cannot start: its result is FAILED with this reason.

        Do nothing if the task id is taken.
        """
        ...

    async def result(self, task_id: str, who: Principal) -> Outcome:
        """Return how it stands now (PENDING, IN_PROGRESS or an end). `NotFound` also across
        tenants.
        """
        ...

    async def wait(self, task_id: str, who: Principal) -> Outcome:
        """Return the end, however long it takes (the deliberation's own deadline bounds it)."""
        ...

    def watch(self, task_id: str, after_seq: int, who: Principal) -> AsyncGenerator[Recorded, None]:
        """Yield the events after a seq or `Recorded.position` in log order, each once.

        End after the decision.
        """
        ...

    def watch_text(self, task_id: str, who: Principal) -> AsyncGenerator[Writing, None]:
        """Yield what seats are writing until closed. `NotFound` also across tenants."""
        ...

    async def cancel(self, task_id: str, reason: str, who: Principal) -> DeliberationStatus:
        """Stop it; its model calls, tools and workspaces stop within a second."""
        ...

    async def pause(self, task_id: str, who: Principal, *, paused: bool = True) -> bool:
        """Let it wait from the next turn on, or go on where it was; return whether that changes
        anything. Its deadline moves by as long as it waits. Raises `InvalidRequest` where it has
        ended, `NotFound` also across tenants.
        """
        ...

    async def steer(self, task_id: str, message: str, who: Principal, *, key: str) -> None:
        """Say something to its seats, which hear it at their next turn; `key` names the request.
        Raises `InvalidRequest`, also once it has ended.
        """
        ...
