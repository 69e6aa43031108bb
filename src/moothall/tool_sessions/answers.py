"""Results of requests by their ids, so that a repeated request runs once."""

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
    """A store of results. Above `max_bytes` in total (by `size`), the oldest results are reduced
    with `slim`. Above `max_answers`, the oldest are forgotten.

    Belongs to one event loop.
    """

    def __init__(
        self, max_bytes: int, max_answers: int, *, size: Callable[[T], int], slim: Callable[[T], T]
    ) -> None:
        self._max_bytes, self._max_answers = max_bytes, max_answers
        self._size, self._slim = size, slim
        self._answers: OrderedDict[K, tuple[str, asyncio.Future[T]]] = OrderedDict()
        self._sizes: OrderedDict[K, int] = OrderedDict()
        self._bytes = 0

    async def find(self, key: K, digest: str, check: Callable[[], None] = lambda: None) -> T | None:
        """Return the result of this request, after waiting for it if it is running. Return None if
        the caller has to run it now. `check` raises if the caller may not see the result. Raises
        `AlreadyExists` if the key was used for a request with another digest.
        """
        while (known := self._answers.get(key)) is not None:
            if known[0] != digest:
                raise AlreadyExists("the id was used for another request")
            check()
            await asyncio.wait({known[1]})
            # A request that was cancelled with its first caller runs again.
            if not known[1].cancelled():
                return known[1].result()
        return None

    def begin(self, key: K, digest: str) -> asyncio.Future[T]:
        """Note that a request runs. Pass its result to `settle` or its error to `fail`."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._answers[key] = (digest, answer)
        return answer

    def settle(self, key: K, answer: asyncio.Future[T], result: T) -> None:
        """Store the result of a request."""
        answer.set_result(result)
        self._drop_size(key)
        self._sizes[key] = self._size(result)
        self._bytes += self._sizes[key]
        while self._bytes > self._max_bytes and len(self._sizes) > 1:
            self._reduce(next(iter(self._sizes)))
        while (
            len(self._answers) > self._max_answers and next(iter(self._answers.values()))[1].done()
        ):
            oldest, _ = self._answers.popitem(last=False)
            self._drop_size(oldest)

    def fail(self, key: K, answer: asyncio.Future[T], error: BaseException) -> None:
        """Forget a request that failed, and raise its error in all who wait for it."""
        self.forget(key)
        if isinstance(error, asyncio.CancelledError):
            answer.cancel()
        else:
            answer.set_exception(error)
            answer.exception()  # nobody may be waiting

    def forget(self, key: K) -> None:
        """Forget a request, so that it can run again."""
        self._answers.pop(key, None)
        self._drop_size(key)

    def _reduce(self, key: K) -> None:
        self._drop_size(key)
        known = self._answers.get(key)
        if known is None:
            return
        slim: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        slim.set_result(self._slim(known[1].result()))
        self._answers[key] = (known[0], slim)

    def _drop_size(self, key: K) -> None:
        self._bytes -= self._sizes.pop(key, 0)
