"""Partial replies: what a model is writing, published to current observers and stored nowhere."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

from moothall import telemetry
from moothall.deliberation.prompts.reply import answer_so_far
from moothall.domain.chat import Writing
from moothall.errors import Temporary

log = telemetry.get_logger(__name__)

PublishPartial = Callable[[Writing], Awaitable[None]]
"""Publishes a partial reply of a seat. The message may be lost."""
_PUBLISH_INTERVAL_SECONDS = 0.5
_REPEAT_AFTER_INTERVALS = 4  # without new text
_MAX_PARTIAL_CHARS = 2_000
_PRIVATE_KEY_HEADER = "-----BEGIN "


class StreamedReply:
    """The partial reply of one call.

    Published text ends with a whole word, so that no part of a secret is shown before the whole is
    recognised. A key in lines of its own is held back until it is complete.
    """

    def __init__(
        self,
        seat: str,
        publish_partial: PublishPartial,
        clean: Callable[[str], str],
        interval_seconds: float = _PUBLISH_INTERVAL_SECONDS,
    ) -> None:
        self._seat = seat
        self._publish_partial = publish_partial
        self._clean = clean
        self._interval_seconds = interval_seconds
        self._pieces: list[str] = []
        self._published_pieces = 0

    def add(self, piece: str) -> None:
        """Add the next piece."""
        self._pieces.append(piece)

    async def publish_periodically(self) -> None:
        """Publish the text at an interval until cancelled; stop if publishing fails."""
        idle = 0
        try:
            while True:
                await asyncio.sleep(self._interval_seconds)
                idle += 1
                has_new_text = len(self._pieces) > self._published_pieces
                # Text that stays the same is repeated for new observers.
                is_repeat_due = self._published_pieces > 0 and idle >= _REPEAT_AFTER_INTERVALS
                if has_new_text or is_repeat_due:
                    self._published_pieces, idle = len(self._pieces), 0
                    await self._publish_partial(self.writing)
        except Temporary as error:
            log.debug("what a seat writes is not shown", seat=self._seat, reason=error.message)

    async def publish_end(self) -> None:
        """Publish that the reply is complete, if any of it was published."""
        if self._published_pieces:
            try:
                await self._publish_partial(Writing(self._seat, ""))
            except Temporary as error:
                log.debug(
                    "what a seat wrote is not taken back", seat=self._seat, reason=error.message
                )

    @property
    def writing(self) -> Writing:
        """The text so far, without secrets."""
        whole = re.sub(r"\S+\Z", "", "".join(self._pieces))
        key_start = whole.rfind(_PRIVATE_KEY_HEADER)
        if key_start >= 0 and "-----END " not in whole[key_start:]:
            whole = whole[:key_start]
        clean = self._clean(whole)
        return Writing(self._seat, clean[-_MAX_PARTIAL_CHARS:], answer_so_far(clean))
