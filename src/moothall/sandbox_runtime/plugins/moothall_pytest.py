"""A pytest plugin, loaded in a sandbox by `-p`: reports each case as a line of JSON, and stops a
case at its time limit.

Supports Python 3.7 and later and pytest 5 and later. Lines: {"start": id}, {"case": id, "result":
passed|failed|errored|skipped, "ms": …, "detail": …}, {"end": exit status}.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import unittest

import moothall_reporter  # type: ignore[import-not-found] # beside it, on the path of the sandbox
import pytest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

# Removed from the environment, so that runners started by tests report nothing.
FOLDER = os.environ.pop("MOOTHALL_REPORTS", "")
SECONDS = float(os.environ.pop("MOOTHALL_CASE_SECONDS", "0") or 0)
IS_RERUN = bool(os.environ.pop("MOOTHALL_AGAIN", ""))
if FOLDER:
    os.environ.pop("PYTEST_ADDOPTS", None)
    if os.environ.get("PYTEST_PLUGINS") == "moothall_pytest":
        del os.environ["PYTEST_PLUGINS"]

_MIN_SECONDS = 2.0
_SETUP_FACTOR = 3  # relative to the limit, because set-up for many cases may take longer
_DETAIL_CHARS = 6000
_WORST = ("skipped", "passed", "failed", "errored")


def _clip(text: str) -> str:
    return (
        text
        if len(text) <= _DETAIL_CHARS
        else text[: _DETAIL_CHARS // 3] + "\n[…]\n" + text[-_DETAIL_CHARS * 2 // 3 :]
    )


class Limit:
    """Ends code that runs for too long, by SIGALRM. After each time, the limit is halved: the first
    endless loop is reported, and further ones cost less.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.longest = 0.0

    def apply(self, factor: float = 1.0) -> Iterator[None]:
        """A generator with one yield; the limit holds within it."""
        seconds = self.seconds * factor
        clock: Any = None

        def stop(_number: int, _frame: object) -> None:
            if clock and not clock.has_more_time():
                self.seconds = max(self.seconds / 2, _MIN_SECONDS, 5 * self.longest)
                pytest.fail(f"hit the limit of {seconds:g} s{clock.remark}")

        try:
            is_free = seconds > 0 and signal.getsignal(signal.SIGALRM) in (signal.SIG_DFL, None)
            if is_free:
                signal.signal(signal.SIGALRM, stop)
        except ValueError:  # not in the main thread
            is_free = False
        if not is_free:
            yield
            return
        clock = moothall_reporter.Clock(seconds)
        start_time = time.monotonic()
        try:
            yield
        finally:
            clock = None
            if signal.getsignal(signal.SIGALRM) is stop:
                moothall_reporter.stop()
        elapsed = time.monotonic() - start_time
        if factor == 1.0 and elapsed < seconds:
            self.longest = max(self.longest, elapsed)


class Limits:
    """Applies the limit to the phases of each case, and to the import of each file."""

    def __init__(self, config: Any, seconds: float) -> None:
        self._limit = Limit(seconds)
        self._has_own_timeout = bool(getattr(config, "_env_timeout", None))

    def _apply_limit(self, item: Any, factor: float = 1.0) -> Iterator[None]:
        if self._has_own_timeout or item.get_closest_marker(
            "timeout"
        ):  # pytest-timeout limits it, with the same signal
            yield
            return
        yield from self._limit.apply(factor)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_setup(self, item: Any) -> Iterator[None]:
        yield from self._apply_limit(item, _SETUP_FACTOR)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item: Any) -> Iterator[None]:
        yield from self._apply_limit(item)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_teardown(self, item: Any) -> Iterator[None]:
        yield from self._apply_limit(item, _SETUP_FACTOR)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_make_collect_report(self, collector: Any) -> Iterator[None]:
        collect = collector.collect

        def collect_safely() -> Any:
            """A file that ends the process when it is imported is one failed file: pytest would end
            with it, and collect no other.
            """
            try:
                return list(collect())
            except SystemExit as error:
                raise collector.CollectError(f"it ended the process: {error!r}") from error

        collector.collect = collect_safely
        yield from self._limit.apply(_SETUP_FACTOR)


class Main(unittest.TestProgram):
    """`unittest.main()` at the end of a file, without a check for `__main__`, must not run when the
    file is imported.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        caller = sys._getframe(1)  # noqa: SLF001 - CPython's way to find the caller
        if caller.f_code.co_name != "<module>" or caller.f_globals.get("__name__") == "__main__":
            super().__init__(*args, **kwargs)


def hide_test_name() -> None:
    """Set pytest's environment variable for the current test without the test's name. Code may
    check whether a test runs, but its behaviour must not depend on the test's name.
    """
    from _pytest import runner

    update_variable = getattr(runner, "_update_current_test_var", None)
    if update_variable is None:
        return

    def hide_name(item: Any, phase: Any) -> None:
        update_variable(item, phase)
        if phase:
            os.environ["PYTEST_CURRENT_TEST"] = f"tests ({phase})"

    setattr(runner, "_update_current_test_var", hide_name)  # noqa: B010 - older ones have none


class Workers:
    """Passes the limit to the workers of pytest-xdist."""

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["moothall_seconds"] = SECONDS


class Reporter:
    """Writes the lines."""

    def __init__(self, folder: str, *, is_rerun: bool) -> None:
        self._earlier = _earlier_cases(folder) if is_rerun else frozenset()
        self._lines = moothall_reporter.Lines(folder, "pytest")
        self._results: dict[str, str] = {}
        self._details: dict[str, str] = {}
        self._seconds: dict[str, float] = {}

    def _write_line(self, **line: object) -> None:
        self._lines.write(**line)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        if not self._earlier:
            return
        deselected = [item for item in items if item.nodeid in self._earlier]
        items[:] = [item for item in items if item.nodeid not in self._earlier]
        config.hook.pytest_deselected(items=deselected)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write_line(start=nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        case = report.nodeid
        result = report.outcome
        if report.when != "call":
            result = {"passed": "", "failed": "errored"}.get(result, result)
        if result in _WORST and _WORST.index(result) >= _WORST.index(
            self._results.get(case, "skipped")
        ):
            self._results[case] = result
        if result in ("failed", "errored") and case not in self._details:
            self._details[case] = _clip(_text(report))
        self._seconds[case] = self._seconds.get(case, 0.0) + getattr(report, "duration", 0.0)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        result, detail, seconds = (
            self._results.pop(nodeid, ""),
            self._details.pop(nodeid, ""),
            self._seconds.pop(nodeid, 0.0),
        )
        if result:
            extra = {"detail": detail} if detail and result != "passed" else {}
            self._write_line(case=nodeid, result=result, ms=round(seconds * 1000), **extra)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._write_line(
                case=report.nodeid or ".", result="errored", ms=0, detail=_clip(_text(report))
            )

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._write_line(end=int(exitstatus))


def _text(report: Any) -> str:
    sections = "".join(
        f"\n--- {name} ---\n{text[-1500:]}" for name, text in getattr(report, "sections", ())
    )
    return f"{report.longrepr}{sections}"


def _earlier_cases(folder: str) -> frozenset[str]:
    """Return the cases that an earlier process has reported or started."""
    case_ids = set()
    for name in os.listdir(folder):
        if name.startswith("pytest-"):
            with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
                for line in file:
                    try:
                        event = json.loads(line)
                        case_ids.add(event.get("case") or event.get("start") or "")
                    except (ValueError, AttributeError):
                        continue
    return frozenset(case_ids)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: Any) -> None:
    """Disable coverage, which slows tests down and fails runs of a part of the tests."""
    early_config.known_args_namespace.no_cov = True


def pytest_configure(config: Any) -> None:
    """Register the plugins, in the main process and its workers."""
    worker = getattr(config, "workerinput", None)
    if worker is not None or FOLDER:
        unittest.main = Main
        hide_test_name()
    if worker is not None:
        config.pluginmanager.register(
            Limits(config, float(worker.get("moothall_seconds", 0))), "moothall-limits"
        )
    elif FOLDER:
        config.option.maxfail = 0  # report all cases, whatever the project's options
        config.pluginmanager.register(Limits(config, SECONDS), "moothall-limits")
        config.pluginmanager.register(Workers(), "moothall-workers")
        config.pluginmanager.register(Reporter(FOLDER, is_rerun=IS_RERUN), "moothall-reporter")
