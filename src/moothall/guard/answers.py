"""What the requests of a workspace came to, by request id: a request that comes twice runs once."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import replace

from moothall.domain.tool import ToolResult

_MOST = 2000
_GONE = "this was answered before, and its output is no longer kept"


class Answers:
    """Beyond `most_bytes` together, the oldest results lose their output; beyond a number, they are forgotten."""

    def __init__(self, most_bytes: int, most: int = _MOST) -> None:
        self._most_bytes, self._most = most_bytes, most
        self._kept: OrderedDict[str, tuple[str, asyncio.Future[ToolResult]]] = OrderedDict()
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._bytes = 0

    def find(self, request_id: str) -> tuple[str, asyncio.Future[ToolResult]] | None:
        """Return the digest of the request that has this id, and what it comes to."""
        return self._kept.get(request_id)

    def begin(self, request_id: str, digest: str) -> asyncio.Future[ToolResult]:
        """Note that a request is made; return what its result is to be put in by `settle` or `fail`."""
        answer: asyncio.Future[ToolResult] = asyncio.get_running_loop().create_future()
        self._kept[request_id] = (digest, answer)
        return answer

    def settle(self, answer: asyncio.Future[ToolResult], result: ToolResult) -> None:
        """Keep a result."""
        answer.set_result(result)
        name = result.request_id
        self._drop_size(name)
        self._sizes[name] = len(repr(result.output)) + len(result.error)
        self._bytes += self._sizes[name]
        while self._bytes > self._most_bytes and len(self._sizes) > 1:
            self._slim(next(iter(self._sizes)))
        while len(self._kept) > self._most and next(iter(self._kept.values()))[1].done():
            oldest, _ = self._kept.popitem(last=False)
            self._drop_size(oldest)

    def fail(self, request_id: str, answer: asyncio.Future[ToolResult], error: BaseException) -> None:
        """Forget a request that came to nothing, and tell those who wait for it."""
        self.forget(request_id)
        if isinstance(error, asyncio.CancelledError):
            answer.cancel()
        else:
            answer.set_exception(error)
            answer.exception()  # nobody may be waiting

    def forget(self, request_id: str) -> None:
        """Let a request be made again."""
        self._kept.pop(request_id, None)
        self._drop_size(request_id)

    def _slim(self, request_id: str) -> None:
        self._drop_size(request_id)
        known = self._kept.get(request_id)
        if known is None:
            return
        slim: asyncio.Future[ToolResult] = asyncio.get_running_loop().create_future()
        slim.set_result(replace(known[1].result(), output={}, error=_GONE))
        self._kept[request_id] = (known[0], slim)

    def _drop_size(self, request_id: str) -> None:
        self._bytes -= self._sizes.pop(request_id, 0)
