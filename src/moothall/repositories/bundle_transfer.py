"""Repositories for hosts that share no disk with them: commits go out as bundles, asked for over
the bus and fetched in parts.

Both sides lend: the server its commits, a host a patch that the server is to push. A bundle is
known
by the commits that it was asked for; what its other side has makes it thin, so that nothing travels
twice. A tenant is named with each request, and gets what is that tenant's own.
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
from moothall.repositories.bundles import make_bundle, shallow_of, take_bundle, with_submodules
from moothall.repositories.clone import TrustedClone
from moothall.repositories.gitcmd import FetchTooLarge, GitRunner
from moothall.repositories.scratch import scratch

Ask = Callable[[Topic, Mapping[str, Any], float], Awaitable[tuple[Mapping[str, Any], bytes]]]
"""`Bus.ask`."""
Said = Mapping[str, Any]
PART = 512 * 1024
"""Bytes of a bundle in one message."""
_SIDE_BY_SIDE = 4
_SOON_SECONDS, _ASK_SECONDS, _PATIENCE_SECONDS, _PAUSE_SECONDS = 5.0, 20.0, 30.0, 0.2
_KEPT_SECONDS, _KEPT_LARGEST, _MADE_AT_ONCE = 60.0, 4, 4


@dataclass(frozen=True, slots=True)
class BundleOffer:
    """What is there to be taken. `bundle` names it at its `holder`, '' where the other side has
    all; `size` in bytes; `shallow`: where the history ends.
    """

    wants: tuple[str, ...]
    bundle: str = ""
    size: int = 0
    holder: str = ""
    shallow: tuple[str, ...] = ()


@dataclass(slots=True)
class _Kept:
    made: asyncio.Task[int]
    file: Path
    used: float


class BundleServer:
    """Bundles that are kept for a minute after they were used last, as far as there is room for
    four of the largest, and requests that are under way. Use as async context manager.
    """

    def __init__(
        self, git: GitRunner, settings: Settings, soon_seconds: float = _SOON_SECONDS
    ) -> None:
        self._soon_seconds = soon_seconds
        self.holder = secrets.token_hex(8)
        self._git, self._settings = git, settings
        self._kept: dict[str, _Kept] = {}
        self._working: dict[str, asyncio.Task[Said]] = {}
        self._room = asyncio.Semaphore(_MADE_AT_ONCE)
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
        tasks = [*self._working.values(), *(kept.made for kept in self._kept.values())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._stack.close()

    async def offer(
        self, clone: TrustedClone, shas: Sequence[str], haves: Sequence[str]
    ) -> BundleOffer:
        """Return what leads to these commits and those of their submodules. Raises `NotFound`,
        `RepositoryError`.
        """
        wants = await with_submodules(clone, shas)
        name = digest(str(clone.path), *sorted(wants), "", *sorted(set(haves)))
        self._drop_old()
        kept = self._kept.get(name)
        if kept is None or (kept.made.done() and (kept.made.cancelled() or kept.made.exception())):
            file = self._folder / f"{name}.bundle"
            making = self._make(clone, file, wants, haves)
            kept = self._kept[name] = _Kept(
                asyncio.create_task(making, name="bundle"), file, time.monotonic()
            )
        try:
            size = await asyncio.shield(kept.made)
        finally:
            kept.used = time.monotonic()
            self._drop_old()
            asyncio.get_running_loop().call_later(_KEPT_SECONDS + 1, self._drop_old)
        if not size:
            return BundleOffer(tuple(wants))
        return BundleOffer(tuple(wants), name, size, self.holder, shallow_of(clone))

    async def _make(
        self, clone: TrustedClone, file: Path, wants: Sequence[str], haves: Sequence[str]
    ) -> int:
        async with self._room:
            return await make_bundle(
                self._git, clone, self._settings, file, wants=wants, haves=haves
            )

    async def soon(self, asked: Said, work: Callable[[Said], Awaitable[Said]]) -> Said:
        """Return what `work` answers, an error as words, or that it takes longer: whoever asks the
        same again then goes on waiting.
        """
        key = digest(repr(sorted(asked.items())))
        task = self._working.get(key)
        if task is None:
            task = self._working[key] = asyncio.ensure_future(work(asked))
            task.add_done_callback(
                lambda _: asyncio.get_running_loop().call_later(
                    _ASK_SECONDS, self._forget, key, task
                )
            )
        done, _ = await asyncio.wait({task}, timeout=self._soon_seconds)
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

    async def part(self, asked: Said) -> tuple[Said, bytes]:
        """Return a part of a bundle; the one who asks sees by its size where it is gone."""
        kept, offset = self._kept.get(str(asked.get("bundle"))), asked.get("offset")
        if kept is None or not isinstance(offset, int) or offset < 0:
            return {}, b""
        kept.used = time.monotonic()
        return {}, await asyncio.to_thread(_read, kept.file, offset)

    async def take(
        self, bus: Ask, clone: TrustedClone, offer: BundleOffer, *, patch: bool = False
    ) -> None:
        """Bring what another offers into a clone; of a `patch` nothing but its commits: tags, and
        where a history ends, are the server's to say.

        Raises `FetchTooLarge`, `Temporary`.
        """
        if not offer.bundle:
            await take_bundle(self._git, clone, self._settings, None, wants=offer.wants)
            return
        most = self._settings.max_repository_bytes
        if offer.size > most:
            raise FetchTooLarge(
                f"a bundle of {offer.size} bytes is offered; at most {most} are taken "
                "(workspace.max_repository_bytes)"
            )
        with scratch() as folder:
            file = folder / "bundle"
            await _pull(bus, offer, file)
            shallow = () if patch else offer.shallow
            await take_bundle(
                self._git,
                clone,
                self._settings,
                file,
                wants=offer.wants,
                shallow=shallow,
                tags=not patch,
            )

    def _forget(self, key: str, task: asyncio.Task[Said] | None) -> None:
        """Drop an answer that was given, or that nobody came back for: a later one may be
        another.
        """
        if task is not None and self._working.get(key) is task:
            del self._working[key]
            task.cancelled() or task.exception()

    def _drop_old(self) -> None:
        """Drop what was not used for long, and what was not used for longest where there is no
        room: whoever still fetches that asks again.
        """
        left = _KEPT_LARGEST * self._settings.max_repository_bytes
        for name, kept in sorted(self._kept.items(), key=lambda item: -item[1].used):
            if kept.made.done():
                left -= 0 if kept.made.cancelled() or kept.made.exception() else kept.made.result()
                if left < 0 or time.monotonic() - kept.used > _KEPT_SECONDS:
                    kept.file.unlink(missing_ok=True)
                    del self._kept[name]


async def ask(bus: Ask, topic: Topic, asked: Said, patience: float = _PATIENCE_SECONDS) -> Said:
    """Ask until there is an answer. Raises what the other side raised, `Temporary` where nobody
    answers for `patience` seconds.
    """
    until = time.monotonic() + patience
    while True:
        try:
            said, _ = await bus(topic, asked, _ASK_SECONDS)
        except BusUnavailable as error:
            if time.monotonic() > until:
                raise Temporary(f"the repositories are out of reach: {error.message}") from error
            await asyncio.sleep(_PAUSE_SECONDS)
            continue
        if not said.get("wait"):
            break
        until = time.monotonic() + patience
    if "error" in said:
        raise _error(str(said["error"]))(str(said.get("message"))[:2000])
    return said


async def _pull(bus: Ask, offer: BundleOffer, file: Path) -> None:
    topic = Channel.REPOSITORIES.of(offer.holder)

    async def part(offset: int) -> bytes:
        _, content = await bus(
            topic, {"ask": "part", "bundle": offer.bundle, "offset": offset}, _ASK_SECONDS
        )
        if len(content) != min(PART, offer.size - offset):
            raise Temporary("a bundle went while it was fetched")
        return content

    with file.open("wb") as whole:
        for begin in range(0, offer.size, _SIDE_BY_SIDE * PART):
            offsets = range(begin, min(begin + _SIDE_BY_SIDE * PART, offer.size), PART)
            for content in await asyncio.gather(*map(part, offsets)):
                await asyncio.to_thread(whole.write, content)


def _error(code: str) -> type[MoothallError]:
    """Return the error that goes by a code, or one of its kind."""
    known: list[type[MoothallError]] = [MoothallError]
    found: dict[str, type[MoothallError]] = {}
    while known:
        kind = known.pop()
        found.setdefault(kind.code, kind)
        known += kind.__subclasses__()
    return found.get(code, Permanent)


def _read(file: Path, offset: int) -> bytes:
    try:
        with file.open("rb") as opened:
            opened.seek(offset)
            return opened.read(PART)
    except FileNotFoundError:
        return b""
