"""What a model writes while it writes it: for whoever looks just then, and kept nowhere."""

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
"""Tells what a seat is writing. Such a hint may be lost."""
_PUBLISH_INTERVAL_SECONDS = 0.5  # seconds
_REPEAT_AFTER_INTERVALS = 4  # times that nothing is told of what stays the same
_MAX_PARTIAL_CHARS = 2_000  # characters
_PRIVATE_KEY_HEADER = "-----BEGIN "


class StreamedReply:
    """The answer of one call as it grows. What is told of it ends with a whole word, so that no
    beginning of a secret is shown whose end would have been known; a key in lines of its own is
    held back until all of it is there.
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
        """Take the next piece."""
        self._pieces.append(piece)

    async def publish_periodically(self) -> None:
        """Tell it every so often until cancelled; where nobody can be told, the work goes on
        without.
        """
        idle = 0
        try:
            while True:
                await asyncio.sleep(self._interval_seconds)
                idle += 1
                if len(self._pieces) > self._published_pieces or (
                    self._published_pieces and idle >= _REPEAT_AFTER_INTERVALS
                ):  # who begins to look hears it too
                    self._published_pieces, idle = len(self._pieces), 0
                    await self._publish_partial(self.writing)
        except Temporary as error:
            log.debug("what a seat writes is not shown", seat=self._seat, reason=error.message)

    async def publish_end(self) -> None:
        """Say that it is written, if any of it was told."""
        if self._published_pieces:
            try:
                await self._publish_partial(Writing(self._seat, ""))
            except Temporary as error:
                log.debug(
                    "what a seat wrote is not taken back", seat=self._seat, reason=error.message
                )

    @property
    def writing(self) -> Writing:
        """What there is, without secrets."""
        whole = re.sub(r"\S+\Z", "", "".join(self._pieces))
        begun = whole.rfind(_PRIVATE_KEY_HEADER)
        if begun >= 0 and "-----END " not in whole[begun:]:
            whole = whole[:begun]
        clean = self._clean(whole)
        return Writing(self._seat, clean[-_MAX_PARTIAL_CHARS:], answer_so_far(clean))
