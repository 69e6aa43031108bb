"""The process inside a workspace that runs tools. Nobody trusts it; standard library only.

Started as `python -I -S -c BOOT FD OPTIONS`. It has one inherited socket, no network (set-up has
the port of an external proxy), no credentials and an empty environment. It first confines itself
(Landlock, rlimits), then reports that it is ready, and then answers one request at a time until the
socket closes.
"""

from __future__ import annotations

import binascii
import contextlib
import json
import os
import resource
import signal
import stat
import sys
import time

from moothall.sandbox_runtime import file_access, files
from moothall.sandbox_runtime.checks import CommandResult
from moothall.sandbox_runtime.commands import CommandLimits, run_command, run_in_child
from moothall.sandbox_runtime.confinement import ROOT, confine
from moothall.sandbox_runtime.file_access import (
    DISK_FULL,
    ToolFailure,
    clean_for_writing,
    open_parent,
)
from moothall.sandbox_runtime.processes import kill_all, other_pids
from moothall.sandbox_runtime.protocol import (
    BLOCK,
    FrameReader,
    ProtocolError,
    RpcChannel,
    pack,
    unpack_path,
)

TYPE_CHECKING = False  # the real one is in `typing`, which costs the executor start time
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from moothall.sandbox_runtime.shell import Shell

    Message = dict[str, Any]

_SEARCH_SECONDS = 15.0
_SYMLINK = "120000"
_EXECUTABLE = "100755"


class Executor:
    """Answers requests from one socket, given as a descriptor because the socket module costs start
    time.
    """

    def __init__(self, link: int, options: Mapping[str, Any]) -> None:
        self._link = link
        self._options = options
        self._frames = FrameReader()
        self._pending: list[Message] = []
        self._current = -1
        self._channel: RpcChannel | None = None
        self._shell: Shell | None = None
        self._root = os.open(ROOT, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def serve(self) -> None:
        """Answer requests until the peer closes."""
        while True:
            while not self._pending:
                if not self._receive():
                    return
            request = self._pending.pop(0)
            if request.get("op") not in {"stop", "answer"}:  # for a request that has ended
                self._answer(request)

    def _receive(self) -> bool:
        data = os.read(self._link, 1 << 20)
        self._pending += self._frames.feed(data)
        return bool(data)

    def _find_stop(self) -> str:
        """Return the reason if the current request was stopped, else ''. Pass on answers to the
        channel.
        """
        if not self._receive():
            kill_all()
            sys.exit(0)
        own_messages = [message for message in self._pending if message.get("id") == self._current]
        self._pending = [message for message in self._pending if message not in own_messages]
        for message in own_messages:
            if message.get("op") == "stop":
                return str(message.get("reason") or "cancelled")
            if message.get("op") == "answer" and self._channel and self._channel.waiting:
                self._channel.answer(message)
        return ""

    def _answer(self, request: Message) -> None:
        start_time, start_cpu = time.monotonic(), _cpu_seconds()
        self._current = int(request["id"])
        try:
            answer = {
                "files": self._files,
                "run": self._run_command,
                "apply": self._apply_patch,
                "processes": self._processes,
            }[str(request["op"])](request)
        except ToolFailure as failure:
            answer = failure.answer()
        except OSError as error:
            status = "disk" if error.errno in DISK_FULL else "error"
            answer = {
                "status": status,
                "error": f"{error.filename or 'workspace'}: {error.strerror}",
            }
        answer.setdefault("duration_ms", round((time.monotonic() - start_time) * 1000))
        answer.setdefault("usage", _own_usage(start_cpu))
        answer["id"] = self._current
        self._current = -1
        _send_message(self._link, answer)

    def _command_limits(self, request: Message) -> CommandLimits:
        limits = request["limits"]
        return CommandLimits(
            wall_seconds=float(limits["wall_seconds"]),
            cpu_seconds=float(limits["cpu_seconds"]),
            output_bytes=int(limits["output_bytes"]),
            memory_bytes=int(self._options["memory_bytes"]),
            processes=int(self._options["processes"]),
            file_bytes=int(self._options["disk_bytes"]),
            in_cgroup=bool(self._options["cgroup"]),
            most_seconds=float(limits.get("most_seconds") or 0.0),
            any_output=bool(limits.get("any_output")),
        )

    def _files(self, request: Message) -> Message:
        tool, args = str(request["tool"]), request["args"]
        limits = file_access.TextLimits(
            int(request["limits"]["file_bytes"]), int(request["limits"]["output_bytes"])
        )
        if tool not in files.TOOLS:
            raise ToolFailure(f"no tool {tool!r} in the workspace", "invalid")
        if tool not in files.SLOW:
            return {"status": "success", "output": files.TOOLS[tool](self._root, args, limits)}
        command_limits = self._command_limits(request)
        seconds = min(_SEARCH_SECONDS, command_limits.wall_seconds)
        # The tool limits its own result, so the pipe's limit must never cut it.
        child_limits = CommandLimits(
            wall_seconds=seconds,
            cpu_seconds=command_limits.cpu_seconds,
            output_bytes=8 * command_limits.output_bytes + 4096,
            memory_bytes=command_limits.memory_bytes,
            processes=command_limits.processes,
            file_bytes=command_limits.file_bytes,
            in_cgroup=command_limits.in_cgroup,
        )

        def run_tool() -> bytes:
            try:
                answer: Message = {
                    "status": "success",
                    "output": files.TOOLS[tool](self._root, args, limits),
                }
            except ToolFailure as failure:
                answer = failure.answer()
            return json.dumps(answer).encode()

        result = run_in_child(
            run_tool, limits=child_limits, wakeup=self._link, stopped=self._find_stop
        )
        if result.status == "timeout":
            return {
                "status": "timeout",
                "error": (
                    f"{tool} took more than {seconds:g} s; use a simpler pattern or a smaller path"
                ),
            }
        if result.status != "success":
            return {
                "status": result.status,
                "error": f"{tool} was stopped: {result.status}",
                "usage": result.usage(),
            }
        try:
            answer = json.loads(result.output)
        except ValueError:
            return {
                "status": "error",
                "error": f"{tool} failed (exit {result.exit_code})",
                "usage": result.usage(),
            }
        return {**answer, "usage": result.usage()}

    def _run_command(self, request: Message) -> Message:
        argv = tuple(str(part) for part in request["argv"])
        if request.get("block"):
            return self._run_block(argv, request)
        if request.get("check"):
            return self._run_check(argv, request)
        if request.get("shell_state"):
            return self._run_shell(argv, request)
        cwd = os.path.join(ROOT, str(request.get("folder") or ""))  # noqa: PTH118 - pathlib costs start time
        result = run_command(
            argv,
            cwd=cwd,
            env=request["env"],
            limits=self._command_limits(request),
            wakeup=self._link,
            stopped=self._find_stop,
        )
        return result.document()

    def _run_check(self, argv: tuple[str, ...], request: Message) -> Message:
        # Imported late: they cost start time, and most workspaces run no check at first.
        from moothall.sandbox_runtime.check_run import RunningCheck
        from moothall.sandbox_runtime.checks import with_reporters_path

        running_check = RunningCheck(argv, request["check"])
        _move_aside(running_check.folder)
        os.mkdir(running_check.folder)  # noqa: PTH102 - pathlib costs start time
        start_time = time.monotonic()

        def run_once(
            extra_env: Mapping[str, str], seconds: float, other_argv: tuple[str, ...] = ()
        ) -> CommandResult:
            limits = self._command_limits(request)
            limits.wall_seconds = seconds
            limits.most_seconds = max(
                seconds, limits.most_seconds - (time.monotonic() - start_time)
            )
            env = {
                **request["env"],
                "PATH": with_reporters_path(request["env"].get("PATH", "")),
                **extra_env,
            }
            return run_command(
                other_argv or argv,
                cwd=running_check.cwd,
                env=env,
                limits=limits,
                wakeup=self._link,
                stopped=self._find_stop,
                reader=running_check,
            )

        return running_check.run_to_end(run_once, float(request["limits"]["wall_seconds"]))

    def _run_shell(self, argv: tuple[str, ...], request: Message) -> Message:
        from moothall.sandbox_runtime.shell import (
            Shell,
        )  # costs start time, and many workspaces run no command

        shell = self._shell = self._shell or Shell(int(self._options["memory_bytes"]))
        shell_state = request["shell_state"]
        note, output = shell.begin(), shell.output()
        folder = ROOT if shell_state["session"] else shell.folder
        try:
            with shell.git(str(shell_state["history"])):
                result = run_command(
                    argv,
                    cwd=folder,
                    env=request["env"],
                    limits=self._command_limits(request),
                    wakeup=self._link,
                    stopped=self._find_stop,
                    shell=output,
                )
        finally:
            output.close()
            shell.remove_old_output()
        if not shell_state["session"]:
            shell.end()
        return {
            **result.document(),
            "folder": shell.folder,
            "left": result.running_processes,
            "note": note,
        }

    def _run_block(self, argv: tuple[str, ...], request: Message) -> Message:
        """Run a command that makes calls while it runs, over a socket whose number is its last
        argument.
        """
        number = self._current
        channel = self._channel = RpcChannel(
            lambda message: _send_message(self._link, {**message, "id": number})
        )
        _move_aside(BLOCK)  # a pipe in its place would block
        with open(BLOCK, "x", encoding="utf-8") as file:  # noqa: PTH123 - pathlib costs start time
            json.dump(request["block"], file)
        try:
            result = run_command(
                (*argv, str(channel.child_fd)),
                cwd=ROOT,
                env=request["env"],
                limits=self._command_limits(request),
                wakeup=self._link,
                stopped=self._find_stop,
                side=channel,
            )
        finally:
            self._channel = None
            channel.close()
        return {**result.document(), "end": channel.end}

    def _processes(self, _request: Message) -> Message:
        processes = []
        for pid in sorted(map(int, (*other_pids(), str(os.getpid())))):
            with (
                contextlib.suppress(OSError),
                open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file,  # noqa: PTH123
            ):
                processes.append({"pid": pid, "name": file.read().strip()})
        return {"status": "success", "output": {"processes": processes}}

    def _apply_patch(self, request: Message) -> Message:
        """Write the files of a patch. Deletions come first, so that a folder can replace a file and
        the other way round.
        """
        changes = sorted(
            request["changes"], key=lambda change: (change["content"] is not None, change["path"])
        )
        for change in changes:
            path = clean_for_writing(unpack_path(change["path"]))
            if change["content"] is None:
                self._remove(path)
            else:
                self._write_file(path, change["mode"], binascii.a2b_base64(change["content"]))
        return {"status": "success", "output": {"changes": len(changes)}}

    def _remove(self, path: str) -> None:
        while path:
            try:
                parent, name = open_parent(self._root, path)
            except ToolFailure:
                return
            try:
                os.unlink(name, dir_fd=parent) if not _is_folder(name, parent) else os.rmdir(
                    name, dir_fd=parent
                )
            except OSError:
                return  # a folder that is not empty, or already removed
            finally:
                os.close(parent)
            path = path.rpartition("/")[0]

    def _write_file(self, path: str, mode: str, content: bytes) -> None:
        parts = path.split("/")
        parent_fd = os.dup(self._root)
        try:
            for part in parts[:-1]:
                if not _is_folder(part, parent_fd):
                    _remove_entry(part, parent_fd)
                    os.mkdir(part, 0o755, dir_fd=parent_fd)
                folder_fd = os.open(
                    part,
                    os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC,
                    dir_fd=parent_fd,
                )
                os.close(parent_fd)
                parent_fd = folder_fd
            _remove_entry(parts[-1], parent_fd)
            if mode == _SYMLINK:
                os.symlink(content, parts[-1], dir_fd=parent_fd)
                return
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(
                parts[-1], flags, 0o755 if mode == _EXECUTABLE else 0o644, dir_fd=parent_fd
            )
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
        finally:
            os.close(parent_fd)


def _send_message(link: int, message: Message) -> None:
    data = memoryview(pack(message))
    while data:
        data = data[os.write(link, data) :]


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _own_usage(before: float) -> dict[str, int]:
    """Return the executor's own usage, in milliseconds rounded up."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"cpu_ms": max(1, round((_cpu_seconds() - before) * 1000)), "max_rss_bytes": peak}


def _move_aside(path: str) -> None:
    """Rename whatever code has put at the path of an own file. A tree may be too deep to remove in
    one go.
    """
    if os.path.lexists(path):
        os.rename(path, f"{path}.{os.urandom(8).hex()}")  # noqa: PTH104 - pathlib costs start time


def _is_folder(name: str, parent_fd: int) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=parent_fd, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _remove_entry(name: str, parent_fd: int) -> None:
    if _is_folder(name, parent_fd):
        import shutil  # costs start time, and patches seldom put a file where a folder was

        try:
            shutil.rmtree(name, dir_fd=parent_fd)
        except RecursionError as error:
            raise ToolFailure(
                f"{name!r} is a folder too deep to be removed; remove it with code of your own"
            ) from error
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=parent_fd)


def main() -> None:
    """Serve the socket that argv names."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    options = json.loads(sys.argv[2])
    link = int(sys.argv[1])
    os.set_inheritable(link, False)
    if options["proxied"]:
        from moothall.sandbox_runtime.chromium import (
            open_port,
        )  # costs start time, and only set-up has a way out

        open_port(link)
    version = confine(options)
    _send_message(link, {"id": 0, "status": "ready", "landlock": version})
    try:
        Executor(link, options).serve()
    except (ProtocolError, ConnectionError) as error:
        sys.exit(f"executor: {error}")
