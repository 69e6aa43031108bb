"""The process in a code runner's executor: runs blocks of Python in a Monty worker, one after
another. Nobody trusts it.

Started like the executor, with one inherited socket: no network, no workspace, no files but the
interpreter. Each block has its own session. The worker's limits end blocks that run too long or
grow too large; if they fail, this process is killed from outside.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import signal
import sys
import time

from moothall.sandbox_runtime.confinement import confine
from moothall.sandbox_runtime.processes import other_pids
from moothall.sandbox_runtime.protocol import FrameReader, ProtocolError, pack
from moothall.sandbox_runtime.tool_proxy import ToolError, ToolProxy, plain

TYPE_CHECKING = False  # the real one is in `typing`, which costs start time
if TYPE_CHECKING:
    from typing import Any, NoReturn

    Message = dict[str, Any]

MONTY = "/opt/monty"
# Monty's classes cannot inherit, so tools raise RuntimeError.
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
        self._pending: list[Message] = []
        self._current = -1
        self._cpu = 0
        self._worker = "none"
        self._printed: list[str] = []
        self._output_room = self._call_count = 0

    def serve(self) -> None:
        """Answer requests until the peer closes."""
        while request := self._next_message():
            if request.get("op") == "code":
                self._answer(request)

    def _next_message(self) -> Message | None:
        while not self._pending:
            data = os.read(self._link, 1 << 20)
            if not data:
                return None
            self._pending += self._frames.feed(data)
        return self._pending.pop(0)

    def _answer(self, request: Message) -> None:
        self._current = int(request["id"])
        self._cpu = self._usage()["cpu_ms"]
        self._printed, self._output_room, self._call_count = [], int(request["output_bytes"]), 0
        start_time = time.monotonic()
        if reason := self._find_unsupported(request["code"]):
            answer: Message = {"status": "unsupported", "why": reason}
        else:
            answer = self._run_block(request)
        self._send_result(answer, start_time)

    def _send_result(self, answer: Message, start_time: float) -> None:
        duration = round((time.monotonic() - start_time) * 1000)
        usage = self._usage()
        usage["cpu_ms"] = max(0, usage["cpu_ms"] - self._cpu)
        self._send_message(
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
            self._worker = next(iter(other_pids()), "none")
        return _measure_usage(self._worker)

    def _find_unsupported(self, code: str) -> str:
        """Test the code's imports in Monty before running it; return why Monty cannot run it, '' if
        it can.
        """
        try:
            tree = ast.parse(code)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return ""  # Monty reports the error
        for probe in _import_probes(tree):
            with self._pool.checkout(limits={"max_feed_duration_secs": 1.0}) as session:
                try:
                    session.feed_run(probe, print_callback=lambda *_: None)
                except self._monty.MontyRuntimeError as error:
                    if type(error.exception()).__name__ in _IMPORTS:
                        return str(error)
        return ""

    def _run_block(self, request: Message) -> Message:
        proxy = ToolProxy(request["tools"], self._call_tool, agents=bool(request["agents"]))
        inputs: Message = {
            name: value for name, value in request["inputs"].items() if name.isidentifier()
        }
        inputs |= {group: _proxy(self._monty, proxy, group) for group in proxy.groups}
        limits = {
            "max_feed_duration_secs": float(request["seconds"]),
            "max_memory": int(request["memory_bytes"]),
            "max_recursion_depth": int(request["recursion"]),
            # Calls and attribute look-ups are suspensions; Monty ends code that exceeds this.
            "max_suspensions": 2 * int(request["tool_calls"]) + 100,
        }
        policy = {"sleep": "zero", "random_start": {"seed": str(request["seed"])}}
        start_time = time.monotonic()
        try:
            with self._pool.checkout(
                limits=limits, os_policy=policy, script_name="block.py"
            ) as session:
                session.feed_run(_PRELUDE)
                value = session.feed_run(
                    request["code"], inputs=inputs, print_callback=self._print(start_time)
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
        name, message = type(error.exception()).__name__, str(error)
        if (
            name == "NotImplementedError"
            and _UNSUPPORTED in message
            and not (self._printed or self._call_count)
        ):
            return {"status": "unsupported", "why": message.partition(": ")[2] or message}
        if _SUSPENDED in message:
            return {
                "status": "budget_exceeded",
                "error": "it called more tools than allowed",
            }
        status = next(
            (
                status
                for error_name, text, status in _LIMITS
                if name == error_name and text in message
            ),
            "error",
        )
        return {
            "status": status,
            "error": error.display() if hasattr(error, "display") else message,
            "crashed": status == "timeout",
        }

    def _call_tool(self, name: str, arguments: Message) -> Message:
        self._call_count += 1
        self._send_message({"op": "call", "id": self._current, "name": name, "args": arguments})
        while message := self._next_message():
            if message.get("op") == "answer" and message.get("id") == self._current:
                return message
        sys.exit(0)

    def _print(self, start_time: float) -> Any:
        def collect(_stream: str, text: str) -> None:
            self._output_room -= len(text.encode("utf-8", "replace"))
            if self._output_room < 0:
                # Monty would continue until its time limit, so this process exits and is replaced.
                self._send_result(
                    {
                        "status": "output",
                        "error": "it printed more than the limit; print less",
                        "crashed": True,
                    },
                    start_time,
                )
                os._exit(0)
            self._printed.append(text)

        return collect

    def _send_message(self, message: Message) -> None:
        data = memoryview(pack(message))
        while data:
            data = data[os.write(self._link, data) :]


def _measure_usage(worker: str) -> dict[str, int]:
    """Return the usage of this process and its worker so far; the kernel counts in hundredths of a
    second.
    """
    own_times, ticks, max_rss = os.times(), 0, 0
    with contextlib.suppress(OSError):  # the worker was just replaced
        with open(f"/proc/{worker}/stat", "rb") as file:  # noqa: PTH123 - pathlib costs start time
            fields = file.read().rpartition(b")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        with open(f"/proc/{worker}/status", "rb") as file:  # noqa: PTH123 - as above
            max_rss = next(
                (int(line.split()[1]) * 1024 for line in file if line.startswith(b"VmHWM")), 0
            )
    cpu = round((own_times.user + own_times.system) * 1000) + ticks * 1000 // os.sysconf(
        "SC_CLK_TCK"
    )
    return {"cpu_ms": cpu, "max_rss_bytes": max_rss}


def _import_probes(tree: ast.AST) -> list[str]:
    """Return the code's imports, and its uses of imported modules, as separate statements."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {
        alias.asname or alias.name: f"import {alias.name} as {alias.asname or alias.name}"
        for node in imports
        if isinstance(node, ast.Import)
        for alias in node.names
        if "." not in alias.name
    }
    used_attributes = {
        (node.value.id, node.attr)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in modules
    }
    probes = [ast.unparse(node) for node in imports]
    if used_attributes:
        lines = [modules[name] for name in sorted({name for name, _ in used_attributes})]
        probes.append(
            "\n".join(
                [*lines, *(f"{name}.{attribute}" for name, attribute in sorted(used_attributes))]
            )
        )
    return probes


def _proxy(monty: Any, proxy: ToolProxy, group: str) -> Any:
    """Return an object whose methods are a group's functions."""

    class Group(monty.ClassInstance):  # type: ignore[misc]  # it is imported where it lies, inside
        def call_method(self, name: str, args: tuple[Any, ...], kwargs: Message) -> Any:
            try:
                return proxy.call(group, name, args, kwargs)
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

    version = confine(options)
    # No request timeout: the supervisor outside ends what Monty's limits do not stop.
    pool = pydantic_monty.Monty(
        binary_path=f"{MONTY}/monty", min_processes=1, max_processes=1, request_timeout=None
    )
    with pool:
        runner = CodeRunner(link, pool, pydantic_monty)
        with pool.checkout() as session:
            session.feed_run("1")  # warm-up, so that the first block need not wait
        os.write(link, pack({"id": 0, "status": "ready", "landlock": version}))
        try:
            runner.serve()
        except (ProtocolError, ConnectionError) as error:
            sys.stderr.write(f"coder: {error}\n")
    os._exit(0)
