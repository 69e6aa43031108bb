"""The folders of repositories on a node: checkouts, environments and histories, unpacked once."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import secrets
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from moothall.errors import WorkspaceFailed
from moothall.sandbox.spawn import sandbox_uid, set_owner
from moothall.workspace import archive
from moothall.workspace.executor_client import remove_tree

MAX_UNUSED = 32
"""How many folders are kept that no workspace uses."""

Fetch = Callable[[Any], Awaitable[bytes]]
"""Returns a part of an archive by its reference."""


class FolderCache:
    """The unpacked folders below `top`, by name. A name stands for the same contents forever."""

    def __init__(self, top: Path, fetch: Fetch, max_unused: int = MAX_UNUSED) -> None:
        self._top, self._fetch, self._max_unused = top, fetch, max_unused
        self._users: Counter[str] = Counter()
        self._names: dict[str, None] = {}  # least recently used first
        self._locks: dict[str, asyncio.Lock] = {}

    @property
    def names(self) -> frozenset[str]:
        """The folders that are there."""
        return frozenset(self._names)

    def missing(self, names: Iterable[str]) -> frozenset[str]:
        """Return the names of which there is no folder."""
        return frozenset(names) - self._names.keys()

    async def hold(self, name: str, parts: Sequence[Any]) -> Path:
        """Return a folder that stays until `release`. It is unpacked first if it is missing.

        Raises `WorkspaceFailed` if that fails.
        """
        self._users[name] += 1
        try:
            async with self._locks.setdefault(name, asyncio.Lock()):
                if name not in self._names:
                    await self._unpack(name, parts)
        except BaseException:
            self._users[name] -= 1
            raise
        self._names[name] = self._names.pop(name, None)
        return self._top / name

    async def release(self, names: Iterable[str]) -> None:
        """Stop using folders, and remove those that nobody has used for the longest time."""
        self._users.subtract(names)
        unused = [name for name in self._names if self._users[name] <= 0]
        for name in unused[: max(0, len(unused) - self._max_unused)]:
            gone = self._top / f".gone-{secrets.token_hex(8)}"
            async with self._locks[name]:
                if self._users[name] > 0 or name not in self._names:
                    continue
                del self._names[name]
                await asyncio.to_thread((self._top / name).rename, gone)
            await remove_tree(gone)

    async def _unpack(self, name: str, parts: Sequence[Any]) -> None:
        if not parts:
            raise WorkspaceFailed(f"the node has no {name} any more")
        final = self._top.joinpath(*archive.split_path(name))
        temporary = self._top / f".new-{secrets.token_hex(8)}"
        try:
            await asyncio.to_thread(temporary.mkdir, parents=True)
            await asyncio.to_thread(set_owner, temporary, sandbox_uid())
            unpack = functools.partial(
                archive.unpack,
                root=temporary,
                owner=sandbox_uid(),
                max_bytes=(await asyncio.to_thread(shutil.disk_usage, temporary)).free,
            )
            async with archive.piped(unpack, reads=True) as pipe:
                for part in parts:
                    if not await asyncio.to_thread(pipe.write, await self._fetch(part)):
                        break
            await asyncio.to_thread(final.parent.mkdir, parents=True, exist_ok=True)
            await asyncio.to_thread(temporary.rename, final)
        except OSError as error:
            raise WorkspaceFailed(
                f"{name} cannot be unpacked on the node: {error.strerror or error}; is its disk "
                "full?"
            ) from error
        finally:
            with contextlib.suppress(FileNotFoundError):
                await remove_tree(temporary)
        self._names[name] = None
