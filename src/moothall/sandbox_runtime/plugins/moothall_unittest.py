"""Stands in for `python -m unittest` in a sandbox: tells each case as a line of JSON, and stops a
case at its time limit.

Runs under Python 3.7 and on. The lines are those of moothall_pytest.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
import unittest

import moothall_clock  # type: ignore[import-not-found] # beside it, on the path of the sandbox
from moothall_lines import Lines  # type: ignore[import-not-found] # as above

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FOLDER = os.environ.pop("MOOTHALL_REPORTS", "")
SECONDS = float(os.environ.pop("MOOTHALL_CASE_SECONDS", "0") or 0)
_SHORTEST = 2.0
_SAID = 6000
_WORST = ("skipped", "passed", "failed", "errored")
_NOT_LOADED = "unittest.loader._FailedTest."


class HitLimit(BaseException):
    """A case took too long. No Exception, which the case itself may catch."""


class Result(unittest.TextTestResult):
    """What unittest shows, and a line a case."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lines = Lines(FOLDER, "unittest")
        self._seconds = SECONDS
        self._result, self._said, self._begun = "", "", 0.0

    def _write(self, **line: object) -> None:
        self._lines.write(**line)

    def _tell(self, test: Any, result: str, said: str = "") -> None:
        if not self._begun:  # what was set up for a class or module, or could not be loaded
            name = test.id()
            case = (
                name[len(_NOT_LOADED) :]
                if name.startswith(_NOT_LOADED)
                else name.partition("(")[2].rstrip(")") or name
            )
            self._write(case=case, result=result, ms=0, said=said[-_SAID:])
        elif _WORST.index(result) >= _WORST.index(self._result or "skipped"):
            self._result, self._said = result, said or self._said

    def startTest(self, test: Any) -> None:
        super().startTest(test)
        self._result, self._said, self._begun = "", "", time.monotonic()
        self._write(start=_name(test))
        if self._seconds > 0 and signal.getsignal(signal.SIGALRM) in (signal.SIG_DFL, None):
            signal.signal(signal.SIGALRM, self._stop)
            self._clock = moothall_clock.Clock(self._seconds)

    def _stop(self, _number: int, _frame: object) -> None:
        if self._begun and not self._clock.has_more_time():
            seconds, self._seconds = self._seconds, max(self._seconds / 2, _SHORTEST)
            raise HitLimit(f"hit the limit of {seconds:g} s{self._clock.remark}")

    def stopTest(self, test: Any) -> None:
        took, self._begun = time.monotonic() - self._begun, 0.0
        if signal.getsignal(signal.SIGALRM) == self._stop:
            moothall_clock.stop()
        more = {"said": self._said[-_SAID:]} if self._said else {}
        self._write(
            case=_name(test), result=self._result or "passed", ms=round(took * 1000), **more
        )
        super().stopTest(test)

    def addSuccess(self, test: Any) -> None:
        super().addSuccess(test)
        self._tell(test, "passed")

    def addFailure(self, test: Any, err: Any) -> None:
        super().addFailure(test, err)
        self._tell(test, "failed", _text(err))

    def addError(self, test: Any, err: Any) -> None:
        super().addError(test, err)
        self._tell(test, "errored", _text(err))

    def addSkip(self, test: Any, reason: str) -> None:
        super().addSkip(test, reason)
        self._tell(test, "skipped")

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        super().addExpectedFailure(test, err)
        self._tell(test, "skipped")

    def addUnexpectedSuccess(self, test: Any) -> None:
        super().addUnexpectedSuccess(test)
        self._tell(test, "failed", "unexpected success")

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        super().addSubTest(test, subtest, err)
        if err is not None:
            self._tell(test, "failed", _text(err))


def _text(err: Any) -> str:
    return "".join(traceback.format_exception(*err))


def _name(test: Any) -> str:
    name = str(test.id())
    return name[len(_NOT_LOADED) :] if name.startswith(_NOT_LOADED) else name


class Runner(unittest.TextTestRunner):
    """unittest's own, with that result."""

    resultclass = Result


if __name__ == "__main__":
    os.environ.pop("PYTHONSAFEPATH", None)  # of this process alone
    if sys.path[:1] != [os.getcwd()] and "" not in sys.path[:1]:
        sys.path.insert(0, os.getcwd())  # as `-m unittest` does, and not before unittest was loaded
    unittest.main(module=None, argv=["python -m unittest", *sys.argv[1:]], testRunner=Runner)
