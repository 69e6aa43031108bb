"""A pytest plugin, loaded in a sandbox by `-p`: tells each case as a line of JSON, and stops a case
at its time limit.

Runs under whatever Python (3.7 on) and pytest (5 on) a project has, so it uses nothing newer.
Lines: {"start": id}, {"case": id, "result": passed|failed|errored|skipped, "ms": …, "said": …},
{"end": exit status}.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import unittest

import moothall_clock  # type: ignore[import-not-found] # beside it, on the path of the sandbox
import pytest
from moothall_lines import Lines  # type: ignore[import-not-found] # as above

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

# Taken out of the environment, so that what the tests start themselves is not told of.
FOLDER = os.environ.pop("MOOTHALL_REPORTS", "")
SECONDS = float(os.environ.pop("MOOTHALL_CASE_SECONDS", "0") or 0)
AGAIN = bool(os.environ.pop("MOOTHALL_AGAIN", ""))
if FOLDER:
    os.environ.pop("PYTEST_ADDOPTS", None)
    if os.environ.get("PYTEST_PLUGINS") == "moothall_pytest":
        del os.environ["PYTEST_PLUGINS"]

_SHORTEST = 2.0
_SETUP_FACTOR = 3  # of a limit: what is set up for many cases may take longer than one
_SAID = 6000
_WORST = ("skipped", "passed", "failed", "errored")


def _clip(text: str) -> str:
    return text if len(text) <= _SAID else text[: _SAID // 3] + "\n[…]\n" + text[-_SAID * 2 // 3 :]


class Limit:
    """Ends what runs for too long, by SIGALRM. After each that did, the limit is halved: one loop
    is found, ten would cost.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.longest = 0.0

    def over(self, factor: float = 1.0) -> Iterator[None]:
        """A generator with one yield, within which the limit holds."""
        seconds = self.seconds * factor
        clock: Any = None

        def stop(_number: int, _frame: object) -> None:
            if clock and not clock.has_more_time():
                self.seconds = max(self.seconds / 2, _SHORTEST, 5 * self.longest)
                pytest.fail(f"hit the limit of {seconds:g} s{clock.remark}")

        try:
            free = seconds > 0 and signal.getsignal(signal.SIGALRM) in (signal.SIG_DFL, None)
            if free:
                signal.signal(signal.SIGALRM, stop)
        except ValueError:  # not in the main thread
            free = False
        if not free:
            yield
            return
        clock = moothall_clock.Clock(seconds)
        begun = time.monotonic()
        try:
            yield
        finally:
            clock = None
            if signal.getsignal(signal.SIGALRM) is stop:
                moothall_clock.stop()
        took = time.monotonic() - begun
        if factor == 1.0 and took < seconds:
            self.longest = max(self.longest, took)


class Limits:
    """Applies the limit to the parts of each case, and to the import of each file."""

    def __init__(self, config: Any, seconds: float) -> None:
        self._limit = Limit(seconds)
        self._theirs = bool(getattr(config, "_env_timeout", None))

    def _over(self, item: Any, factor: float = 1.0) -> Iterator[None]:
        if self._theirs or item.get_closest_marker(
            "timeout"
        ):  # pytest-timeout sees to it, with the same signal
            yield
            return
        yield from self._limit.over(factor)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_setup(self, item: Any) -> Iterator[None]:
        yield from self._over(item, _SETUP_FACTOR)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item: Any) -> Iterator[None]:
        yield from self._over(item)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_teardown(self, item: Any) -> Iterator[None]:
        yield from self._over(item, _SETUP_FACTOR)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_make_collect_report(self, collector: Any) -> Iterator[None]:
        collect = collector.collect

        def collect_safely() -> Any:
            """A file that ends the process when it is imported is one red file: pytest would end
            with it, and collect no other.
            """
            try:
                return list(collect())
            except SystemExit as error:
                raise collector.CollectError(f"it ended the process: {error!r}") from error

        collector.collect = collect_safely
        yield from self._limit.over(_SETUP_FACTOR)


class Main(unittest.TestProgram):
    """`unittest.main()` at the end of a file, without asking whether that is what was started, is
    not meant for who imports it.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        caller = sys._getframe(1)  # noqa: SLF001 - CPython's own way to ask who calls
        if caller.f_code.co_name != "<module>" or caller.f_globals.get("__name__") == "__main__":
            super().__init__(*args, **kwargs)


def name_no_test() -> None:
    """Say in the environment that a test runs, as pytest does, and not which: code may ask for the
    one, and answer by the other.
    """
    from _pytest import runner

    tell = getattr(runner, "_update_current_test_var", None)
    if tell is None:
        return

    def tell_no_name(item: Any, when: Any) -> None:
        tell(item, when)
        if when:
            os.environ["PYTEST_CURRENT_TEST"] = f"tests ({when})"

    setattr(runner, "_update_current_test_var", tell_no_name)  # noqa: B010 - older ones have none


class Workers:
    """Passes the limit on to the workers of pytest-xdist."""

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["moothall_seconds"] = SECONDS


class Reporter:
    """Writes the lines."""

    def __init__(self, folder: str, *, again: bool) -> None:
        self._done = _earlier_cases(folder) if again else frozenset()
        self._lines = Lines(folder, "pytest")
        self._results: dict[str, str] = {}
        self._said: dict[str, str] = {}
        self._seconds: dict[str, float] = {}

    def _write(self, **line: object) -> None:
        self._lines.write(**line)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        if not self._done:
            return
        gone = [item for item in items if item.nodeid in self._done]
        items[:] = [item for item in items if item.nodeid not in self._done]
        config.hook.pytest_deselected(items=gone)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write(start=nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        case = report.nodeid
        result = report.outcome
        if report.when != "call":
            result = {"passed": "", "failed": "errored"}.get(result, result)
        if result in _WORST and _WORST.index(result) >= _WORST.index(
            self._results.get(case, "skipped")
        ):
            self._results[case] = result
        if result in ("failed", "errored") and case not in self._said:
            self._said[case] = _clip(_text(report))
        self._seconds[case] = self._seconds.get(case, 0.0) + getattr(report, "duration", 0.0)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        result, said, seconds = (
            self._results.pop(nodeid, ""),
            self._said.pop(nodeid, ""),
            self._seconds.pop(nodeid, 0.0),
        )
        if result:
            more = {"said": said} if said and result != "passed" else {}
            self._write(case=nodeid, result=result, ms=round(seconds * 1000), **more)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._write(
                case=report.nodeid or ".", result="errored", ms=0, said=_clip(_text(report))
            )

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._write(end=int(exitstatus))


def _text(report: Any) -> str:
    sections = "".join(
        f"\n--- {name} ---\n{text[-1500:]}" for name, text in getattr(report, "sections", ())
    )
    return f"{report.longrepr}{sections}"


def _earlier_cases(folder: str) -> frozenset[str]:
    """The cases that were told of, or begun, before this process."""
    found = set()
    for name in os.listdir(folder):
        if name.startswith("pytest-"):
            with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
                for line in file:
                    try:
                        said = json.loads(line)
                        found.add(said.get("case") or said.get("start") or "")
                    except (ValueError, AttributeError):
                        continue
    return frozenset(found)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: Any) -> None:
    """Leave coverage out: it slows all down, and makes green runs red that are only a part of
    all.
    """
    early_config.known_args_namespace.no_cov = True


def pytest_configure(config: Any) -> None:
    """Begin, in the process that the command started and in its workers."""
    worker = getattr(config, "workerinput", None)
    if worker is not None or FOLDER:
        unittest.main = Main
        name_no_test()
    if worker is not None:
        config.pluginmanager.register(
            Limits(config, float(worker.get("moothall_seconds", 0))), "moothall-limits"
        )
    elif FOLDER:
        config.option.maxfail = 0  # all cases are told, whatever the project's options say
        config.pluginmanager.register(Limits(config, SECONDS), "moothall-limits")
        config.pluginmanager.register(Workers(), "moothall-workers")
        config.pluginmanager.register(Reporter(FOLDER, again=AGAIN), "moothall-reporter")
