"""Transfer of repositories between hosts without a shared disk: commits are sent as bundles,
which are requested over the bus and fetched in parts. Git bundles that carry commits from one
clone to another.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from moothall.config import WorkspaceSettings as Settings
from moothall.domain.event import Channel, Topic
from moothall.domain.ids import digest
from moothall.errors import (
    BusUnavailable,
    MoothallError,
    NotFound,
    Permanent,
    RepositoryError,
    Temporary,
)
from moothall.processes import scratch
from moothall.repositories.clone import TrustedClone
from moothall.repositories.gitcmd import FetchTooLarge, GitRunner, OutputCaps, exceeds_file_limit

# Git bundles that carry commits from one clone to another. A bundle omits what the other side has,
# and only the requested commits are fetched from it.


_SHA = re.compile(r"[0-9a-f]{40}")
_MAX_HAVES, _MAX_SUBMODULE_DEPTH = 64, 3
_BASES, _PATCHES = "refs/moothall/bases/", "refs/moothall/patches/"


async def include_submodules(
    clone: TrustedClone, shas: Iterable[str], depth: int = _MAX_SUBMODULE_DEPTH
) -> list[str]:
    """Return commits and those commits of their submodules that the clone has."""
    commits: list[str] = []
    for sha in dict.fromkeys(shas):
        submodules = [
            commit
            for commit in (await clone.submodules(sha)).values()
            if depth and await clone.has(commit)
        ]
        commits += [sha, *await include_submodules(clone, submodules, depth - 1)]
    return list(dict.fromkeys(commits))


async def newest_commits(clone: TrustedClone) -> list[str]:
    """Return the newest base commits, which a bundle for this clone may omit; none if there is no
    clone yet.
    """
    if not (clone.path / "HEAD").exists():
        return []
    result = await clone.call(
        "for-each-ref",
        "--sort=-creatordate",
        f"--count={_MAX_HAVES}",
        "--format=%(objectname)",
        _BASES,
    )
    return result.out.decode().split()


def shallow_commits(clone: TrustedClone) -> tuple[str, ...]:
    """Return the commits at which the history of a shallow clone ends."""
    try:
        return tuple(
            line
            for line in (clone.path / "shallow").read_text(encoding="ascii").split()
            if _SHA.fullmatch(line)
        )
    except FileNotFoundError:
        return ()


async def write_bundle(
    git: GitRunner,
    clone: TrustedClone,
    settings: Settings,
    file: Path,
    *,
    wants: Sequence[str],
    haves: Iterable[str],
) -> int:
    """Write a bundle of the history of `wants` without that of `haves`, with its tags. Return its
    size in bytes, 0 if nothing is missing.

    Raises `NotFound` for commits that the clone lacks, and `RepositoryError`.
    """
    ref_fields = (
        (await clone.call("for-each-ref", "--format=%(objectname) %(refname)", _BASES, _PATCHES))
        .out.decode()
        .split()
    )
    refs_by_sha = dict(zip(ref_fields[::2], ref_fields[1::2], strict=True))
    if missing := [sha for sha in wants if sha not in refs_by_sha]:
        raise NotFound(f"the commit {missing[0][:40]} is missing here")
    excluded = [sha for sha in haves if sha in refs_by_sha]
    if set(wants) <= set(excluded):
        return 0
    tags = await clone.call(
        "for-each-ref", "--format=%(refname)", f"--merged={wants[0]}", "refs/tags"
    )
    tag_names = tags.out.decode().split("\n")
    revisions = [
        *(refs_by_sha[sha] for sha in wants),
        *filter(None, tag_names),
        *(f"^{sha}" for sha in excluded),
    ]
    result = await git.call(
        "bundle",
        "create",
        "--quiet",
        "--version=2",
        str(file),
        "--stdin",
        cwd=clone.path,
        stdin="".join(f"{line}\n" for line in revisions).encode(),
        seconds=settings.check_seconds,
        caps=OutputCaps(file_bytes=settings.max_repository_bytes),
    )
    if "empty bundle" in result.err:
        return 0
    if result.status and exceeds_file_limit(result.err):
        raise FetchTooLarge(
            f"a bundle may have at most {settings.max_repository_bytes} bytes "
            "(workspace.max_repository_bytes)"
        )
    if result.status:
        raise RepositoryError(f"the commit {wants[0][:12]} cannot be bundled: {result.reason}")
    return (await asyncio.to_thread(file.stat)).st_size


async def fetch_bundle(
    git: GitRunner,
    clone: TrustedClone,
    settings: Settings,
    file: Path | None,
    *,
    wants: Sequence[str],
    shallow: Iterable[str] = (),
    tags: bool = True,
) -> None:
    """Fetch `wants` and tags from a bundle; without a file, from what the clone has already. Raises
    `Temporary` if a commit is incomplete.
    """
    await clone.create()
    if invalid := [sha for sha in (*wants, *shallow) if not _SHA.fullmatch(sha)]:
        raise RepositoryError(f"{invalid[0][:80]!r} is not a full commit id")
    haves = await newest_commits(clone)
    if file is not None:
        await asyncio.to_thread(_add_shallow, clone.path / "shallow", set(shallow))
        heads = await git.run("bundle", "list-heads", str(file), cwd=clone.path)
        pairs = [line.split(" ", 1) for line in heads.decode(errors="replace").splitlines()]
        # Each ref of ours is named by its commit; refs whose name and commit differ are ignored.
        offered_refs = {
            sha: name
            for sha, name in pairs
            if sha in wants and name in {_BASES + sha, _PATCHES + sha}
        }
        fetched = await git.call(
            "fetch",
            "--quiet",
            "--no-tags",
            "--no-write-fetch-head",
            "--no-recurse-submodules",
            "--update-shallow",
            "--",
            str(file),
            *(f"+{name}:{_BASES}{sha}" for sha, name in offered_refs.items()),
            *(["+refs/tags/*:refs/tags/*"] if tags else []),
            cwd=clone.path,
            env={"GIT_ALLOW_PROTOCOL": "file"},
            seconds=settings.check_seconds,
            caps=OutputCaps(file_bytes=settings.max_repository_bytes),
        )
        if fetched.status:
            raise Temporary(f"a bundle of {wants[0][:12]} could not be fetched: {fetched.reason}")
    for sha in wants:
        if not await clone.has(sha):
            await _create_base_ref(clone, sha, haves)


async def _create_base_ref(clone: TrustedClone, sha: str, haves: Sequence[str]) -> None:
    """Create the ref of a commit whose whole history the clone has."""
    missing = await clone.call("rev-list", "--max-count=1", sha, "--not", *haves)
    if missing.status or missing.out.strip() or not haves:
        raise Temporary(f"the commit {sha[:12]} did not arrive")
    await clone.call("update-ref", f"{_BASES}{sha}", sha)


def _add_shallow(file: Path, shallow: set[str]) -> None:
    """Add commits to those at which the history ends."""
    recorded = set(file.read_text(encoding="ascii").split()) if file.exists() else set()
    if shallow - recorded:
        new_file = file.with_suffix(".new")
        new_file.write_text(
            "".join(f"{sha}\n" for sha in sorted(shallow | recorded)), encoding="ascii"
        )
        new_file.replace(file)


# Transfer of repositories between hosts without a shared disk: commits are sent as bundles, which
# are requested over the bus and fetched in parts.
#
# Both sides serve bundles: the server its commits, a host the patches that the server pushes. A
# bundle is identified by the requested commits. It omits commits that the other side has. Each
# request names a tenant, and only that tenant's repositories are served.


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
            writing = self._write_bundle(clone, file, wants, haves)
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

    async def _write_bundle(
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
        finished, _ = await asyncio.wait({task}, timeout=self._reply_seconds)
        if not finished:
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
        return {}, await asyncio.to_thread(_read_chunk, bundle.file, offset)

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
                raise Temporary(f"the repositories cannot be reached: {error.message}") from error
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
            raise Temporary("a bundle was removed while it was fetched")
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


def _read_chunk(file: Path, offset: int) -> bytes:
    try:
        with file.open("rb") as stream:
            stream.seek(offset)
            return stream.read(PART)
    except FileNotFoundError:
        return b""
