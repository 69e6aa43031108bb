"""Runs a program next to the workspace's files and carries its lines over one socket. Runs inside
the sandbox; standard library only.

Started as `python -c … FD`, where FD is the socket; the order is in the file `BLOCK`. The program's
standard error is the command's output.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys

from moothall.sandbox_runtime.cpython_runner import Socket
from moothall.sandbox_runtime.protocol import BLOCK

TYPE_CHECKING = False  # the real one is in `typing`, which costs start time
if TYPE_CHECKING:
    from collections.abc import Iterator

COMMAND = (
    "import sys; sys.path.insert(0, '/opt/moothall'); from moothall.sandbox_runtime.stdio_process "
    "import main; main()"
)
_READ_BYTES = 1 << 16
_EXIT_SECONDS = 2.0  # time for the program to exit after its input was closed


class OutputLimitExceeded(Exception):
    """The program printed more than allowed."""


def read_lines(descriptor: int, max_bytes: int) -> Iterator[list[str]]:
    """Yield new lines as soon as there are any, until the end. Raises `OutputLimitExceeded` after
    `max_bytes` bytes.
    """
    partial: list[bytes] = []
    while data := os.read(descriptor, _READ_BYTES):
        max_bytes -= len(data)
        if max_bytes < 0:
            raise OutputLimitExceeded
        complete, end, remainder = data.rpartition(b"\n")
        if end:
            yield b"".join((*partial, complete)).decode("utf-8", "replace").split("\n")
            partial = []
        partial.append(remainder)


def main() -> None:
    """Carry lines until one side ends."""
    socket = Socket(int(sys.argv[1]))
    with open(BLOCK, encoding="utf-8") as file:  # noqa: PTH123 - pathlib costs start time
        order = json.load(file)
    os.unlink(BLOCK)  # noqa: PTH108 - as above
    try:
        child = subprocess.Popen(  # noqa: S603 - what this is for
            order["argv"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
    except OSError as error:
        socket.send({"ended": f"{order['argv'][0]} cannot be run: {error.strerror}"})
        return
    assert child.stdin  # noqa: S101 - pipes, see above
    assert child.stdout  # noqa: S101 - as above
    output_lines = read_lines(child.stdout.fileno(), int(order["most"]))
    lines: list[str] = []
    try:
        while not (response := socket.call("lines", {"lines": lines})).get("end"):
            with contextlib.suppress(BrokenPipeError):  # the end is noticed when reading
                child.stdin.write(
                    "".join(f"{line}\n" for line in response["lines"]).encode("utf-8", "replace")
                )
            lines = next(output_lines, [])
            if not lines:
                socket.send({"ended": f"it ended with exit code {child.wait()}"})
                return
    except OutputLimitExceeded:
        socket.send({"ended": f"it sent more than {order['most']} bytes"})
        return
    child.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_EXIT_SECONDS)
    socket.send({"ended": ""})


if __name__ == "__main__":
    main()
