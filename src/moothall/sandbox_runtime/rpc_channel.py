"""The calls of a running command: carried from its own socket over the executor's, one at a time.
Standard library only.
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
_READ_BYTES = 1 << 16


class RpcChannel:
    """The calls of one command. `waited`: the seconds that it waited for answers."""

    def __init__(self, send: Callable[[Message], None]) -> None:
        import socket  # costs start time, and few commands ask anything

        own_socket, child_socket = socket.socketpair()
        self.own_fd, self.child_fd = own_socket.detach(), child_socket.detach()
        os.set_inheritable(self.child_fd, True)
        self.end: Message | None = None
        self.waited = 0.0
        self._send = send
        self._frames = FrameReader()
        self._since = 0.0
        self._closed = False

    @property
    def waiting(self) -> bool:
        """Whether the command waits for an answer."""
        return self._since > 0

    @property
    def listening(self) -> bool:
        """Whether the command may send a message now."""
        return not (self._closed or self.waiting)

    def receive(self) -> None:
        """Read the command's messages, and pass on its call."""
        try:
            data = os.read(self.own_fd, _READ_BYTES)
            messages = self._frames.feed(data)
        except (OSError, ProtocolError):
            data, messages = b"", []
        if not data:
            self._closed = True
        for message in messages[:1]:  # the command must wait for the answer
            if message.get("op") == "call":
                self._since = time.monotonic()
                self._send({"op": "call", "name": message.get("name"), "args": message.get("args")})
            else:
                self.end = message

    def answer(self, message: Message) -> None:
        """Send the answer of a call to the command."""
        self.waited += time.monotonic() - self._since
        self._since = 0.0
        data = memoryview(pack(message))
        try:
            while data:
                data = data[os.write(self.own_fd, data) :]
        except OSError:
            self._closed = True

    def close_child_end(self) -> None:
        """Close the command's end in this process, after the command has started."""
        os.close(self.child_fd)

    def close(self) -> None:
        """Read the last message, and close the own end."""
        os.set_blocking(self.own_fd, False)
        while self.listening:
            self.receive()
        os.close(self.own_fd)
