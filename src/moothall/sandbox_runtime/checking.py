"""A check as the executor runs it: its output is read while it comes, and its cases when it ended.
Standard library only.

A runner that tells nothing for too long hangs in a case: that case is red. So is one in which the
process ended; pytest goes on with the others then, in a new process.
"""

from __future__ import annotations

import glob
import os
import time

from moothall.sandbox_runtime import cases, checks
from moothall.sandbox_runtime.command_result import CommandResult
from moothall.sandbox_runtime.confinement import ROOT
from moothall.sandbox_runtime.findings import findings, is_linter
from moothall.sandbox_runtime.pressure import BUSY, GENEROUS, Contention
from moothall.sandbox_runtime.streams import Stream

TYPE_CHECKING = False  # the real one is in `typing`, which costs the executor start time
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

_STUCK = "stuck"
_OURS = (b"moothall_pytest", b"moothall_node")
_NO_REPORTERS = {
    "PYTEST_ADDOPTS": "",
    "PYTEST_PLUGINS": "",
    "NODE_OPTIONS": "",
    "MOOTHALL_NODE": "",
}
_PROCESSES = 6  # that pytest may lose, one after the other
_REPORTS = 200
_STEER = frozenset(
    {
        "conftest.py",
        "pytest.ini",
        ".pytest.ini",
        "pytest.toml",
        ".pytest.toml",
        "tox.ini",
        "setup.cfg",
        "pyproject.toml",
    }
) | {
    "sitecustomize.py",
    "usercustomize.py",
}
_OF_TESTS = frozenset(
    {"test", "tests", "testdata", "spec", "__tests__", "__snapshots__", "__fixtures__", "fixtures"}
)
_PASSED_BY = frozenset({"node_modules", "target", "__pycache__", "venv", "build", "dist"})
_SOURCES = (
    ".py",
    ".pyc",
    ".go",
    ".rs",
    ".js",
    ".cjs",
    ".mjs",
    ".jsx",
    ".ts",
    ".cts",
    ".mts",
    ".tsx",
)
_DATA, _SHOWN = (
    20_000,
    20,
)  # files of tests that are looked at, and of these the written ones that are told of
_LOOK_SECONDS = 1.0
_QUIET_FACTOR, _QUIET_MORE = (
    3,
    10.0,
)  # of a case's limit: what is set up for several cases may take longer


class RunningCheck:
    """One check. `told` is what the trusted side says of it: its name, the folder in the checkout
    where it runs, the limit of a case in seconds, and patterns of JUnit files that it writes.
    """

    def __init__(self, argv: tuple[str, ...], told: Mapping[str, Any]) -> None:
        self.folder = cases.FOLDER
        self.cwd = os.path.join(ROOT, str(told.get("folder") or ""))  # noqa: PTH118 - pathlib costs start time
        self._argv = argv
        self._name = str(told["name"])
        self._seconds = float(told["seconds"])
        self._reports = tuple(str(pattern) for pattern in told.get("reports") or ())
        self._cases = cases.Cases()
        self._stream = Stream(self._cases, argv)
        self._begun = time.time()
        self._looked = self._progressed = time.monotonic()
        self._progress = 0
        self._contended_before = 0.0
        self._remark = ""
        self._data: dict[str, int] = {}

    def feed(self, data: bytes) -> bytes:
        """Read output."""
        return self._stream.feed(data)

    def end(self) -> bytes:
        """Read the end of it."""
        return self._stream.end()

    def check_stuck(self, contended: float) -> str:
        """Return a status if the cases hang: none has been reported for too long since the first.
        Go has its own limit.

        contended: seconds so far in which the command waited for a core.
        """
        now = time.monotonic()
        if not self._seconds or now < self._looked + _LOOK_SECONDS or self._argv[:1] == ("go",):
            return ""
        self._looked = now
        if (progress := self._cases.told + _size(self.folder)) != self._progress:
            self._progress, self._progressed, self._contended_before = progress, now, contended
        most, waited = (GENEROUS - 1) * self._quiet_seconds, contended - self._contended_before
        if not progress or now <= self._progressed + self._quiet_seconds + min(waited, most):
            return ""
        self._remark = BUSY if waited > most else ""
        return _STUCK

    def forgive(self, seconds: float) -> None:
        """Take time out in which nothing ran."""
        self._progressed += seconds

    @property
    def _quiet_seconds(self) -> float:
        return _QUIET_FACTOR * self._seconds + _QUIET_MORE

    def run(self, once: Callable[..., CommandResult], seconds: float) -> dict[str, Any]:
        """Run it by `once`, given more of the environment, the seconds that are left and a command
        that is not the usual one, and return what came of it.
        """
        begun, contention = time.monotonic(), Contention()

        def left() -> float:
            return seconds - (time.monotonic() - begun) + contention.seconds()

        self._data = {} if is_linter(self._argv) else data_of_tests(ROOT)
        ended = once({}, seconds)
        if (
            not self._cases.told
            and not _size(self.folder)
            and any(name in ended.output for name in _OURS)
        ):
            ended = once(_NO_REPORTERS, left())  # it doesn't find our reporters
        for _ in range(_PROCESSES):
            cases.read_folder(self._cases, self.folder)
            if not checks.is_pytest(self._argv) or not self._is_cut_short(ended) or left() <= 0:
                break
            self._stop(ended)
            if written := _steering_file(self.cwd, self._begun) or _written_file(
                checks.SITE, self._begun
            ):
                self._cases.tell(
                    written,
                    cases.ERRORED,
                    said="it steers the runner, was written while that ran, and is not run with",
                )
                break
            self._progressed, self._contended_before = time.monotonic(), 0.0
            ended = _join(ended, once({"MOOTHALL_AGAIN": "1"}, left()))
        return self._answer(ended)

    def _is_cut_short(self, ended: CommandResult) -> bool:
        """Whether the process ended within a case."""
        return (
            ended.status in {"success", _STUCK}
            and not self._cases.ended
            and bool(self._cases.begun)
        )

    def _stop(self, ended: CommandResult) -> None:
        if ended.status == "success":
            self._cases.stop(f"the process ended in it, with exit code {ended.exit_code}")
            return
        limit = (
            f"hit the limit of {self._quiet_seconds:g} s{self._remark}"
            if ended.status == _STUCK
            else f"was stopped: {ended.status}"
        )
        if not self._cases.begun:
            self._cases.tell(self._name, cases.ERRORED, said=limit)
        self._cases.stop(limit)

    def _answer(self, ended: CommandResult) -> dict[str, Any]:
        if ended.status == _STUCK or (
            self._cases.begun and (ended.status != "success" or self._is_cut_short(ended))
        ):
            self._stop(ended)
        found = self._cases
        if self._reports:
            found = cases.Cases()
            for path in self._find_reports():
                cases.read_junit(found, path)
        for path in [path for path, at in self._data.items() if _changed(path) != at][:_SHOWN]:
            found.tell(path := os.path.relpath(path, ROOT), cases.SKIPPED)
            found.said[path] = cases.WRITTEN
        answer = ended.document()
        linted = findings(answer["output"]) if is_linter(self._argv) and ended.exit_code else []
        if ended.status == _STUCK:
            answer["status"], answer["exit_code"] = "success", 1
        answer["cases"] = {} if is_linter(self._argv) else found.results
        answer["details"], answer["durations"], answer["findings"] = found.said, found.ms, linted
        told = checks.verdict(self._argv, answer["exit_code"], answer["cases"])
        answer["verdict"] = told if answer["status"] == "success" else cases.ERRORED
        return answer

    def _find_reports(self) -> list[str]:
        """JUnit files that this run wrote."""
        found = []
        for pattern in self._reports:
            for path in glob.iglob(os.path.join(glob.escape(self.cwd), pattern), recursive=True):  # noqa: PTH118, PTH207 - as above
                try:
                    if os.lstat(path).st_mtime >= self._begun - 2:
                        found.append(path)
                except OSError:
                    continue
                if len(found) >= _REPORTS:
                    return found
        return found


def data_of_tests(top: str) -> dict[str, int]:
    """When the data that lie with tests were last changed: what is expected may stand there, and
    nobody is to write it meanwhile.
    """
    found: dict[str, int] = {}
    for at, folders, names in os.walk(top):
        folders[:] = [
            name for name in folders if name not in _PASSED_BY and not name.startswith(".")
        ]
        if not _OF_TESTS.isdisjoint(at.removeprefix(top).split("/")):
            paths = (os.path.join(at, name) for name in names if not name.endswith(_SOURCES))  # noqa: PTH118 - as above
            found |= {path: _changed(path) for path in paths}
        if len(found) > _DATA:
            break
    return found


def _changed(path: str) -> int:
    """When a file was changed in any way, 0 where it is gone."""
    try:
        return os.lstat(path).st_ctime_ns
    except OSError:
        return 0


def _steering_file(top: str, since: float) -> str:
    """Return the first file below `top` that steers a runner of Python and was written since, ''
    where there is none.
    """
    for at, _, names in os.walk(top):
        for name in names:
            path = os.path.join(at, name)  # noqa: PTH118 - as above
            if (name in _STEER or name.endswith(".pth")) and os.lstat(path).st_ctime >= since:
                return os.path.relpath(path, top)
    return ""


def _written_file(top: str, since: float) -> str:
    """Return the first file below `top` that was written after `since`, or ''."""
    for at, _, names in os.walk(top):
        for name in names:
            path = os.path.join(at, name)  # noqa: PTH118 - as above
            if os.lstat(path).st_ctime >= since:
                return path
    return ""


def _join(first: CommandResult, second: CommandResult) -> CommandResult:
    """A run that went on in another process, as one."""
    ended = second.status == "success" and first.status in {"success", _STUCK}
    return CommandResult(
        status=second.status,
        exit_code=(1 if second.exit_code in {0, 1, 5} else second.exit_code)
        if ended
        else second.exit_code,
        output=first.output + b"\n" + second.output,
        total=first.total + second.total,
        seconds=first.seconds + second.seconds,
        cpu_ms=first.cpu_ms + second.cpu_ms,
        max_rss_bytes=max(first.max_rss_bytes, second.max_rss_bytes),
        contended=first.contended + second.contended,
    )


def _size(folder: str) -> int:
    """Bytes that reporters wrote."""
    try:
        with os.scandir(folder) as entries:
            return sum(
                entry.stat(follow_symlinks=False).st_size
                for entry, _ in zip(entries, range(_REPORTS), strict=False)
            )
    except OSError:
        return 0
