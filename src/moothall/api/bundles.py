"""Bundles: the packs of several roles as they were when a caller had them kept, so that a session
begins again with the same words.
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
_DEFAULT_SECONDS, _LONGEST_SECONDS = 3600, 7 * 86_400


class Bundles:
    """What each caller had kept, in the bucket BUCKET. `clock` gives seconds since 1970."""

    def __init__(self, bucket: Bucket, clock: Callable[[], float] = time.time) -> None:
        self._bucket = bucket
        self._clock = clock

    def now_ms(self) -> int:
        """Return milliseconds since 1970."""
        return int(self._clock() * 1000)

    async def keep(
        self, asked: pb.RehydrateSessionRequest, bundle: pb.RehydrateSessionResponse, who: Principal
    ) -> None:
        """Keep a bundle in the place of the one before, and say in it until when. Raises
        `InvalidRequest`, `BusUnavailable`.
        """
        seconds = asked.ttl_seconds or _DEFAULT_SECONDS
        if not 0 < seconds <= _LONGEST_SECONDS:
            raise InvalidRequest(
                f"ttl_seconds is {seconds}; allowed are 0 (the default, {_DEFAULT_SECONDS}) to "
                f"{_LONGEST_SECONDS}"
            )
        bundle.expires_at_ms = bundle.generated_at_ms + seconds * 1000
        await self._bucket.put(_key(asked, who), json_format.MessageToDict(bundle))

    async def find(
        self, asked: pb.RehydrateSessionRequest, who: Principal
    ) -> pb.RehydrateSessionResponse | None:
        """Return what the caller had kept of the same request; None where that was never so, or not
        for so long.
        """
        document = await self._bucket.get(_key(asked, who))
        bundle = (
            json_format.ParseDict(dict(document), pb.RehydrateSessionResponse())
            if document
            else None
        )
        return bundle if bundle is not None and bundle.expires_at_ms > self.now_ms() else None


def _key(asked: pb.RehydrateSessionRequest, who: Principal) -> str:
    """Another table of scopes asks anew: nobody is told what they may not know any more."""
    flags = (asked.include_timeline, asked.include_summaries, asked.timeline_events)
    roles = sorted({role.strip().lower() for role in asked.roles})
    parts = (who.name, asked.case_id, *roles, *map(str, flags), scopes().model_dump_json())
    return f"{who.tenant}.{digest(*parts)[:40]}"
