"""Replaces `python -m unittest` in a sandbox: reports each case as a line of JSON, and stops a case
at its time limit.

Supports Python 3.7 and later. The lines are those of moothall_pytest.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
import unittest

import moothall_reporter  # type: ignore[import-not-found] # beside it, on the path of the sandbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FOLDER = os.environ.pop("MOOTHALL_REPORTS", "")
SECONDS = float(os.environ.pop("MOOTHALL_CASE_SECONDS", "0") or 0)
_MIN_SECONDS = 2.0
_DETAIL_CHARS = 6000
_WORST = ("skipped", "passed", "failed", "errored")
_NOT_LOADED = "unittest.loader._FailedTest."


class HitLimit(BaseException):
    """A case took too long. Not an `Exception`, which the case itself may catch."""


class Result(unittest.TextTestResult):
    """unittest's own result, which also writes a line for each case."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lines = moothall_reporter.Lines(FOLDER, "unittest")
        self._seconds = SECONDS
        self._result, self._detail, self._started_at = "", "", 0.0

    def _write_line(self, **line: object) -> None:
        self._lines.write(**line)

    def _report_result(self, test: Any, result: str, detail: str = "") -> None:
        if not self._started_at:  # set-up of a class or module, or a failed import
            name = test.id()
            case = (
                name[len(_NOT_LOADED) :]
                if name.startswith(_NOT_LOADED)
                else name.partition("(")[2].rstrip(")") or name
            )
            self._write_line(case=case, result=result, ms=0, detail=detail[-_DETAIL_CHARS:])
        elif _WORST.index(result) >= _WORST.index(self._result or "skipped"):
            self._result, self._detail = result, detail or self._detail

    def startTest(self, test: Any) -> None:
        super().startTest(test)
        self._result, self._detail, self._started_at = "", "", time.monotonic()
        self._write_line(start=_name(test))
        if self._seconds > 0 and signal.getsignal(signal.SIGALRM) in (signal.SIG_DFL, None):
            signal.signal(signal.SIGALRM, self._stop)
            self._clock = moothall_reporter.Clock(self._seconds)

    def _stop(self, _number: int, _frame: object) -> None:
        if self._started_at and not self._clock.has_more_time():
            seconds, self._seconds = self._seconds, max(self._seconds / 2, _MIN_SECONDS)
            raise HitLimit(f"hit the limit of {seconds:g} s{self._clock.remark}")

    def stopTest(self, test: Any) -> None:
        elapsed, self._started_at = time.monotonic() - self._started_at, 0.0
        if signal.getsignal(signal.SIGALRM) == self._stop:
            moothall_reporter.stop()
        extra = {"detail": self._detail[-_DETAIL_CHARS:]} if self._detail else {}
        self._write_line(
            case=_name(test), result=self._result or "passed", ms=round(elapsed * 1000), **extra
        )
        super().stopTest(test)

    def addSuccess(self, test: Any) -> None:
        super().addSuccess(test)
        self._report_result(test, "passed")

    def addFailure(self, test: Any, err: Any) -> None:
        super().addFailure(test, err)
        self._report_result(test, "failed", _text(err))

    def addError(self, test: Any, err: Any) -> None:
        super().addError(test, err)
        self._report_result(test, "errored", _text(err))

    def addSkip(self, test: Any, reason: str) -> None:
        super().addSkip(test, reason)
        self._report_result(test, "skipped")

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        super().addExpectedFailure(test, err)
        self._report_result(test, "skipped")

    def addUnexpectedSuccess(self, test: Any) -> None:
        super().addUnexpectedSuccess(test)
        self._report_result(test, "failed", "unexpected success")

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        super().addSubTest(test, subtest, err)
        if err is not None:
            self._report_result(test, "failed", _text(err))


def _text(err: Any) -> str:
    return "".join(traceback.format_exception(*err))


def _name(test: Any) -> str:
    name = str(test.id())
    return name[len(_NOT_LOADED) :] if name.startswith(_NOT_LOADED) else name


class Runner(unittest.TextTestRunner):
    """unittest's own runner, with this result class."""

    resultclass = Result


if __name__ == "__main__":
    os.environ.pop("PYTHONSAFEPATH", None)  # for this process only
    if sys.path[:1] != [os.getcwd()] and "" not in sys.path[:1]:
        sys.path.insert(0, os.getcwd())  # as `-m unittest` does, and not before unittest was loaded
    unittest.main(module=None, argv=["python -m unittest", *sys.argv[1:]], testRunner=Runner)
