"""The process inside a workspace that runs tools. Trusted by nobody; standard library only.

Started as `python -I -S -c BOOT FD OPTIONS`. It has one inherited socket and nothing else: no
network
(set-up has the port of a proxy outside),
no credentials, an empty environment. First it shuts itself in (Landlock, rlimits), then it says
that it
is ready, then it answers one request at a time until the socket closes.
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

from moothall.sandbox_runtime import files, texts
from moothall.sandbox_runtime.command_result import CommandResult
from moothall.sandbox_runtime.commands import CommandLimits, call, run
from moothall.sandbox_runtime.confinement import ROOT, shut_in
from moothall.sandbox_runtime.paths import DISK_FULL, ToolFailure, clean_for_writing, open_parent
from moothall.sandbox_runtime.processes import kill_all, others
from moothall.sandbox_runtime.protocol import FrameReader, ProtocolError, pack, unpack_path
from moothall.sandbox_runtime.rpc_channel import BLOCK, RpcChannel

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
    """Answers requests from one socket, a bare descriptor: the module for sockets costs start
    time.
    """

    def __init__(self, link: int, options: Mapping[str, Any]) -> None:
        self._link = link
        self._options = options
        self._frames = FrameReader()
        self._waiting: list[Message] = []
        self._current = -1
        self._talk: RpcChannel | None = None
        self._shell: Shell | None = None
        self._root = os.open(ROOT, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def serve(self) -> None:
        """Answer until the other side closes."""
        while True:
            while not self._waiting:
                if not self._receive():
                    return
            request = self._waiting.pop(0)
            if request.get("op") not in {"stop", "answer"}:  # for what has ended meanwhile
                self._answer(request)

    def _receive(self) -> bool:
        data = os.read(self._link, 1 << 20)
        self._waiting += self._frames.feed(data)
        return bool(data)

    def _find_stop(self) -> str:
        """Look for a stop of the current request among what has come."""
        if not self._receive():
            kill_all()
            sys.exit(0)
        mine = [message for message in self._waiting if message.get("id") == self._current]
        self._waiting = [message for message in self._waiting if message not in mine]
        for message in mine:
            if message.get("op") == "stop":
                return str(message.get("reason") or "cancelled")
            if message.get("op") == "answer" and self._talk and self._talk.waiting:
                self._talk.answer(message)
        return ""

    def _answer(self, request: Message) -> None:
        begun, used = time.monotonic(), _cpu_seconds()
        self._current = int(request["id"])
        try:
            answer = {
                "files": self._files,
                "run": self._run,
                "apply": self._apply,
                "processes": self._processes,
            }[str(request["op"])](request)
        except ToolFailure as failed:
            answer = failed.answer()
        except OSError as error:
            status = "disk" if error.errno in DISK_FULL else "error"
            answer = {
                "status": status,
                "error": f"{error.filename or 'workspace'}: {error.strerror}",
            }
        answer.setdefault("duration_ms", round((time.monotonic() - begun) * 1000))
        answer.setdefault("usage", _own_usage(used))
        answer["id"] = self._current
        self._current = -1
        _send(self._link, answer)

    def _walls(self, request: Message) -> CommandLimits:
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
        limits = texts.TextLimits(
            int(request["limits"]["file_bytes"]), int(request["limits"]["output_bytes"])
        )
        if tool not in files.TOOLS:
            raise ToolFailure(f"no tool {tool!r} in the workspace", "invalid")
        if tool not in files.SLOW:
            return {"status": "success", "output": files.TOOLS[tool](self._root, args, limits)}
        walls = self._walls(request)
        seconds = min(_SEARCH_SECONDS, walls.wall_seconds)
        # The result is counted by the tool itself, so the pipe's cut must never fall into it.
        bounded = CommandLimits(
            wall_seconds=seconds,
            cpu_seconds=walls.cpu_seconds,
            output_bytes=8 * walls.output_bytes + 4096,
            memory_bytes=walls.memory_bytes,
            processes=walls.processes,
            file_bytes=walls.file_bytes,
            in_cgroup=walls.in_cgroup,
        )

        def inside() -> bytes:
            try:
                answer: Message = {
                    "status": "success",
                    "output": files.TOOLS[tool](self._root, args, limits),
                }
            except ToolFailure as failed:
                answer = failed.answer()
            return json.dumps(answer).encode()

        ended = call(inside, walls=bounded, wakeup=self._link, stopped=self._find_stop)
        if ended.status == "timeout":
            return {
                "status": "timeout",
                "error": (
                    f"{tool} took more than {seconds:g} s; use a simpler pattern or a smaller path"
                ),
            }
        if ended.status != "success":
            return {
                "status": ended.status,
                "error": f"{tool} was stopped: {ended.status}",
                "usage": ended.usage(),
            }
        try:
            answer = json.loads(ended.output)
        except ValueError:
            return {
                "status": "error",
                "error": f"{tool} failed (exit {ended.exit_code})",
                "usage": ended.usage(),
            }
        return {**answer, "usage": ended.usage()}

    def _run(self, request: Message) -> Message:
        argv = tuple(str(part) for part in request["argv"])
        if request.get("block"):
            return self._run_block(argv, request)
        if request.get("check"):
            return self._run_check(argv, request)
        if request.get("shell_state"):
            return self._run_shell(argv, request)
        cwd = os.path.join(ROOT, str(request.get("folder") or ""))  # noqa: PTH118 - pathlib costs start time
        ended = run(
            argv,
            cwd=cwd,
            env=request["env"],
            walls=self._walls(request),
            wakeup=self._link,
            stopped=self._find_stop,
        )
        return ended.document()

    def _run_check(self, argv: tuple[str, ...], request: Message) -> Message:
        # They cost start time, and most workspaces run no check at first.
        from moothall.sandbox_runtime.checking import RunningCheck
        from moothall.sandbox_runtime.checks import with_reporters_path

        checking = RunningCheck(argv, request["check"])
        _put_aside(checking.folder)
        os.mkdir(checking.folder)  # noqa: PTH102 - pathlib costs start time
        begun = time.monotonic()

        def once(
            more: Mapping[str, str], seconds: float, other: tuple[str, ...] = ()
        ) -> CommandResult:
            walls = self._walls(request)
            walls.wall_seconds = seconds
            walls.most_seconds = max(seconds, walls.most_seconds - (time.monotonic() - begun))
            env = {
                **request["env"],
                "PATH": with_reporters_path(request["env"].get("PATH", "")),
                **more,
            }
            return run(
                other or argv,
                cwd=checking.cwd,
                env=env,
                walls=walls,
                wakeup=self._link,
                stopped=self._find_stop,
                reader=checking,
            )

        return checking.run(once, float(request["limits"]["wall_seconds"]))

    def _run_shell(self, argv: tuple[str, ...], request: Message) -> Message:
        from moothall.sandbox_runtime.shell import (
            Shell,
        )  # costs start time, and many workspaces run no command

        shell = self._shell = self._shell or Shell(int(self._options["memory_bytes"]))
        order = request["shell_state"]
        note, output = shell.begin(), shell.output()
        folder = ROOT if order["session"] else shell.folder
        try:
            with shell.git(str(order["history"])):
                ended = run(
                    argv,
                    cwd=folder,
                    env=request["env"],
                    walls=self._walls(request),
                    wakeup=self._link,
                    stopped=self._find_stop,
                    shell=output,
                )
        finally:
            output.close()
            shell.tidy()
        if not order["session"]:
            shell.end()
        return {**ended.document(), "folder": shell.folder, "left": ended.left, "note": note}

    def _run_block(self, argv: tuple[str, ...], request: Message) -> Message:
        """Run a command that asks something meanwhile, over a socket whose number is its last
        argument.
        """
        number = self._current
        talk = self._talk = RpcChannel(lambda message: _send(self._link, {**message, "id": number}))
        _put_aside(BLOCK)  # a pipe in its place would never be read
        with open(BLOCK, "x", encoding="utf-8") as file:  # noqa: PTH123 - pathlib costs start time
            json.dump(request["block"], file)
        try:
            ended = run(
                (*argv, str(talk.theirs)),
                cwd=ROOT,
                env=request["env"],
                walls=self._walls(request),
                wakeup=self._link,
                stopped=self._find_stop,
                side=talk,
            )
        finally:
            self._talk = None
            talk.close()
        return {**ended.document(), "end": talk.end}

    def _processes(self, _request: Message) -> Message:
        found = []
        for pid in sorted(map(int, (*others(), str(os.getpid())))):
            with (
                contextlib.suppress(OSError),
                open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file,  # noqa: PTH123
            ):
                found.append({"pid": pid, "name": file.read().strip()})
        return {"status": "success", "output": {"processes": found}}

    def _apply(self, request: Message) -> Message:
        """Write the files of a patch: deletions first, so that a folder can take a file's place and
        back.
        """
        changes = sorted(
            request["changes"], key=lambda change: (change["content"] is not None, change["path"])
        )
        for change in changes:
            path = clean_for_writing(unpack_path(change["path"]))
            if change["content"] is None:
                self._remove(path)
            else:
                self._put(path, change["mode"], binascii.a2b_base64(change["content"]))
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
                return  # a folder that still holds something, or gone already
            finally:
                os.close(parent)
            path = path.rpartition("/")[0]

    def _put(self, path: str, mode: str, content: bytes) -> None:
        parts = path.split("/")
        holder = os.dup(self._root)
        try:
            for part in parts[:-1]:
                if not _is_folder(part, holder):
                    _clear(part, holder)
                    os.mkdir(part, 0o755, dir_fd=holder)
                inner = os.open(
                    part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=holder
                )
                os.close(holder)
                holder = inner
            _clear(parts[-1], holder)
            if mode == _SYMLINK:
                os.symlink(content, parts[-1], dir_fd=holder)
                return
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(
                parts[-1], flags, 0o755 if mode == _EXECUTABLE else 0o644, dir_fd=holder
            )
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
        finally:
            os.close(holder)


def _send(link: int, message: Message) -> None:
    data = memoryview(pack(message))
    while data:
        data = data[os.write(link, data) :]


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _own_usage(before: float) -> dict[str, int]:
    """Return what the executor used itself; a part of a millisecond is one."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"cpu_ms": max(1, round((_cpu_seconds() - before) * 1000)), "max_rss_bytes": peak}


def _put_aside(path: str) -> None:
    """Make place for a file of ours, whatever code put there: a tree may be too deep to be removed
    in one go.
    """
    if os.path.lexists(path):
        os.rename(path, f"{path}.{os.urandom(8).hex()}")  # noqa: PTH104 - pathlib costs start time


def _is_folder(name: str, holder: int) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=holder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _clear(name: str, holder: int) -> None:
    if _is_folder(name, holder):
        import shutil  # costs start time, and patches seldom put a file where a folder was

        try:
            shutil.rmtree(name, dir_fd=holder)
        except RecursionError as error:
            raise ToolFailure(
                f"{name!r} is a folder too deep to be removed; remove it with code of your own"
            ) from error
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=holder)


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
    version = shut_in(options)
    _send(link, {"id": 0, "status": "ready", "landlock": version})
    try:
        Executor(link, options).serve()
    except (ProtocolError, ConnectionError) as error:
        sys.exit(f"executor: {error}")
