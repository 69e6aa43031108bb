"""Stored bundles: the briefings of several roles, so that a session can start again with the same
text.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from google.protobuf import json_format

from moothall.domain.identity import Principal
from moothall.domain.ids import digest
from moothall.errors import InvalidRequest
from moothall.pb.context.v1 import context_pb2 as pb
from moothall.ports import Bucket
from moothall.stories.scopes import scopes

BUCKET = "bundles"
_DEFAULT_SECONDS, _MAX_SECONDS = 3600, 7 * 86_400


class Bundles:
    """The stored bundles of all callers, in the bucket BUCKET. `clock` returns seconds
    since 1970.
    """

    def __init__(self, bucket: Bucket, clock: Callable[[], float] = time.time) -> None:
        self._bucket = bucket
        self._clock = clock

    def now_ms(self) -> int:
        """Return milliseconds since 1970."""
        return int(self._clock() * 1000)

    async def store(
        self,
        request: pb.RehydrateSessionRequest,
        bundle: pb.RehydrateSessionResponse,
        who: Principal,
    ) -> None:
        """Store a bundle in place of an earlier one, and set its expiry. Raises `InvalidRequest`,
        `BusUnavailable`.
        """
        seconds = request.ttl_seconds or _DEFAULT_SECONDS
        if not 0 < seconds <= _MAX_SECONDS:
            raise InvalidRequest(
                f"ttl_seconds is {seconds}; allowed are 0 (the default, {_DEFAULT_SECONDS}) to "
                f"{_MAX_SECONDS}"
            )
        bundle.expires_at_ms = bundle.generated_at_ms + seconds * 1000
        await self._bucket.put(_key(request, who), json_format.MessageToDict(bundle))

    async def find(
        self, request: pb.RehydrateSessionRequest, who: Principal
    ) -> pb.RehydrateSessionResponse | None:
        """Return the caller's bundle for the same request; None if it is missing or expired."""
        document = await self._bucket.get(_key(request, who))
        bundle = (
            json_format.ParseDict(dict(document), pb.RehydrateSessionResponse())
            if document
            else None
        )
        return bundle if bundle is not None and bundle.expires_at_ms > self.now_ms() else None


def _key(request: pb.RehydrateSessionRequest, who: Principal) -> str:
    """Return the key of a request. It includes the table of scopes: after a change, nobody gets a
    bundle with more than they may see now.
    """
    flags = (request.include_timeline, request.include_summaries, request.timeline_events)
    roles = sorted({role.strip().lower() for role in request.roles})
    parts = (who.name, request.case_id, *roles, *map(str, flags), scopes().model_dump_json())
    return f"{who.tenant}.{digest(*parts)[:40]}"
