"""The hidden tests of a caller: checked, and stored apart from the events, which seats and other
callers may read.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping

from moothall.domain.ids import digest
from moothall.domain.task import Deliberation
from moothall.errors import InvalidRequest, NotFound
from moothall.ports import Bucket

_MAX_FILES, _MAX_BYTES = 500, 3_000_000


def check_hidden(tests: Mapping[str, str], deliberation: Deliberation) -> Mapping[str, str]:
    """Return the hidden tests of a request. Raises `InvalidRequest`."""
    if deliberation.base_sha is None:
        raise InvalidRequest(
            "hidden tests need a repository to run in; leave them out of a task about text"
        )
    size = sum(len(text.encode(errors="replace")) for text in tests.values())
    if len(tests) > _MAX_FILES or size > _MAX_BYTES:
        raise InvalidRequest(
            f"{len(tests)} hidden tests of {size} bytes; at most {_MAX_FILES} files of "
            f"{_MAX_BYTES} bytes together"
        )
    for path in tests:
        parts = path.split("/")
        if (
            not path.isprintable()
            or not {"", ".", ".."}.isdisjoint(parts)
            or ".git" in map(str.lower, parts)
        ):
            raise InvalidRequest(
                f"{path[:200]!r} is no path of a hidden test: a relative one without '..', such as "
                "tests/test_x.py"
            )
    return tests


async def store_hidden(bucket: Bucket, tests: Mapping[str, str], tenant: str) -> str:
    """Store tests and return their key. The texts are compressed, because stored text is scrubbed
    of apparent secrets.
    """
    packed = {
        path: base64.b64encode(zlib.compress(text.encode())).decode()
        for path, text in tests.items()
    }
    key = f"{tenant}.{digest(*(part for item in sorted(tests.items()) for part in item))[:40]}"
    await bucket.put(key, {"tests": packed})
    return key


async def fetch_hidden(bucket: Bucket, key: str) -> Mapping[str, str]:
    """Return the tests under a key; {} for an empty key. Raises `NotFound` if they are no longer
    stored.
    """
    if not key:
        return {}
    document = await bucket.get(key)
    packed = document.get("tests") if document else None
    if not isinstance(packed, Mapping):
        raise NotFound(
            "the hidden tests of this deliberation are not stored any more; ask for it again with "
            "--hidden-tests"
        )
    return {path: zlib.decompress(base64.b64decode(text)).decode() for path, text in packed.items()}
