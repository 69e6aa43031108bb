"""Runs another agent's program next to the workspace's files: carries its lines, and its requests
to the model server, over one socket. Runs inside the sandbox; standard library only.

Started as `python -c … FD`, where FD is the socket; the order is in the file `BLOCK`. The sandbox
has no network: the model server that the program sees is an HTTP server of this process, whose
requests are answered outside. The program's standard error is the command's output.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from moothall.sandbox_runtime.protocol import BLOCK, ProtocolError
from moothall.sandbox_runtime.socket_process import OutputLimitExceeded, Socket, read_lines

TYPE_CHECKING = False  # the real one is in `typing`, which costs start time
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    Message = dict[str, Any]

COMMAND = (
    "import sys; sys.path.insert(0, '/opt/moothall'); "
    "from moothall.sandbox_runtime.harness_process import main; main()"
)
_MAX_BODY_BYTES = 16_000_000
_MAX_BATCH_CHARS = 4_000_000
"""After so many characters, the other events wait for the next exchange."""
_MAX_DIGITS = 20
_EXIT_SECONDS = 2.0  # time for the program to exit after its input was closed
_PORT = "{port}"


class Relay:
    """Carries the messages of one program. Each exchange sends what happened since the last one."""

    def __init__(self, socket: Socket, order: Mapping[str, Any]) -> None:
        self._socket, self._order = socket, order
        self._events: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._replies: dict[int, queue.SimpleQueue[Message]] = {}
        self._numbers = iter(range(1, 1 << 62))
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_class(self))
        self._server.daemon_threads = True
        self._child: subprocess.Popen[bytes] | None = None

    def run(self) -> str:
        """Run the program until one side ends. Return why it ended by itself, or ''."""
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        try:
            child = self._child = self._start_program()
        except OSError as error:
            return f"{self._order['argv'][0]} cannot be run: {error.strerror}"
        threading.Thread(target=self._read_output, args=(child,), daemon=True).start()
        ended = self._exchange_messages(child)
        self._close_input(child)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_EXIT_SECONDS)
        return ended

    @staticmethod
    def _close_input(child: subprocess.Popen[bytes]) -> None:
        assert child.stdin  # noqa: S101 - a pipe, see `_start`
        with contextlib.suppress(OSError):
            child.stdin.close()

    def request(self, method: str, path: str, body: str) -> Message:
        """Have a request answered outside. Called by the threads of the HTTP server."""
        number = next(self._numbers)
        reply: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._replies[number] = reply
        self._events.put({"request": number, "method": method, "path": path, "body": body})
        return reply.get()

    def _start_program(self) -> subprocess.Popen[bytes]:
        port = str(self._server.server_address[1])
        argv = [word.replace(_PORT, port) for word in self._order["argv"]]
        variables = {
            name: value.replace(_PORT, port) for name, value in self._order["variables"].items()
        }
        # The operator chose the program: it is not looked for in the repository's environment.
        program = shutil.which(argv[0], path=self._order["path"])
        return subprocess.Popen(  # noqa: S603 - what this is for
            argv,
            executable=program or argv[0],
            env={**os.environ, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )

    def _read_output(self, child: subprocess.Popen[bytes]) -> None:
        assert child.stdout  # noqa: S101 - a pipe, see `_start`
        max_bytes = int(self._order["most"])
        try:
            for lines in read_lines(child.stdout.fileno(), max_bytes):
                for line in lines:
                    self._events.put({"line": line})
            ended = f"it ended with exit code {child.wait()}"
        except OutputLimitExceeded:
            ended = f"it sent more than {max_bytes} bytes"
        self._events.put({"ended": ended})

    def _exchange_messages(self, child: subprocess.Popen[bytes]) -> str:
        """Exchange messages until the other side has no more, or the program ends."""
        block = False  # the other side speaks first
        while True:
            batch, ended = self._next_events(block=block)
            try:
                response = self._socket.call("lines", {"lines": batch})
            except ProtocolError as error:
                return f"it sent too much at once: {error}"
            if ended or response.get("end"):
                return ended
            block = True
            for line in response["lines"]:
                message = json.loads(line)
                if "reply" in message:
                    self._replies.pop(message["reply"]).put(message)
                elif "line" in message:
                    self._write_line(child, message["line"])
                elif "close" in message:
                    self._close_input(child)
                else:
                    block = False

    def _next_events(self, *, block: bool) -> tuple[list[str], str]:
        """Return the next events as JSON, and why the program ended if that is one of them."""
        batch: list[str] = []
        chars, ended = 0, ""
        with contextlib.suppress(queue.Empty):
            while chars < _MAX_BATCH_CHARS and not ended:
                event = self._events.get(block=block and not batch)
                batch.append(json.dumps(event))
                chars, ended = chars + len(batch[-1]), str(event.get("ended", ""))
        return batch, ended

    def _write_line(self, child: subprocess.Popen[bytes], line: str) -> None:
        assert child.stdin  # noqa: S101 - a pipe, see `_start`
        with contextlib.suppress(OSError):  # the end is noticed when reading
            child.stdin.write(f"{line}\n".encode("utf-8", "replace"))


def _handler_class(relay: Relay) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer("")

        def do_POST(self) -> None:
            length = self.headers.get("Content-Length", "")
            if not length.isdecimal():
                self._refuse(411, "send the body with a Content-Length")
            elif len(length) > _MAX_DIGITS or int(length) > _MAX_BODY_BYTES:
                self._refuse(413, f"at most {_MAX_BODY_BYTES} bytes")
            else:
                self._answer(self.rfile.read(int(length)).decode("utf-8", "replace"))

        def _refuse(self, status: int, reason: str) -> None:
            self.close_connection = True  # the body is not read
            self.send_error(status, reason)

        def _answer(self, body: str) -> None:
            reply = relay.request(self.command, self.path, body)
            content = reply["content"].encode("utf-8", "replace")
            self.send_response(int(reply["status"]))
            self.send_header("Content-Type", reply["type"])
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_args: object) -> None:
            """Write no log: standard error is the program's."""

    return Handler


def main() -> None:
    """Carry messages until one side ends."""
    socket = Socket(int(sys.argv[1]))
    with open(BLOCK, encoding="utf-8") as file:  # noqa: PTH123 - pathlib costs start time
        order = json.load(file)
    os.unlink(BLOCK)  # noqa: PTH108 - as above
    socket.send({"ended": Relay(socket, order).run()})
    os._exit(0)  # threads may still wait for replies


if __name__ == "__main__":
    main()
