"""The process in a runner's box: blocks of Python in a Monty worker, one after another. Trusted by
nobody.

Started as the executor is, with one inherited socket and nothing else: no network, no workspace, no
file of ours but the interpreter. Each block has a session of its own. The worker's limits end what
runs too long or grows too large; whatever gets past them is ended from outside, with this process.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import signal
import sys
import time

from moothall.sandbox_runtime.confinement import shut_in
from moothall.sandbox_runtime.processes import others
from moothall.sandbox_runtime.protocol import FrameReader, ProtocolError, pack
from moothall.sandbox_runtime.tool_proxy import ToolError, ToolProxy, plain

TYPE_CHECKING = False  # the real one is in `typing`, which costs start time
if TYPE_CHECKING:
    from typing import Any, NoReturn

    Message = dict[str, Any]

MONTY = "/opt/monty"
# Monty's classes inherit nothing: what tools raise is a RuntimeError
_PRELUDE = "ToolError = RuntimeError"
_LIMITS = (
    ("TimeoutError", "feed time limit", "timeout"),
    ("MemoryError", "memory limit", "memory"),
)
_SUSPENDED = "suspension limit"
_UNSUPPORTED = "monty syntax parser does not yet support"
_IMPORTS = ("ImportError", "ModuleNotFoundError", "NotImplementedError", "AttributeError")


class CodeRunner:
    """Answers requests from one socket."""

    def __init__(self, link: int, pool: Any, monty: Any) -> None:
        self._link = link
        self._pool = pool
        self._monty = monty
        self._frames = FrameReader()
        self._waiting: list[Message] = []
        self._current = -1
        self._cpu = 0
        self._worker = "none"
        self._printed: list[str] = []
        self._room = self._asked = 0

    def serve(self) -> None:
        """Answer until the other side closes."""
        while request := self._next():
            if request.get("op") == "code":
                self._answer(request)

    def _next(self) -> Message | None:
        while not self._waiting:
            data = os.read(self._link, 1 << 20)
            if not data:
                return None
            self._waiting += self._frames.feed(data)
        return self._waiting.pop(0)

    def _answer(self, request: Message) -> None:
        self._current = int(request["id"])
        self._cpu = self._usage()["cpu_ms"]
        self._printed, self._room, self._asked = [], int(request["output_bytes"]), 0
        begun = time.monotonic()
        if why := self._find_unsupported(request["code"]):
            answer: Message = {"status": "unsupported", "why": why}
        else:
            answer = self._run(request)
        self._end(answer, begun)

    def _end(self, answer: Message, begun: float) -> None:
        duration = round((time.monotonic() - begun) * 1000)
        usage = self._usage()
        usage["cpu_ms"] = max(0, usage["cpu_ms"] - self._cpu)
        self._send(
            {
                **answer,
                "id": self._current,
                "printed": "".join(self._printed),
                "duration_ms": duration,
                "usage": usage,
            }
        )

    def _usage(self) -> dict[str, int]:
        if not os.path.exists(f"/proc/{self._worker}/stat"):  # noqa: PTH110 - pathlib costs start time
            self._worker = next(iter(others()), "none")
        return _measure(self._worker)

    def _find_unsupported(self, code: str) -> str:
        """Ask Monty about what the code imports, before any of it runs: why it is not for Monty, or
        nothing.
        """
        try:
            tree = ast.parse(code)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return ""  # whatever is wrong, Monty says it
        for probe in _probes(tree):
            with self._pool.checkout(limits={"max_feed_duration_secs": 1.0}) as session:
                try:
                    session.feed_run(probe, print_callback=lambda *_: None)
                except self._monty.MontyRuntimeError as error:
                    if type(error.exception()).__name__ in _IMPORTS:
                        return str(error)
        return ""

    def _run(self, request: Message) -> Message:
        face = ToolProxy(request["tools"], self._ask, agents=bool(request["agents"]))
        inputs: Message = {
            name: value for name, value in request["inputs"].items() if name.isidentifier()
        }
        inputs |= {group: _proxy(self._monty, face, group) for group in face.groups}
        limits = {
            "max_feed_duration_secs": float(request["seconds"]),
            "max_memory": int(request["memory_bytes"]),
            "max_recursion_depth": int(request["recursion"]),
            # A call is one, and so is an attribute that is looked up; Monty ends what goes on
            # asking beyond all refusals.
            "max_suspensions": 2 * int(request["tool_calls"]) + 100,
        }
        policy = {"sleep": "zero", "random_start": {"seed": str(request["seed"])}}
        begun = time.monotonic()
        try:
            with self._pool.checkout(
                limits=limits, os_policy=policy, script_name="block.py"
            ) as session:
                session.feed_run(_PRELUDE)
                value = session.feed_run(
                    request["code"], inputs=inputs, print_callback=self._print(begun)
                )
        except self._monty.MontyCrashedError as error:
            status = "timeout" if error.timed_out else "error"
            return {
                "status": status,
                "error": f"the interpreter was ended: {error}",
                "crashed": True,
            }
        except self._monty.MontyError as error:
            return self._failure(error)
        return {"status": "success", "value": plain(value)}

    def _failure(self, error: Any) -> Message:
        name, said = type(error.exception()).__name__, str(error)
        if (
            name == "NotImplementedError"
            and _UNSUPPORTED in said
            and not (self._printed or self._asked)
        ):
            return {"status": "unsupported", "why": said.partition(": ")[2] or said}
        if _SUSPENDED in said:
            return {
                "status": "budget_exceeded",
                "error": "it asked for more than tools may be called",
            }
        status = next(
            (status for kind, words, status in _LIMITS if name == kind and words in said), "error"
        )
        return {
            "status": status,
            "error": error.display() if hasattr(error, "display") else said,
            "crashed": status == "timeout",
        }

    def _ask(self, name: str, arguments: Message) -> Message:
        self._asked += 1
        self._send({"op": "call", "id": self._current, "name": name, "args": arguments})
        while message := self._next():
            if message.get("op") == "answer" and message.get("id") == self._current:
                return message
        sys.exit(0)

    def _print(self, begun: float) -> Any:
        def collect(_stream: str, text: str) -> None:
            self._room -= len(text.encode("utf-8", "replace"))
            if self._room < 0:
                # Monty would go on until its time is over: this process ends with it, and another
                # takes its place.
                self._end(
                    {
                        "status": "output",
                        "error": "it printed more than is kept; print less",
                        "crashed": True,
                    },
                    begun,
                )
                os._exit(0)
            self._printed.append(text)

        return collect

    def _send(self, message: Message) -> None:
        data = memoryview(pack(message))
        while data:
            data = data[os.write(self._link, data) :]


def _measure(worker: str) -> dict[str, int]:
    """Return what this process and its worker used so far; the kernel counts in hundredths of a
    second.
    """
    own, ticks, most = os.times(), 0, 0
    with contextlib.suppress(OSError):  # it was just replaced
        with open(f"/proc/{worker}/stat", "rb") as file:  # noqa: PTH123 - pathlib costs start time
            fields = file.read().rpartition(b")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        with open(f"/proc/{worker}/status", "rb") as file:  # noqa: PTH123 - as above
            most = next(
                (int(line.split()[1]) * 1024 for line in file if line.startswith(b"VmHWM")), 0
            )
    cpu = round((own.user + own.system) * 1000) + ticks * 1000 // os.sysconf("SC_CLK_TCK")
    return {"cpu_ms": cpu, "max_rss_bytes": most}


def _probes(tree: ast.AST) -> list[str]:
    """Return the code's imports, and the uses of what imported modules hold, as statements of their
    own.
    """
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {
        alias.asname or alias.name: f"import {alias.name} as {alias.asname or alias.name}"
        for node in imports
        if isinstance(node, ast.Import)
        for alias in node.names
        if "." not in alias.name
    }
    used = {
        (node.value.id, node.attr)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in modules
    }
    probes = [ast.unparse(node) for node in imports]
    if used:
        lines = [modules[name] for name in sorted({name for name, _ in used})]
        probes.append(
            "\n".join([*lines, *(f"{name}.{attribute}" for name, attribute in sorted(used))])
        )
    return probes


def _proxy(monty: Any, face: ToolProxy, group: str) -> Any:
    """Return an object whose methods are what a group offers."""

    class Group(monty.ClassInstance):  # type: ignore[misc]  # it is imported where it lies, inside
        def call_method(self, name: str, args: tuple[Any, ...], kwargs: Message) -> Any:
            try:
                return face.call(group, name, args, kwargs)
            except ToolError as error:
                raise RuntimeError(str(error)) from None

    return Group(type(group, (), {})())


def main() -> NoReturn:
    """Serve the socket that argv names."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    options = json.loads(sys.argv[2])
    link = int(sys.argv[1])
    os.set_inheritable(link, False)
    sys.path.append(MONTY)
    import pydantic_monty

    version = shut_in(options)
    # Its own watchdog is for what Monty's limits cannot stop; ours, outside, for what this cannot.
    pool = pydantic_monty.Monty(
        binary_path=f"{MONTY}/monty", min_processes=1, max_processes=1, request_timeout=None
    )
    with pool:
        coder = CodeRunner(link, pool, pydantic_monty)
        with pool.checkout() as session:
            session.feed_run("1")  # the first block need not wait for it
        os.write(link, pack({"id": 0, "status": "ready", "landlock": version}))
        try:
            coder.serve()
        except (ProtocolError, ConnectionError) as error:
            sys.stderr.write(f"coder: {error}\n")
    os._exit(0)
