"""A check in the executor. Its output is read while it runs, and its cases when it has ended.
Standard library only.

If a runner reports nothing for too long, it hangs in a case, and the case fails. A case in
which the process ends fails too; pytest then continues with the other cases in a new process.
"""

from __future__ import annotations

import glob
import os
import time

from moothall.sandbox_runtime import cases, checks
from moothall.sandbox_runtime.cases import findings, is_linter
from moothall.sandbox_runtime.checks import CommandResult
from moothall.sandbox_runtime.confinement import ROOT
from moothall.sandbox_runtime.processes import BUSY, GENEROUS, Contention
from moothall.sandbox_runtime.streams import Stream

TYPE_CHECKING = False  # the real one is in `typing`, which costs the executor start time

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


_STUCK = "stuck"
_REPORTER_NAMES = (b"moothall_pytest", b"moothall_node")
_NO_REPORTERS = {
    "PYTEST_ADDOPTS": "",
    "PYTEST_PLUGINS": "",
    "NODE_OPTIONS": "",
    "MOOTHALL_NODE": "",
}
_MAX_PROCESSES = 6  # the maximum number of pytest processes, one after the other
_MAX_REPORTS = 200
_RUNNER_CONFIGURATION = frozenset(
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
_TEST_FOLDERS = frozenset(
    {"test", "tests", "testdata", "spec", "__tests__", "__snapshots__", "__fixtures__", "fixtures"}
)
_SKIPPED_FOLDERS = frozenset({"node_modules", "target", "__pycache__", "venv", "build", "dist"})
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
_MAX_DATA_FILES, _MAX_WRITTEN_SHOWN = (
    20_000,
    20,
)  # test data files that are watched, and written ones that are reported
_POLL_SECONDS = 1.0
_QUIET_FACTOR, _QUIET_EXTRA_SECONDS = (
    3,
    10.0,
)  # relative to a case's limit, because set-up for several cases may take longer


class RunningCheck:
    """A running check. `spec` is from the trusted side: the check's name, its folder in the
    checkout, the limit of a case in seconds, and patterns of JUnit files that it writes.
    """

    def __init__(self, argv: tuple[str, ...], spec: Mapping[str, Any]) -> None:
        self.folder = cases.FOLDER
        self.cwd = os.path.join(ROOT, str(spec.get("folder") or ""))  # noqa: PTH118 - pathlib costs start time
        self._argv = argv
        self._name = str(spec["name"])
        self._seconds = float(spec["seconds"])
        self._reports = tuple(str(pattern) for pattern in spec.get("reports") or ())
        self._cases = cases.Cases()
        self._stream = Stream(self._cases, argv)
        self._started_at = time.time()
        self._polled_at = self._progressed_at = time.monotonic()
        self._progress = 0
        self._contended_before = 0.0
        self._busy_note = ""
        self._data_times: dict[str, int] = {}

    def feed(self, data: bytes) -> bytes:
        """Read output."""
        return self._stream.feed(data)

    def end(self) -> bytes:
        """Read the end of the output."""
        return self._stream.end()

    def check_stuck(self, contended: float) -> str:
        """Return a status if the cases hang: after the first one, nothing has been reported for too
        long. Go has its own limit.

        contended: seconds so far in which the command waited for a core.
        """
        now = time.monotonic()
        if not self._seconds or now < self._polled_at + _POLL_SECONDS or self._argv[:1] == ("go",):
            return ""
        self._polled_at = now
        if (progress := self._cases.event_count + _reported_bytes(self.folder)) != self._progress:
            self._progress, self._progressed_at, self._contended_before = progress, now, contended
        max_extension, waited = (
            (GENEROUS - 1) * self._quiet_seconds,
            contended - self._contended_before,
        )
        if not progress or now <= self._progressed_at + self._quiet_seconds + min(
            waited, max_extension
        ):
            return ""
        self._busy_note = BUSY if waited > max_extension else ""
        return _STUCK

    def extend_for_stall(self, seconds: float) -> None:
        """Do not count a time in which nothing ran."""
        self._progressed_at += seconds

    @property
    def _quiet_seconds(self) -> float:
        return _QUIET_FACTOR * self._seconds + _QUIET_EXTRA_SECONDS

    def run_to_end(self, run_once: Callable[..., CommandResult], seconds: float) -> dict[str, Any]:
        """Run the check and return its result. `run_once` is called with additional environment
        variables, the remaining seconds and a command that replaces the usual one.
        """
        start_time, contention = time.monotonic(), Contention()

        def remaining_seconds() -> float:
            return seconds - (time.monotonic() - start_time) + contention.seconds()

        self._data_times = {} if is_linter(self._argv) else data_of_tests(ROOT)
        result = run_once({}, seconds)
        if (
            not self._cases.event_count
            and not _reported_bytes(self.folder)
            and any(name in result.output for name in _REPORTER_NAMES)
        ):
            result = run_once(
                _NO_REPORTERS, remaining_seconds()
            )  # the check does not find our reporters
        for _ in range(_MAX_PROCESSES):
            cases.read_folder(self._cases, self.folder)
            if (
                not checks.is_pytest(self._argv)
                or not self._is_cut_short(result)
                or remaining_seconds() <= 0
            ):
                break
            self._stop(result)
            if written_file := _steering_file(self.cwd, self._started_at) or _written_file(
                checks.SITE, self._started_at
            ):
                self._cases.add_result(
                    written_file,
                    cases.ERRORED,
                    detail="it steers the runner, was written while that ran, and is not run with",
                )
                break
            self._progressed_at, self._contended_before = time.monotonic(), 0.0
            result = _join_results(result, run_once({"MOOTHALL_AGAIN": "1"}, remaining_seconds()))
        return self._answer(result)

    def _is_cut_short(self, result: CommandResult) -> bool:
        """Return whether the process ended within a case."""
        return (
            result.status in {"success", _STUCK}
            and not self._cases.is_finished
            and bool(self._cases.running)
        )

    def _stop(self, result: CommandResult) -> None:
        if result.status == "success":
            self._cases.fail_running(f"the process ended in it, with exit code {result.exit_code}")
            return
        limit = (
            f"hit the limit of {self._quiet_seconds:g} s{self._busy_note}"
            if result.status == _STUCK
            else f"was stopped: {result.status}"
        )
        if not self._cases.running:
            self._cases.add_result(self._name, cases.ERRORED, detail=limit)
        self._cases.fail_running(limit)

    def _answer(self, result: CommandResult) -> dict[str, Any]:
        if result.status == _STUCK or (
            self._cases.running and (result.status != "success" or self._is_cut_short(result))
        ):
            self._stop(result)
        all_cases = self._cases
        if self._reports:
            all_cases = cases.Cases()
            for path in self._find_reports():
                cases.read_junit(all_cases, path)
        for path in [
            path
            for path, change_time in self._data_times.items()
            if _change_time(path) != change_time
        ][:_MAX_WRITTEN_SHOWN]:
            all_cases.add_result(path := os.path.relpath(path, ROOT), cases.SKIPPED)
            all_cases.details[path] = cases.WRITTEN
        answer = result.document()
        lint_findings = (
            findings(answer["output"]) if is_linter(self._argv) and result.exit_code else []
        )
        if result.status == _STUCK:
            answer["status"], answer["exit_code"] = "success", 1
        answer["cases"] = {} if is_linter(self._argv) else all_cases.results
        answer["details"], answer["durations"], answer["findings"] = (
            all_cases.details,
            all_cases.ms,
            lint_findings,
        )
        verdict = checks.verdict(self._argv, answer["exit_code"], answer["cases"])
        answer["verdict"] = verdict if answer["status"] == "success" else cases.ERRORED
        return answer

    def _find_reports(self) -> list[str]:
        """Return the JUnit files that this run wrote."""
        reports = []
        for pattern in self._reports:
            for path in glob.iglob(os.path.join(glob.escape(self.cwd), pattern), recursive=True):  # noqa: PTH118, PTH207 - as above
                try:
                    if os.lstat(path).st_mtime >= self._started_at - 2:
                        reports.append(path)
                except OSError:
                    continue
                if len(reports) >= _MAX_REPORTS:
                    return reports
        return reports


def data_of_tests(top: str) -> dict[str, int]:
    """Return the change times of test data files. Such files may hold expected results, so nothing
    may write to them during a run.
    """
    change_times: dict[str, int] = {}
    for folder, folders, names in os.walk(top):
        folders[:] = [
            name for name in folders if name not in _SKIPPED_FOLDERS and not name.startswith(".")
        ]
        if not _TEST_FOLDERS.isdisjoint(folder.removeprefix(top).split("/")):
            paths = (os.path.join(folder, name) for name in names if not name.endswith(_SOURCES))  # noqa: PTH118 - as above
            change_times |= {path: _change_time(path) for path in paths}
        if len(change_times) > _MAX_DATA_FILES:
            break
    return change_times


def _change_time(path: str) -> int:
    """Return the time of a file's last change of any kind, 0 if it is missing."""
    try:
        return os.lstat(path).st_ctime_ns
    except OSError:
        return 0


def _steering_file(top: str, since: float) -> str:
    """Return the first file below `top` that configures a Python test runner and was written since,
    or ''.
    """
    for folder, _, names in os.walk(top):
        for name in names:
            path = os.path.join(folder, name)  # noqa: PTH118 - as above
            if (name in _RUNNER_CONFIGURATION or name.endswith(".pth")) and os.lstat(
                path
            ).st_ctime >= since:
                return os.path.relpath(path, top)
    return ""


def _written_file(top: str, since: float) -> str:
    """Return the first file below `top` that was written after `since`, or ''."""
    for folder, _, names in os.walk(top):
        for name in names:
            path = os.path.join(folder, name)  # noqa: PTH118 - as above
            if os.lstat(path).st_ctime >= since:
                return path
    return ""


def _join_results(first: CommandResult, second: CommandResult) -> CommandResult:
    """Join the results of a run that continued in another process."""
    both_finished = second.status == "success" and first.status in {"success", _STUCK}
    return CommandResult(
        status=second.status,
        exit_code=(1 if second.exit_code in {0, 1, 5} else second.exit_code)
        if both_finished
        else second.exit_code,
        output=first.output + b"\n" + second.output,
        total=first.total + second.total,
        seconds=first.seconds + second.seconds,
        cpu_ms=first.cpu_ms + second.cpu_ms,
        max_rss_bytes=max(first.max_rss_bytes, second.max_rss_bytes),
        contended=first.contended + second.contended,
    )


def _reported_bytes(folder: str) -> int:
    """Return the number of bytes that reporters wrote."""
    try:
        with os.scandir(folder) as entries:
            return sum(
                entry.stat(follow_symlinks=False).st_size
                for entry, _ in zip(entries, range(_MAX_REPORTS), strict=False)
            )
    except OSError:
        return 0
