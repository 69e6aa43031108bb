"""The protocol between a workspace's trusted side and its executor: length-prefixed JSON over
one socket. The calls of a running command: carried from its own socket over the executor's,
one at a time.
"""

from __future__ import annotations

import json
import os
import time

TYPE_CHECKING = False  # the real one is in `typing`, which costs the executor start time

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Message = dict[str, Any]


# The protocol between a workspace's trusted side and its executor: length-prefixed JSON over one
# socket.
#
# A request is `{"id", "op", …}`, a response `{"id", "status", …}`; the executor's first message has
# id 0. Both sides limit what they read: a frame that is too long, has too many parts or is not a
# JSON object is a `ProtocolError`. Standard library only: the executor imports it.


HEADER_BYTES = 4
MAX_FRAME = 64_000_000
MAX_PARTS = 4_000_000
"""The maximum number of lists and objects of a message. Parsed, they take a dozen times their size
in the message.
"""


class ProtocolError(Exception):
    """The peer violated the protocol."""


def pack_path(path: str) -> str:
    """Return a path in a form that JSON can hold, whatever its bytes."""
    return os.fsencode(path).decode("latin-1")


def unpack_path(packed: str) -> str:
    """Return the path of `pack_path`. Raises `ValueError`."""
    return os.fsdecode(packed.encode("latin-1"))


def pack(message: dict[str, Any]) -> bytes:
    """Return a message as bytes. Raises `ProtocolError` if it is too long."""
    body = json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode(
        "utf-8", "surrogatepass"
    )
    if len(body) > MAX_FRAME:
        raise ProtocolError(f"a message of {len(body)} bytes; at most {MAX_FRAME} are read")
    return len(body).to_bytes(HEADER_BYTES, "big") + body


class FrameReader:
    """Parses a stream of bytes into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Return the messages that `data` completes. Raises `ProtocolError`."""
        self._buffer += data
        messages: list[dict[str, Any]] = []
        while len(self._buffer) >= HEADER_BYTES:
            length = int.from_bytes(self._buffer[:HEADER_BYTES], "big")
            if length > MAX_FRAME:
                raise ProtocolError(f"a message of {length} bytes; at most {MAX_FRAME} are read")
            if len(self._buffer) < HEADER_BYTES + length:
                break
            body = bytes(self._buffer[HEADER_BYTES : HEADER_BYTES + length])
            del self._buffer[: HEADER_BYTES + length]
            if length > MAX_PARTS and body.count(b"[") + body.count(b"{") > MAX_PARTS:
                raise ProtocolError(f"a message of more than {MAX_PARTS} parts")
            try:
                message = json.loads(body.decode("utf-8", "replace"))
            except (ValueError, RecursionError) as error:
                raise ProtocolError(f"not JSON: {error}") from error
            if not isinstance(message, dict):
                raise ProtocolError(f"a {type(message).__name__} where an object belongs")
            messages.append(message)
        return messages


# The calls of a running command: carried from its own socket over the executor's, one at a time.
# Standard library only.


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
