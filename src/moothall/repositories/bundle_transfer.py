"""Transfer of repositories between hosts without a shared disk: commits are sent as bundles, which
are requested over the bus and fetched in parts.

Both sides serve bundles: the server its commits, a host the patches that the server pushes. A
bundle is identified by the requested commits. It omits commits that the other side has. Each
request names a tenant, and only that tenant's repositories are served.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from moothall.config import WorkspaceSettings as Settings
from moothall.domain.ids import digest
from moothall.domain.topic import Channel, Topic
from moothall.errors import BusUnavailable, MoothallError, Permanent, Temporary
from moothall.repositories.bundles import (
    fetch_bundle,
    include_submodules,
    shallow_commits,
    write_bundle,
)
from moothall.repositories.clone import TrustedClone
from moothall.repositories.gitcmd import FetchTooLarge, GitRunner
from moothall.repositories.scratch import scratch

Ask = Callable[[Topic, Mapping[str, Any], float], Awaitable[tuple[Mapping[str, Any], bytes]]]
"""`Bus.ask`."""
Message = Mapping[str, Any]
PART = 512 * 1024
"""Bytes of a bundle in one message."""
_PARALLEL_PARTS = 4
_REPLY_SECONDS, _ASK_SECONDS, _UNREACHABLE_SECONDS, _PAUSE_SECONDS = 5.0, 20.0, 30.0, 0.2
_BUNDLE_SECONDS, _MAX_LARGEST_BUNDLES, _MAX_CONCURRENT_WRITES = 60.0, 4, 4


@dataclass(frozen=True, slots=True)
class BundleOffer:
    """An offer of commits.

    bundle: the name of the bundle at its `holder`; '' if the other side has all commits.
    size: in bytes.
    shallow: the commits at which the history ends.
    """

    wants: tuple[str, ...]
    bundle: str = ""
    size: int = 0
    holder: str = ""
    shallow: tuple[str, ...] = ()


@dataclass(slots=True)
class _StoredBundle:
    task: asyncio.Task[int]
    file: Path
    last_used: float


class BundleServer:
    """A server of bundles, and a client of other such servers. Use it as an async context manager.

    A bundle is stored for a minute after its last use, with a limit on the size of all of them.

    reply_seconds: how long a request runs before its caller is told to ask again.
    """

    def __init__(
        self, git: GitRunner, settings: Settings, reply_seconds: float = _REPLY_SECONDS
    ) -> None:
        self._reply_seconds = reply_seconds
        self.holder = secrets.token_hex(8)
        self._git, self._settings = git, settings
        self._bundles: dict[str, _StoredBundle] = {}
        self._running: dict[str, asyncio.Task[Message]] = {}
        self._write_slots = asyncio.Semaphore(_MAX_CONCURRENT_WRITES)
        self._stack = ExitStack()

    async def __aenter__(self) -> Self:
        self._folder = self._stack.enter_context(scratch())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        tasks = [*self._running.values(), *(bundle.task for bundle in self._bundles.values())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._stack.close()

    async def offer(
        self, clone: TrustedClone, shas: Sequence[str], haves: Sequence[str]
    ) -> BundleOffer:
        """Return an offer of these commits and those of their submodules. Raises `NotFound`,
        `RepositoryError`.
        """
        wants = await include_submodules(clone, shas)
        name = digest(str(clone.path), *sorted(wants), "", *sorted(set(haves)))
        self._drop_old()
        bundle = self._bundles.get(name)
        if bundle is None or (
            bundle.task.done() and (bundle.task.cancelled() or bundle.task.exception())
        ):
            file = self._folder / f"{name}.bundle"
            writing = self._write(clone, file, wants, haves)
            bundle = self._bundles[name] = _StoredBundle(
                asyncio.create_task(writing, name="bundle"), file, time.monotonic()
            )
        try:
            size = await asyncio.shield(bundle.task)
        finally:
            bundle.last_used = time.monotonic()
            self._drop_old()
            asyncio.get_running_loop().call_later(_BUNDLE_SECONDS + 1, self._drop_old)
        if not size:
            return BundleOffer(tuple(wants))
        return BundleOffer(tuple(wants), name, size, self.holder, shallow_commits(clone))

    async def _write(
        self, clone: TrustedClone, file: Path, wants: Sequence[str], haves: Sequence[str]
    ) -> int:
        async with self._write_slots:
            return await write_bundle(
                self._git, clone, self._settings, file, wants=wants, haves=haves
            )

    async def run_or_wait(
        self, request: Message, handler: Callable[[Message], Awaitable[Message]]
    ) -> Message:
        """Run `handler` and return its reply, or its error as a message. Return `{"wait": True}` if
        it takes too long; a repeated equal request continues to wait.
        """
        key = digest(repr(sorted(request.items())))
        task = self._running.get(key)
        if task is None:
            task = self._running[key] = asyncio.ensure_future(handler(request))
            task.add_done_callback(
                lambda _: asyncio.get_running_loop().call_later(
                    _ASK_SECONDS, self._forget, key, task
                )
            )
        done, _ = await asyncio.wait({task}, timeout=self._reply_seconds)
        if not done:
            return {"wait": True}
        self._forget(key, task)
        try:
            return task.result()
        except MoothallError as error:
            return {"error": error.code, "message": error.message}
        except OSError as error:
            return {
                "error": Temporary.code,
                "message": f"the repositories cannot be read: {error.strerror}",
            }

    async def read_part(self, request: Message) -> tuple[Message, bytes]:
        """Return a part of a bundle. It is empty if the bundle is gone."""
        bundle, offset = self._bundles.get(str(request.get("bundle"))), request.get("offset")
        if bundle is None or not isinstance(offset, int) or offset < 0:
            return {}, b""
        bundle.last_used = time.monotonic()
        return {}, await asyncio.to_thread(_read, bundle.file, offset)

    async def fetch(
        self, bus: Ask, clone: TrustedClone, offer: BundleOffer, *, patch: bool = False
    ) -> None:
        """Fetch the commits that another process offers into a clone.

        patch: fetch only the commits; tags and the end of the history come from the server.

        Raises `FetchTooLarge`, `Temporary`.
        """
        if not offer.bundle:
            await fetch_bundle(self._git, clone, self._settings, None, wants=offer.wants)
            return
        max_bytes = self._settings.max_repository_bytes
        if offer.size > max_bytes:
            raise FetchTooLarge(
                f"a bundle of {offer.size} bytes is offered; at most {max_bytes} are taken "
                "(workspace.max_repository_bytes)"
            )
        with scratch() as folder:
            file = folder / "bundle"
            await _pull(bus, offer, file)
            shallow = () if patch else offer.shallow
            await fetch_bundle(
                self._git,
                clone,
                self._settings,
                file,
                wants=offer.wants,
                shallow=shallow,
                tags=not patch,
            )

    def _forget(self, key: str, task: asyncio.Task[Message] | None) -> None:
        """Drop the result of a request that was returned or that nobody asked for again, because a
        later result may differ.
        """
        if task is not None and self._running.get(key) is task:
            del self._running[key]
            task.cancelled() or task.exception()

    def _drop_old(self) -> None:
        """Drop bundles that were not used for long, and the least recently used ones beyond the
        size limit. A client that still fetches one of them requests it again.
        """
        free_bytes = _MAX_LARGEST_BUNDLES * self._settings.max_repository_bytes
        for name, bundle in sorted(self._bundles.items(), key=lambda item: -item[1].last_used):
            if bundle.task.done():
                free_bytes -= (
                    0
                    if bundle.task.cancelled() or bundle.task.exception()
                    else bundle.task.result()
                )
                if free_bytes < 0 or time.monotonic() - bundle.last_used > _BUNDLE_SECONDS:
                    bundle.file.unlink(missing_ok=True)
                    del self._bundles[name]


async def send_request(
    bus: Ask, topic: Topic, request: Message, unreachable_seconds: float = _UNREACHABLE_SECONDS
) -> Message:
    """Send a request to a server of repositories until it replies, and return the reply.

    Raises the error of the server, and `Temporary` if it is unreachable for `unreachable_seconds`.
    """
    give_up = time.monotonic() + unreachable_seconds
    while True:
        try:
            reply, _ = await bus(topic, request, _ASK_SECONDS)
        except BusUnavailable as error:
            if time.monotonic() > give_up:
                raise Temporary(f"the repositories are out of reach: {error.message}") from error
            await asyncio.sleep(_PAUSE_SECONDS)
            continue
        if not reply.get("wait"):
            break
        give_up = time.monotonic() + unreachable_seconds
    if "error" in reply:
        raise _error(str(reply["error"]))(str(reply.get("message"))[:2000])
    return reply


async def _pull(bus: Ask, offer: BundleOffer, file: Path) -> None:
    topic = Channel.REPOSITORIES.of(offer.holder)

    async def read_part(offset: int) -> bytes:
        _, content = await bus(
            topic, {"ask": "part", "bundle": offer.bundle, "offset": offset}, _ASK_SECONDS
        )
        if len(content) != min(PART, offer.size - offset):
            raise Temporary("a bundle went while it was fetched")
        return content

    with file.open("wb") as output:
        for start in range(0, offer.size, _PARALLEL_PARTS * PART):
            offsets = range(start, min(start + _PARALLEL_PARTS * PART, offer.size), PART)
            for content in await asyncio.gather(*map(read_part, offsets)):
                await asyncio.to_thread(output.write, content)


def _error(code: str) -> type[MoothallError]:
    """Return the error class with a code, `Permanent` for an unknown one."""
    pending: list[type[MoothallError]] = [MoothallError]
    errors: dict[str, type[MoothallError]] = {}
    while pending:
        error = pending.pop()
        errors.setdefault(error.code, error)
        pending += error.__subclasses__()
    return errors.get(code, Permanent)


def _read(file: Path, offset: int) -> bytes:
    try:
        with file.open("rb") as stream:
            stream.seek(offset)
            return stream.read(PART)
    except FileNotFoundError:
        return b""
