"""The connection to an executor: the code in every sandbox, requests and answers by id, the parsing
of answers, and the log that is stored after a workspace is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import py_compile
import re
import shutil
import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from moothall import sandbox_runtime
from moothall.domain.codec import mapping_of
from moothall.domain.evidence import CheckRun, Verdict
from moothall.domain.text import one_line
from moothall.domain.tool import ToolCall, ToolResult, ToolStatus, ToolUsage
from moothall.errors import WorkspaceFailed
from moothall.sandbox.bubblewrap import WORKSPACE
from moothall.sandbox.cgroups import cores
from moothall.sandbox_runtime import cases, checks, syntax
from moothall.sandbox_runtime.plugins import FOLDER as REPORTERS
from moothall.sandbox_runtime.protocol import FrameReader, ProtocolError, pack
from moothall.sandbox_runtime.tool_proxy import plain

# The code in every sandbox: the package `sandbox_runtime`, compiled once per process, and the
# source of the plugins that report test cases, for the project's own interpreter.
#
# It is compiled outside, because a sandbox cannot write bytecode and would compile it again for
# each workspace.


INSIDE = "/opt/moothall"
_RUNTIME_FOLDER = Path(sandbox_runtime.__file__).parent


def bundle(folder: Path) -> None:
    """Write the sandbox runtime to the new folder `folder`, as bytecode without source that every
    uid can read, and the plugins to its `plugins`.
    """
    for subfolder in (
        folder,
        folder / "moothall",
        folder / "moothall" / "sandbox_runtime",
        folder / "plugins",
        folder / "plugins" / "bin",
    ):
        subfolder.mkdir()
        subfolder.chmod(0o755)
    for source in (_RUNTIME_FOLDER.parent / "__init__.py", *_RUNTIME_FOLDER.glob("*.py")):
        name = source.relative_to(_RUNTIME_FOLDER.parent.parent)
        target = folder / name.with_suffix(".pyc")
        py_compile.compile(
            str(source),
            cfile=str(target),
            dfile=str(name),
            doraise=True,
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
        target.chmod(0o644)
    for source in (*REPORTERS.glob("moothall_*"), *REPORTERS.glob("bin/*")):
        target = folder / "plugins" / source.relative_to(REPORTERS)
        shutil.copyfile(source, target)
        target.chmod(0o755 if target.parent.name == "bin" else 0o644)


def grammars() -> tuple[tuple[Path, str], ...]:
    """Return the packages that parse source code, and their paths in a sandbox."""
    specs = {name: find_spec(name) for name in syntax.PACKAGES}
    return tuple(
        (Path(spec.origin).parent, f"{syntax.GRAMMARS}/{name}")
        for name, spec in specs.items()
        if spec and spec.origin
    )


# The log of a sandbox, which is stored in the data directory after its workspace is closed.


MAX_LOGS = 1000
"""How many logs of closed workspaces are stored; older ones are removed at the next start."""

_UNSAFE_CHARACTERS = re.compile(r"[^A-Za-z0-9._-]+")
_VALUE_CHARS = 200


def log_folder(data_dir: Path) -> Path:
    """Return the folder with the logs of closed workspaces."""
    return data_dir / "logs" / "workspaces"


def format_line(op: str, request: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """Return a log line about a command: its program, its end and its usage. Arguments are left
    out, because they may contain a model's code or secrets. The result is hostile.
    """
    usage = mapping_of(result.get("usage"))
    argv = request.get("argv") or ("?",)
    program = next((part for part in argv if part != "env" and "=" not in str(part)), "?")
    fields = {
        "program": str(program),
        "status": result.get("status"),
        "exit_code": result.get("exit_code"),
        "ms": result.get("duration_ms"),
        "cpu_ms": usage.get("cpu_ms"),
        "max_rss_bytes": usage.get("max_rss_bytes"),
        "output_bytes": result.get("output_bytes"),
    }
    text = " ".join(
        f"{name}={one_line(str(value), _VALUE_CHARS)}"
        for name, value in fields.items()
        if isinstance(value, str | int | float)
    )
    return f"{datetime.now(UTC).isoformat(timespec='milliseconds')} {op} {text}\n"


def store_log(log: Path, data_dir: Path, name: str) -> None:
    """Move the log of a closing workspace to the log folder. If that fails, it is removed with its
    folder.
    """
    target = log_folder(data_dir) / f"{_UNSAFE_CHARACTERS.sub('-', name)[:_VALUE_CHARS]}.log"
    with contextlib.suppress(OSError):
        target.parent.mkdir(parents=True, exist_ok=True)
        log.replace(target)


def prune(data_dir: Path) -> None:
    """Remove all but the newest logs."""
    with contextlib.suppress(FileNotFoundError):
        logs = sorted(log_folder(data_dir).glob("*.log"), key=lambda path: path.stat().st_mtime)
        for path in logs[:-MAX_LOGS]:
            path.unlink(missing_ok=True)


# The trusted side's end of an executor's socket: sends requests and matches answers by id.


READY = 0
# Unexpected messages that are allowed for each request: an abandoned one may ask a question and
# then end.
_STRAYS = 4


class ExecutorConnection(asyncio.Protocol):
    """A connection. Answers that nobody waits for are dropped."""

    def __init__(self) -> None:
        self._frames = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._pending: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._last_id = READY
        self._strays = 0
        self._close_reason = ""
        self.ready: asyncio.Future[dict[str, Any]] = self._expect(READY)

    @classmethod
    async def create(cls, endpoint: socket.socket) -> ExecutorConnection:
        """Create a connection over one end of a socket pair."""
        _, link = await asyncio.get_running_loop().create_unix_connection(cls, sock=endpoint)
        return link

    def send(self, message: dict[str, Any]) -> tuple[int, asyncio.Future[dict[str, Any]]]:
        """Send a request. Return its id, and the future of its answer, which fails with
        `WorkspaceFailed` if the connection is lost.
        """
        if self._close_reason or self._transport is None:
            raise WorkspaceFailed(self._close_reason or "the executor is not connected")
        self._last_id += 1
        answer = self._expect(self._last_id)
        try:
            self._transport.write(pack({**message, "id": self._last_id}))
        except ProtocolError as error:
            del self._pending[self._last_id]
            raise WorkspaceFailed(f"the request cannot be sent: {error}") from error
        return self._last_id, answer

    def expect_more(self, request: int) -> asyncio.Future[dict[str, Any]]:
        """Return the future of the next message of a running request."""
        if self._close_reason:
            raise WorkspaceFailed(self._close_reason)
        return self._expect(request)

    def reply(self, request: int, message: dict[str, Any]) -> None:
        """Answer a question of a running request."""
        if self._close_reason or self._transport is None:
            raise WorkspaceFailed(self._close_reason or "the executor is not connected")
        try:
            self._transport.write(pack({"op": "answer", **message, "id": request}))
        except ProtocolError as error:
            raise WorkspaceFailed(f"the answer cannot be sent: {error}") from error

    def stop(self, request: int, reason: str) -> None:
        """Stop a running request; its answer then has `reason` as its status."""
        if self._transport and not self._close_reason:
            self._transport.write(pack({"op": "stop", "id": request, "reason": reason}))

    def close(self) -> None:
        """Close the socket, which ends the executor."""
        self._fail("the workspace is closed")
        if self._transport:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        # uvloop's transports are no subclass, so this cannot be asserted.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Deliver complete answers."""
        try:
            messages = self._frames.feed(data)
        except ProtocolError as error:
            self._abort(str(error))
            return
        for message in messages:
            number = message.get("id")
            answer = self._pending.pop(number, None) if isinstance(number, int) else None
            if answer and not answer.done():
                answer.set_result(message)
            else:
                self._strays += 1
        if self._strays > _STRAYS * (self._last_id + 1):
            self._abort("it sends too many messages that answer no request")

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail all pending requests."""
        self._fail(f"the executor is gone{f' ({exc})' if exc else ''}")

    def _expect(self, number: int) -> asyncio.Future[dict[str, Any]]:
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._pending[number] = answer
        return answer

    def _abort(self, reason: str) -> None:
        self._fail(f"the executor broke its protocol: {reason}")
        if self._transport:
            self._transport.abort()

    def _fail(self, reason: str) -> None:
        self._close_reason = self._close_reason or reason
        for answer in self._pending.values():
            if not answer.done():
                answer.set_exception(WorkspaceFailed(self._close_reason))
                answer.exception()  # retrieved, so that asyncio does not warn about it
        self._pending.clear()


# Parsing of an executor's answers. They are hostile, so each part is checked.


PARSE_ERRORS = (TypeError, ValueError, AttributeError, RecursionError)
"""Errors that the parsing of an invalid answer raises."""
_CASES_SHOWN = 50
_MIN_WAIT_SHARE, _ALL_CORES_SHARE = 0.2, 0.8
"""Shares of a command's time, and of the time of all cores."""
_MAX_INTEGER = 1 << 53
"""The largest integer that all APIs can represent."""
_RESULTS = frozenset({cases.PASSED, cases.FAILED, cases.ERRORED, cases.SKIPPED})


def parse_result(call: ToolCall, answer: dict[str, Any]) -> ToolResult:
    """Parse the result of a tool. Raises `WorkspaceFailed`."""
    try:
        return ToolResult(
            call.request_id,
            call.tool,
            ToolStatus(answer.get("status", "")),
            output=plain(dict(answer.get("output") or {})),
            error=str(answer.get("error") or ""),
            duration_ms=parse_integer(answer.get("duration_ms", 0)),
            usage=parse_usage(answer),
        )
    except PARSE_ERRORS as error:
        raise WorkspaceFailed(f"the executor broke its protocol: {error}") from error


def parse_integer(value: object) -> int:
    """Convert a number to an integer. Raises `ValueError` for anything else, such as Infinity,
    which Python's JSON parser accepts.
    """
    if not isinstance(value, int | float) or not abs(value) <= _MAX_INTEGER:
        raise ValueError(f"{str(value)[:40]!r} is not a number")
    return int(value)


def parse_usage(answer: Mapping[str, Any]) -> ToolUsage:
    """Parse the resource usage in an answer. Raises `PARSE_ERRORS`."""
    usage = answer.get("usage") or {}
    return ToolUsage(
        parse_integer(usage.get("cpu_ms", 0)), parse_integer(usage.get("max_rss_bytes", 0))
    )


def _is_contended(answer: Mapping[str, Any]) -> bool:
    """Return whether a command waited for cores that other processes used. That is not so if it
    used nearly all cores itself.
    """
    duration, cpu = parse_integer(answer.get("duration_ms", 0)), parse_usage(answer).cpu_ms
    waited = parse_integer(answer.get("contended_ms", 0)) >= _MIN_WAIT_SHARE * duration
    return waited and duration > 0 and cpu < _ALL_CORES_SHARE * duration * cores()


def _results(answer: dict[str, Any]) -> dict[str, str]:
    results = answer.get("cases") or {}
    if not isinstance(results, dict) or not _RESULTS.issuperset(map(str, results.values())):
        raise WorkspaceFailed("the executor broke its protocol: cases must be an object of results")
    return {str(case)[: cases.MAX_CASE_ID]: str(result) for case, result in results.items()}


def parse_tests_output(answer: dict[str, Any]) -> dict[str, Any]:
    """Parse the result of a test run for a model: counts, failing tests, and the end of the
    output.
    """
    results = _results(answer)
    failing = [case for case, result in results.items() if result in cases.FAILED_RESULTS]
    return {
        "verdict": answer.get("verdict", cases.ERRORED),
        **{
            result_name: sum(result == result_name for result in results.values())
            for result_name in ("passed", "failed", "errored", "skipped")
        },
        "red": failing[:_CASES_SHOWN],
        "exit_code": answer.get("exit_code", -1),
        "output": str(answer.get("output", "")),
    }


def parse_code_output(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the exit code and output of code, as far as it ran."""
    return {name: answer[name] for name in ("exit_code", "output") if answer.get(name) is not None}


def parse_shell_answer(answer: dict[str, Any], stopped: str) -> dict[str, Any]:
    """Parse the answer to a shell command; `stopped` is the reason if it did not end by itself."""
    folder, ended, note = (answer.get(name) for name in ("folder", "left", "note"))
    output = parse_code_output(answer)
    output |= (
        {"working_directory": folder} if isinstance(folder, str) and folder != WORKSPACE else {}
    )
    output |= (
        {"ended_processes": [str(process) for process in ended]}
        if isinstance(ended, list) and ended
        else {}
    )
    output |= {"note": str(note)} if note else {}
    return {**answer, "output": output, "error": answer.get("error") or stopped}


def parse_check_run(name: str, answer: dict[str, Any]) -> CheckRun:
    """Parse the answer to a check. Raises `WorkspaceFailed`."""
    try:
        status = ToolStatus(answer.get("status", ""))
        verdict = (
            Verdict(answer.get("verdict", checks.MISSING))
            if status is ToolStatus.SUCCESS
            else Verdict.ERRORED
        )
        return CheckRun(
            check=name,
            verdict=verdict,
            cases=_results(answer),
            output=str(answer.get("output") or answer.get("error") or ""),
            duration_ms=parse_integer(answer.get("duration_ms", 0)),
            exit_code=parse_integer(answer.get("exit_code", -1)),
            status=status,
            details={
                str(case): str(detail) for case, detail in dict(answer.get("details") or {}).items()
            },
            durations={
                str(case): parse_integer(ms)
                for case, ms in dict(answer.get("durations") or {}).items()
            },
            findings=tuple(str(line) for line in answer.get("findings") or ()),
            usage=parse_usage(answer),
            contended=_is_contended(answer),
        )
    except PARSE_ERRORS as error:
        raise WorkspaceFailed(f"the executor broke its protocol: {error}") from error
