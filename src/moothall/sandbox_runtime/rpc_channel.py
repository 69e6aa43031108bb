"""What a command asks while it runs: carried from a socket of its own over ours, one question at a
time. Standard library only.
"""

from __future__ import annotations

import os
import time

from moothall.sandbox_runtime.protocol import FrameReader, ProtocolError, pack

TYPE_CHECKING = False  # the real one is in `typing`, which costs the executor start time
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Message = dict[str, Any]

BLOCK = "/tmp/moothall-block.json"  # noqa: S108 - inside the sandbox
_PART = 1 << 16


class RpcChannel:
    """One command's questions. `waited` are the seconds in which it had to wait for answers."""

    def __init__(self, say: Callable[[Message], None]) -> None:
        import socket  # costs start time, and few commands ask anything

        ours, theirs = socket.socketpair()
        self.ours, self.theirs = ours.detach(), theirs.detach()
        os.set_inheritable(self.theirs, True)
        self.end: Message | None = None
        self.waited = 0.0
        self._say = say
        self._frames = FrameReader()
        self._since = 0.0
        self._closed = False

    @property
    def waiting(self) -> bool:
        """Whether the command waits for an answer."""
        return self._since > 0

    @property
    def listening(self) -> bool:
        """Whether the command may say something now."""
        return not (self._closed or self.waiting)

    def hear(self) -> None:
        """Read what it said, and pass its question on."""
        try:
            data = os.read(self.ours, _PART)
            messages = self._frames.feed(data)
        except (OSError, ProtocolError):
            data, messages = b"", []
        if not data:
            self._closed = True
        for message in messages[:1]:  # it may not go on before it was answered
            if message.get("op") == "call":
                self._since = time.monotonic()
                self._say({"op": "call", "name": message.get("name"), "args": message.get("args")})
            else:
                self.end = message

    def answer(self, message: Message) -> None:
        """Give it the answer to its question."""
        self.waited += time.monotonic() - self._since
        self._since = 0.0
        data = memoryview(pack(message))
        try:
            while data:
                data = data[os.write(self.ours, data) :]
        except OSError:
            self._closed = True

    def close_theirs(self) -> None:
        """Leave its end to the command, which has begun."""
        os.close(self.theirs)

    def close(self) -> None:
        """Hear what it said last, and close our end."""
        os.set_blocking(self.ours, False)
        while self.listening:
            self.hear()
        os.close(self.ours)
