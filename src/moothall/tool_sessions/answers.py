"""What requests came to, by their ids: a request that comes twice runs once."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from moothall.errors import AlreadyExists

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

GONE = "this was answered before, and its output is no longer kept"


class Answers(Generic[K, T]):
    """Beyond `most_bytes` together, by `size`, the oldest answers are made `slim`; beyond `most` of
    them, they are forgotten.

    Belongs to one event loop.
    """

    def __init__(
        self, most_bytes: int, most: int, *, size: Callable[[T], int], slim: Callable[[T], T]
    ) -> None:
        self._most_bytes, self._most = most_bytes, most
        self._size, self._slim = size, slim
        self._kept: OrderedDict[K, tuple[str, asyncio.Future[T]]] = OrderedDict()
        self._sizes: OrderedDict[K, int] = OrderedDict()
        self._bytes = 0

    async def find(self, key: K, digest: str, check: Callable[[], None] = lambda: None) -> T | None:
        """Return what this very request came to, once it has; None where it is to be made now.
        `check` raises where who asks may not hear it. Raises `AlreadyExists` where the key was used
        for a request of another digest.
        """
        while (known := self._kept.get(key)) is not None:
            if known[0] != digest:
                raise AlreadyExists("the id was used for another request")
            check()
            await asyncio.wait({known[1]})
            if not known[
                1
            ].cancelled():  # else it died with who asked first, and is made for who asks now
                return known[1].result()
        return None

    def begin(self, key: K, digest: str) -> asyncio.Future[T]:
        """Note that a request is made; what comes of it goes to `settle` or `fail`."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._kept[key] = (digest, answer)
        return answer

    def settle(self, key: K, answer: asyncio.Future[T], result: T) -> None:
        """Keep what came of a request."""
        answer.set_result(result)
        self._drop_size(key)
        self._sizes[key] = self._size(result)
        self._bytes += self._sizes[key]
        while self._bytes > self._most_bytes and len(self._sizes) > 1:
            self._make_slim(next(iter(self._sizes)))
        while len(self._kept) > self._most and next(iter(self._kept.values()))[1].done():
            oldest, _ = self._kept.popitem(last=False)
            self._drop_size(oldest)

    def fail(self, key: K, answer: asyncio.Future[T], error: BaseException) -> None:
        """Forget a request that came to nothing, and tell those who wait for it."""
        self.forget(key)
        if isinstance(error, asyncio.CancelledError):
            answer.cancel()
        else:
            answer.set_exception(error)
            answer.exception()  # nobody may be waiting

    def forget(self, key: K) -> None:
        """Let a request be made again."""
        self._kept.pop(key, None)
        self._drop_size(key)

    def _make_slim(self, key: K) -> None:
        self._drop_size(key)
        known = self._kept.get(key)
        if known is None:
            return
        slim: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        slim.set_result(self._slim(known[1].result()))
        self._kept[key] = (known[0], slim)

    def _drop_size(self, key: K) -> None:
        self._bytes -= self._sizes.pop(key, 0)
