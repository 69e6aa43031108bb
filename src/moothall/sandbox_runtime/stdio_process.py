"""A program among the workspace's files that is talked to line by line: its lines are carried over
one socket. Runs inside; standard library only.

Started as `python -c … FD`, where FD is the socket; what to run lies in `BLOCK`. What the program
says on standard error is the command's output.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys

from moothall.sandbox_runtime.cpython_runner import Socket
from moothall.sandbox_runtime.rpc_channel import BLOCK

TYPE_CHECKING = False  # the real one is in `typing`, which costs start time
if TYPE_CHECKING:
    from collections.abc import Iterator

COMMAND = (
    "import sys; sys.path.insert(0, '/opt/moothall'); from moothall.sandbox_runtime.stdio_process "
    "import main; main()"
)
_PART = 1 << 16
_LEAVING = 2.0  # seconds that a program has to end by itself when nobody talks to it any more


class OutputLimitExceeded(Exception):
    """The program printed more than it may."""


def lines_of(descriptor: int, most: int) -> Iterator[list[str]]:
    """Yield the lines that have come, as soon as there is one, until the end. Raises
    `OutputLimitExceeded`
    after `most` bytes.
    """
    held: list[bytes] = []
    while data := os.read(descriptor, _PART):
        most -= len(data)
        if most < 0:
            raise OutputLimitExceeded
        whole, end, rest = data.rpartition(b"\n")
        if end:
            yield b"".join((*held, whole)).decode("utf-8", "replace").split("\n")
            held = []
        held.append(rest)


def main() -> None:
    """Carry lines until one side has ended."""
    socket = Socket(int(sys.argv[1]))
    with open(BLOCK, encoding="utf-8") as file:  # noqa: PTH123 - pathlib costs start time
        order = json.load(file)
    os.unlink(BLOCK)  # noqa: PTH108 - as above
    try:
        child = subprocess.Popen(  # noqa: S603 - what this is for
            order["argv"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
    except OSError as error:
        socket.say({"ended": f"{order['argv'][0]} cannot be run: {error.strerror}"})
        return
    assert child.stdin  # noqa: S101 - pipes, as was said
    assert child.stdout  # noqa: S101 - as above
    coming = lines_of(child.stdout.fileno(), int(order["most"]))
    lines: list[str] = []
    try:
        while not (told := socket.ask("lines", {"lines": lines})).get("end"):
            with contextlib.suppress(BrokenPipeError):  # its end is heard where it is read
                child.stdin.write(
                    "".join(f"{line}\n" for line in told["lines"]).encode("utf-8", "replace")
                )
            lines = next(coming, [])
            if not lines:
                socket.say({"ended": f"it ended with exit code {child.wait()}"})
                return
    except OutputLimitExceeded:
        socket.say({"ended": f"it sent more than {order['most']} bytes"})
        return
    child.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_LEAVING)
    socket.say({"ended": ""})


if __name__ == "__main__":
    main()
