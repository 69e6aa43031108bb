"""Processes next to the workspace's files that talk over one socket: a block of Python under
CPython, with tool calls, and a program, whose lines are carried. They run inside the sandbox;
standard library only.

Started as `python -c … FD`, where FD is the socket; the order is in the file `BLOCK`. What the
block prints, or the program's standard error, is the command's output.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import sys
import traceback
import types

from moothall.sandbox_runtime.protocol import BLOCK, FrameReader, pack
from moothall.sandbox_runtime.tool_proxy import ToolError, ToolProxy, plain

TYPE_CHECKING = False  # the real one is in `typing`, which costs start time

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Message = dict[str, Any]
    from collections.abc import Iterator


BLOCK_COMMAND = (
    "import sys; sys.path.insert(0, '/opt/moothall'); from moothall.sandbox_runtime.socket_process "
    "import run_block; run_block()"
)


class Socket:
    """The child's end of the socket."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._frames = FrameReader()

    def send(self, message: Message) -> None:
        """Send a message."""
        data = memoryview(pack(message))
        while data:
            data = data[os.write(self._descriptor, data) :]

    def call(self, name: str, arguments: Message) -> Message:
        """Send a tool call, and wait for the response."""
        self.send({"op": "call", "name": name, "args": arguments})
        while data := os.read(self._descriptor, 1 << 20):
            if messages := self._frames.feed(data):
                return messages[0]
        sys.exit(1)


def _tool_group(proxy: ToolProxy, group: str) -> types.SimpleNamespace:
    def method(name: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: proxy.call(group, name, args, kwargs)

    return types.SimpleNamespace(**{name: method(name) for name in proxy.names(group)})


def _evaluate(code: str, namespace: Message) -> Any:
    tree = ast.parse(code, "<block>")
    last_statement = tree.body[-1] if tree.body else None
    value = ast.Expression(last_statement.value) if isinstance(last_statement, ast.Expr) else None
    if value is not None:
        del tree.body[-1]
    exec(compile(tree, "<block>", "exec"), namespace)  # noqa: S102 - what this is for, inside a sandbox
    return eval(compile(value, "<block>", "eval"), namespace) if value is not None else None  # noqa: S307 - as above


def run_block() -> None:
    """Run the block and report its result."""
    sys.path.remove("/opt/moothall")
    socket = Socket(int(sys.argv[1]))
    sys.argv = [""]
    with open(BLOCK, encoding="utf-8") as file:  # noqa: PTH123 - pathlib costs start time
        order = json.load(file)
    os.unlink(BLOCK)  # noqa: PTH108 - as above
    proxy = ToolProxy(order["tools"], socket.call, agents=order["agents"])
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    namespace = module.__dict__
    namespace.update(order["inputs"])
    namespace.update(
        {group: _tool_group(proxy, group) for group in proxy.groups}, ToolError=ToolError
    )
    try:
        result: Message = {"status": "success", "value": plain(_evaluate(order["code"], namespace))}
    except MemoryError:
        result = {"status": "memory", "error": "MemoryError"}
    except SystemExit as exit_error:
        result = {
            "status": "error" if exit_error.code else "success",
            "error": f"it ended with sys.exit({exit_error.code!r})",
        }
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is how the block ended
        own_traceback = None if isinstance(error, SyntaxError) else _own_traceback(error)
        result = {
            "status": "error",
            "error": "".join(traceback.format_exception(type(error), error, own_traceback)),
        }
    sys.stdout.flush()
    socket.send({"op": "end", **result})
    os._exit(0)


def _own_traceback(error: BaseException) -> Any:
    """Return the block's own part of a traceback."""
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename != "<block>":
        frame = frame.tb_next
    return frame


# A program whose lines are carried.


PROGRAM_COMMAND = (
    "import sys; sys.path.insert(0, '/opt/moothall'); from moothall.sandbox_runtime.socket_process "
    "import run_program; run_program()"
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
        complete, separator, remainder = data.rpartition(b"\n")
        if separator:
            yield b"".join((*partial, complete)).decode("utf-8", "replace").split("\n")
            partial = []
        partial.append(remainder)


def run_program() -> None:
    """Carry lines until one side ends."""
    import subprocess  # costs start time

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
