"""Commands with a verdict: what is run for a check, and what its result means.

Standard library only: the report is read by the executor. Case ids are pytest's node ids; a test file
that cannot be collected is an errored case under the file's own path.
"""

from __future__ import annotations

import os
import stat
import time

TYPE_CHECKING = False  # the real one is in `typing`, which costs the executor start time
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

REPORT = "/tmp/moothall-report.xml"  # noqa: S108 - inside the sandbox, one command at a time
MAX_REPORT = 30_000_000
MAX_CASES = 20_000
MAX_CASE_ID = 500

PASSED, FAILED, ERRORED, SKIPPED, MISSING = "passed", "failed", "errored", "skipped", "missing"
_WORST = (SKIPPED, PASSED, FAILED, ERRORED)  # of a test that was reported twice
_GRAVEST = (PASSED, SKIPPED, FAILED, ERRORED)  # of what one report of a test says
_RESULTS = {"skipped": SKIPPED, "failure": FAILED, "error": ERRORED}
_PIECE, _DEEPEST, _SECONDS = 1 << 16, 20, 5.0
_PYTEST_NO_TESTS = 5
_PYTEST_FAILED = 1

# What the tools tests.* run where the profile says nothing better.
DEFAULTS: Mapping[str, tuple[str, ...]] = {
    "tests.pytest": ("python3", "-m", "pytest"),
    "tests.npm": ("npm", "test"),
    "tests.go": ("go", "test", "./..."),
    "tests.cargo": ("cargo", "test"),
    "tests.make": ("make",),
}


def is_pytest(argv: Sequence[str]) -> bool:
    """Whether a command is pytest, so that its cases can be read."""
    if not argv:
        return False
    if os.path.basename(argv[0]) in {"pytest", "py.test"}:  # noqa: PTH119 - pathlib costs the executor start time
        return True
    return any(argv[at : at + 2] == ("-m", "pytest") for at in range(1, min(len(argv), 8) - 1))


def _operands(paths: Sequence[str]) -> tuple[str, ...]:
    """Return paths so that none reads as an option, also for programs that know no '--'."""
    return tuple(f"./{path}" if path.startswith(("-", "@", ":")) else path for path in paths)


def pytest_command(argv: Sequence[str], paths: Sequence[str] = (), keyword: str = "") -> tuple[str, ...]:
    """Return a pytest command that writes a report and, with `paths`, runs these files only."""
    options = [
        *("-p", "no:cacheprovider", "-o", "junit_family=xunit1", f"--junitxml={REPORT}", "--rootdir=."),
        "--continue-on-collection-errors",
        *("-q", "--no-header", "--tb=short"),  # what a model or a person needs to mend it, and no more
        *((f"-k={keyword}",) if keyword else ()),
    ]
    split = list(argv).index("--") if "--" in argv else len(argv)
    return (*argv[:split], *options, "--", *(_operands(paths) if paths else argv[split + 1 :]))


def narrowed(argv: Sequence[str], paths: Sequence[str], keyword: str = "", cases: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the command of a tests check, narrowed to test files or cases where its program can be."""
    argv = tuple(argv)
    if is_pytest(argv):
        return pytest_command(argv, cases or paths, keyword)
    if not paths:
        return argv
    program = os.path.basename(argv[0])  # noqa: PTH119 - as above
    if program in {"npm", "pnpm", "yarn"}:
        return (*argv, "--", *_operands(paths)) if "--" not in argv else (*argv, *_operands(paths))
    if program == "go":
        folders = dict.fromkeys("./" + path.rpartition("/")[0].removeprefix("./") for path in paths)
        return (*(part for part in argv if part != "./..."), *folders)
    return argv


def _case_id(case: Mapping[str, str]) -> str:
    name, dotted, file = case.get("name") or "", case.get("classname") or "", case.get("file") or ""
    if not file:
        file = (dotted or name).replace(".", "/") + ".py"
        return (f"{file}::{name}" if dotted else file)[:MAX_CASE_ID]
    if not dotted:
        return file[:MAX_CASE_ID]  # the file itself could not be collected
    module = file.removesuffix(".py").replace("/", ".")
    classes = dotted.removeprefix(module).strip(".") if dotted.startswith(module) else ""
    return "::".join((file, *(part for part in classes.split(".") if part), name))[:MAX_CASE_ID]


class _Cases:
    """What a parser tells of a report. Builds no tree: a report that a test wrote may hold millions of elements."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        self._case: Mapping[str, str] | None = None
        self._result = PASSED
        self._depth = 0

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        """Begin an element. Raises `ValueError` where they lie deeper than in any report: a parser keeps them all."""
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ValueError("no report is so deep")
        if tag == "testcase":
            self._case, self._result = dict(attributes), PASSED
        elif tag in _RESULTS:
            self._result = max(self._result, _RESULTS[tag], key=_GRAVEST.index)

    def end(self, tag: str) -> None:
        """End one."""
        self._depth -= 1
        if tag == "testcase" and self._case is not None:
            test = _case_id(self._case)
            self.found[test] = max(self._result, self.found.get(test, SKIPPED), key=_WORST.index)
            self._case = None

    def close(self) -> None:
        """End the report."""


def read_report(path: str = REPORT) -> dict[str, str]:
    """Return test id → passed | failed | errored | skipped; empty where there is no readable report.

    A test reported twice (it failed, then its teardown too) counts as the worse of both.
    """
    from xml.etree.ElementTree import ParseError, XMLParser  # costs start time, and most commands write no report

    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return {}
    cases = _Cases()
    parser = XMLParser(target=cases)  # noqa: S314 - expat refuses entity bombs, and the size is bounded
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_REPORT:
            return {}
        until = time.monotonic() + _SECONDS
        while (data := os.read(descriptor, _PIECE)) and len(cases.found) < MAX_CASES:
            parser.feed(data)
            if time.monotonic() > until:
                return {}
        if not data:
            parser.close()
    except (ParseError, ValueError):
        return {}
    finally:
        os.close(descriptor)
    return cases.found


def verdict(argv: Sequence[str], exit_code: int, cases: Mapping[str, Any]) -> str:
    """Return what a command that ran to its end says. No test run is `missing`, whatever the exit code."""
    if not is_pytest(argv):
        return PASSED if exit_code == 0 else FAILED
    results = set(cases.values())
    if exit_code == 0:
        return PASSED if PASSED in results and not results & {FAILED, ERRORED} else MISSING
    if exit_code == _PYTEST_NO_TESTS:
        return MISSING
    return FAILED if exit_code == _PYTEST_FAILED and results & {FAILED, ERRORED} else ERRORED
