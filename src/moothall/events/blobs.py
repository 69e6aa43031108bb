"""Large values travel beside the message: stored once by sha256, referred to by `{"$blob": sha256,
"bytes": n}`.

Data that looks like a reference by itself (a model can write anything) is wrapped as `{"$data":
…}`,
so that nobody can smuggle in a reference to what isn't theirs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from moothall.errors import InvalidRequest, Permanent
from moothall.events.codec import dump_json, load_json

_REFERENCE, _PLAIN = "$blob", "$data"
_SHA256_CHARS = 64


Put = Callable[[str, bytes], Awaitable[None]]
"""Stores bytes under their sha256; a repeat changes nothing."""
Get = Callable[[str], Awaitable[bytes]]
"""Returns the bytes of a sha256. Raises `NotFound`."""


async def _store(put: Put, content: bytes, *, kind: str) -> dict[str, Any]:
    sha256 = hashlib.sha256(content).hexdigest()
    await put(sha256, content)
    return {_REFERENCE: sha256, "bytes": len(content), **({"kind": kind} if kind != "text" else {})}


async def _walk(put: Put, value: Any, limit: int) -> Any:
    if isinstance(value, str):
        # A character is one byte at least and four at most: most strings need not be encoded to be
        # measured.
        if len(value) * 4 <= limit:
            return value
        content = value.encode("utf-8", "replace")
        return value if len(content) <= limit else await _store(put, content, kind="text")
    if isinstance(value, Mapping):
        walked = {key: await _walk(put, item, limit) for key, item in value.items()}
        return {_PLAIN: walked} if _REFERENCE in walked or _PLAIN in walked else walked
    if isinstance(value, list | tuple):
        return [await _walk(put, item, limit) for item in value]
    return value


async def offload(put: Put, data: Mapping[str, Any], limit: int) -> Mapping[str, Any]:
    """Return `data` with strings over `limit` bytes replaced by references, and itself one
    reference if it's still over.
    """
    raw = dump_json(data)
    if len(raw) <= limit and b'"$' not in raw:
        return data
    small: Mapping[str, Any] = await _walk(put, data, limit)
    whole = dump_json(small)
    return small if len(whole) <= limit else await _store(put, whole, kind="json")


async def _fetch(get: Get, reference: Mapping[str, Any]) -> Any:
    sha256 = reference[_REFERENCE]
    if not isinstance(sha256, str) or len(sha256) != _SHA256_CHARS or not sha256.isalnum():
        raise InvalidRequest(f"{str(sha256)[:80]!r} is not the sha256 of a stored value")
    content = await get(sha256)
    if hashlib.sha256(content).hexdigest() != sha256:
        raise Permanent(f"the stored value {sha256} is damaged: its content has another sha256")
    if reference.get("kind", "text") == "json":
        return await restore(get, load_json(content))
    return content.decode("utf-8", "replace")


async def restore(get: Get, data: Any) -> Any:
    """Return data with its references resolved. Raises `NotFound` where a stored value is gone."""
    if isinstance(data, Mapping):
        if _REFERENCE in data:
            return await _fetch(get, data)
        if set(data) == {_PLAIN} and isinstance(data[_PLAIN], Mapping):
            return {key: await restore(get, item) for key, item in data[_PLAIN].items()}
        return {key: await restore(get, item) for key, item in data.items()}
    if isinstance(data, list):
        return [await restore(get, item) for item in data]
    return data


def references(data: Any) -> frozenset[str]:
    """Return the sha256 of every stored value that data (as on the wire) refers to by itself."""
    if isinstance(data, Mapping):
        own = {data[_REFERENCE]} if isinstance(data.get(_REFERENCE), str) else set()
        inner = (
            data[_PLAIN] if set(data) == {_PLAIN} and isinstance(data[_PLAIN], Mapping) else data
        )
        return frozenset(own).union(*(references(item) for item in inner.values()))
    if isinstance(data, list):
        return frozenset().union(*(references(item) for item in data))
    return frozenset()
