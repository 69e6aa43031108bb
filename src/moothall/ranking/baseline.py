"""What the checks say of the untouched base, and whether anything could be judged by them. Pure.

A base whose tests are red is fine: making them green is what is asked for. One whose checks cannot
run is not: nobody could win.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from moothall.domain.evidence import RED, CheckRun, Verdict
from moothall.domain.repository import Prepared, Profile
from moothall.domain.task import VALIDATION
from moothall.ranking.assess import cases_of
from moothall.ranking.gates import name_cases, plain
from moothall.ranking.obstacles import (
    environment_line,
    folder_off_the_path,
    red_details,
    suggest_fewer,
    unconfigured_django,
)

_SLOW_MS = 1000
_SLOWEST = 5
_TAIL = 2000
_NOT_FOUND = 127
_USAGE = 4  # pytest's: wrong options, or a conftest.py that cannot be imported
_PROGRAM = re.compile(
    r"(?m)^(?:cannot run '(?P<ours>[^'\n]{1,200})'|(?:.{0,40}sh: )?(?:\d+: |line \d+: "
    r")?(?P<shell>[\w./@+-]{1,100}): (?:command )?not found)"
)
_SUBCOMMAND = re.compile(r"(?m)^error: no such command: `(?P<name>[\w-]{1,100})`")  # cargo's
_NO_TESTS = re.compile(
    r"(?mi)^.{0,60}\bno tests?(?: files?)? (?:were )?found\b|^.{0,10}Couldn.t find any files to "
    r"test"
)  # runners of Node
_RAN = re.compile(r"(?m)^Ran (\d+) tests? in ")  # unittest's, also within Django
_MODULE = re.compile(r"No module named '?(?P<name>\w+)")
_OWN_FILE = ".moothall.toml"
_NAMED = 3


@dataclass(frozen=True, slots=True)
class CheckRow:
    """One check of the base. `slow` are its slowest cases with their milliseconds, `fault` says why
    it cannot judge, `advice` what to write where, `output` the end of its output. If it can judge,
    `fault` and `output` are empty,
    and so is `advice` unless it is slow. `told` is false if it reported no cases and counts as one
    itself. `note` is a remark for people.
    """

    check: str
    verdict: Verdict
    required: bool = True
    green: int = 0
    red: tuple[str, ...] = ()
    skipped: int = 0
    flaky: tuple[str, ...] = ()
    slow: tuple[tuple[str, int], ...] = ()
    findings: int = 0
    duration_ms: int = 0
    told: bool = True
    fault: str = ""
    advice: str = ""
    output: str = ""
    note: str = ""

    @property
    def line(self) -> str:
        """The row in a few words: `tests 180 passed, 3 red (a, b, c)`."""
        if self.fault:
            said = self.fault
        elif self.findings:
            said = f"{self.findings} {'finding' if self.findings == 1 else 'findings'}"
        elif self.told and self.green + len(self.red) + self.skipped:
            counts = [
                (self.green, "passed"),
                (len(self.red), "red"),
                (self.skipped, "skipped"),
                (len(self.flaky), "flaky"),
            ]
            names = {"red": self.red, "flaky": self.flaky}
            said = ", ".join(
                f"{count} {word}" + (f" ({name_cases(names[word])})" if word in names else "")
                for count, word in counts
                if count
            )
        else:
            said = str(self.verdict)
        return (
            f"{self.check} {said}"
            + (f" ({self.note})" if self.note else "")
            + ("" if self.required else " (advises only)")
        )


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is known of a base before anybody works on it."""

    rows: tuple[CheckRow, ...] = ()

    @property
    def faults(self) -> tuple[CheckRow, ...]:
        """Required checks that cannot judge: with one of them no candidate could win."""
        return tuple(row for row in self.rows if row.required and row.fault)

    @property
    def line(self) -> str:
        """All of it in a line."""
        return (
            f"base: {'; '.join(row.line for row in self.rows)}"
            if self.rows
            else "base: it has no check, so nothing will be proven"
        )

    @property
    def text(self) -> str:
        """Why nothing could be judged, with the end of the output once and what to write where;
        empty where something could.
        """
        said: dict[str, list[str]] = {}
        for row in self.faults:
            said.setdefault(row.output, []).append(
                f"Check {row.check} cannot judge anything: {row.fault}. {row.advice}"
            )
        return "\n".join(
            "\n".join([*lines, *([output] if output else [])]) for output, lines in said.items()
        )


def diagnose(prepared: Prepared) -> Diagnosis:
    """Return what the checks of a prepared base say."""
    profile = prepared.base.profile
    rows = tuple(
        _row(
            prepared,
            name,
            prepared.runs.get(name, CheckRun(name, Verdict.MISSING)),
            required=name not in profile.advisory,
        )
        for name in profile.checks
    )
    if any(
        row.required and (row.fault or row.green or row.red or row.findings or not row.flaky)
        for row in rows
    ):
        return Diagnosis(rows)
    fault = (
        "all that it tells differs between two runs of the same files, so nothing of it is evidence"
    )
    advice = f"Name a command that says the same each time in [checks] of {_OWN_FILE}."
    return Diagnosis(
        tuple(replace(row, fault=fault, advice=advice) if row.required else row for row in rows)
    )


def _row(prepared: Prepared, name: str, run: CheckRun, *, required: bool) -> CheckRow:
    cases = cases_of(run) if not run.findings else {}
    fault, advice = _fault(prepared, run)
    advice = advice or suggest_fewer(run, prepared.base.profile.checks.get(name, ()))
    missing = (
        [] if fault or "passed" in run.cases.values() else _missing_modules(run, prepared.files)
    )
    named = ", ".join(missing[:_NAMED])
    note = f"no file declares the missing module {named}, so an answer may add it" if named else ""
    slow = sorted(
        ((ms, case) for case, ms in run.durations.items() if ms >= _SLOW_MS), reverse=True
    )[:_SLOWEST]
    flaky = tuple(case for case in prepared.flaky if case in cases)
    counted = {case: outcome for case, outcome in cases.items() if case not in flaky}
    return CheckRow(
        check=name,
        verdict=run.verdict,
        required=required,
        green=sum(outcome == "passed" for outcome in counted.values()),
        red=() if fault else tuple(case for case, outcome in counted.items() if outcome in RED),
        skipped=sum(outcome == "skipped" for outcome in counted.values()),
        flaky=flaky,
        slow=tuple((case, ms) for ms, case in slow),
        findings=len(run.findings),
        duration_ms=run.duration_ms,
        told=bool(run.cases),
        fault=fault,
        advice=advice,
        output=run.output.strip()[-_TAIL:]
        if fault or (run.verdict is not Verdict.PASSED and not run.cases and not run.findings)
        else "",
        note=note,
    )


def _fault(prepared: Prepared, run: CheckRun) -> tuple[str, str]:
    """Say why a run judges nothing, and what to do; two empty strings where it does."""
    argv = prepared.base.profile.checks.get(run.check, ())
    green = "passed" in run.cases.values()
    # What a task's own check looks at may be what has to be made; a program of nobody's is a
    # mistake nevertheless.
    waits = run.check.startswith(f"{VALIDATION}-") and not (
        run.exit_code == _NOT_FOUND and "/" not in argv[0]
    )
    if run.findings or green or waits:
        return "", ""
    if run.status != "success":
        said = plain(run.output.partition("\n")[0], 300) or f"it was stopped: {run.status}"
        return (
            said.rstrip("."),
            ""
            if run.cases
            else f"Give it more, or name a smaller command for it in [checks] of {_OWN_FILE}.",
        )
    missing = _missing_modules(run, prepared.files)
    if missing and all(_is_needed(name, run, prepared.base.profile) for name in missing):
        declare = (
            'Add it to what the project declares for its tests, or to setup = ["…"] in '
            f"{_OWN_FILE}."
        )
        return f"the module {', '.join(missing[:_NAMED])} is not installed", declare
    said, advice = _obstacle(run, prepared.files)
    return (said, advice) if said else _nothing_ran(run, argv)


def _obstacle(run: CheckRun, files: Sequence[str]) -> tuple[str, str]:
    """Return an obstacle that no candidate could remove, and how to remove it; two empty strings
    for none.
    """
    module, folder = folder_off_the_path(run, files)
    if module:
        advice = (
            f'Declare it in the project (pythonpath = ["{folder}"] among pytest\'s options, or a '
            f"[build-system] that installs it), or set in [checks] of {_OWN_FILE}: "
            f'tests = "env PYTHONPATH={folder} python -m pytest".'
        )
        return (
            f"the module {module} lies in {folder}/, which is neither installed nor on the path",
            advice,
        )
    if unconfigured_django(run):
        return "Django's settings are not configured, so none of its tests can be loaded", (
            f"Name Django's own runner in [checks] of {_OWN_FILE}, such as "
            'tests = "python manage.py test" or "env DJANGO_SETTINGS_MODULE=… python -m django '
            'test", '
            "or add pytest-django to the tests' dependencies."
        )
    if line := environment_line(run):
        return f"the environment fails before the first case: {line}", (
            f'Provide what it needs with setup = ["…"] in {_OWN_FILE}, or set a command in its '
            "[checks] that runs the tests without it."
        )
    return "", ""


def _nothing_ran(run: CheckRun, argv: Sequence[str]) -> tuple[str, str]:
    if run.exit_code == _NOT_FOUND and not run.cases:
        found = _PROGRAM.search(run.output)
        program = plain(
            (found["ours"] or found["shell"]) if found else argv[0] if argv else run.check
        )
        install = (
            f'Install it by setup = ["…"] in {_OWN_FILE}, or name another command in [checks] '
            "there."
        )
        return f"the program {program} was not found", install
    if not run.cases and argv[:1] == ("cargo",) and (found := _SUBCOMMAND.search(run.output)):
        name = f"cargo-{found['name']}"
        return (
            f"the program {name} was not found",
            (
                f'Install it by setup = ["…"] in {_OWN_FILE}, or let checks see yours: '
                "sandbox.toolchains names folders whose bin they have."
            ),
        )
    if (
        run.exit_code == _USAGE
        and not run.cases
        and "pytest" in " ".join(argv)
        and "ImportError while loading" not in run.output
    ):
        return (
            "pytest refuses its options",
            f"Mend the project's pytest configuration, or [checks] in {_OWN_FILE}.",
        )
    if not run.cases and (
        (run.exit_code and _NO_TESTS.search(run.output)) or {*_RAN.findall(run.output)} == {"0"}
    ):
        return (
            "no test was found",
            f"Name the command that runs the tests in [checks] of {_OWN_FILE}.",
        )
    if run.verdict is Verdict.MISSING or (run.cases and set(run.cases.values()) <= {"skipped"}):
        what = (
            f"all of its {len(run.cases)} tests were skipped"
            if run.cases
            else "no test was collected"
        )
        return what, f"Name the command that runs the tests in [checks] of {_OWN_FILE}."
    return "", ""


def _missing_modules(run: CheckRun, files: Sequence[str]) -> list[str]:
    """Return the missing third-party modules if each failure names one. A module of the project may
    be the task itself.
    """
    names = [
        match["name"] if (match := _MODULE.search(text)) else ""
        for text in red_details(run) or [run.output]
    ]
    if not all(names) or any(_is_own(name, files) for name in names):
        return []
    return sorted(set(names))


def _is_own(module: str, files: Sequence[str]) -> bool:
    return any(
        module in (*path.split("/")[:-1], path.rpartition("/")[2].partition(".")[0])
        for path in files
    )


def _is_needed(module: str, run: CheckRun, profile: Profile) -> bool:
    """Whether a missing module belongs to the environment: Python has it, it runs tests, or a file
    declares its package.

    The task may be to write any other.
    """
    if (
        module in sys.stdlib_module_names
        or module in _RUNNERS
        or "Error importing plugin" in run.output
    ):
        return True
    name = module.lower().replace("_", "-")
    known = {
        name,
        f"py{name}",
        f"python-{name}",
        f"{name}-python",
        f"{name}-py",
        f"{name}-binary",
        *_PACKAGES.get(module, ()),
    }
    return not known.isdisjoint(profile.declared) or (
        module == "google" and "google-" in " ".join(profile.declared)
    )


_RUNNERS = frozenset(
    {
        "pytest",
        "_pytest",
        "nose",
        "nose2",
        "tox",
        "nox",
        "coverage",
        "hypothesis",
        "ruff",
        "mypy",
        "flake8",
        "pylint",
    }
)
_PACKAGES: Mapping[str, tuple[str, ...]] = {
    "Crypto": ("pycryptodome", "pycrypto"),
    "Cryptodome": ("pycryptodomex",),
    "MySQLdb": ("mysqlclient",),
    "OpenSSL": ("pyopenssl",),
    "PIL": ("pillow",),
    "_pytest": ("pytest",),
    "attr": ("attrs",),
    "bs4": ("beautifulsoup4",),
    "cv2": ("opencv-python", "opencv-python-headless", "opencv-contrib-python"),
    "fitz": ("pymupdf",),
    "git": ("gitpython",),
    "github": ("pygithub",),
    "google": ("protobuf",),
    "jose": ("python-jose",),
    "pkg_resources": ("setuptools",),
    "rest_framework": ("djangorestframework",),
    "ruamel": ("ruamel-yaml",),
    "skimage": ("scikit-image",),
    "sklearn": ("scikit-learn",),
    "usb": ("pyusb",),
    "yaml": ("pyyaml",),
    "zmq": ("pyzmq",),
}
"""Packages of modules with a different name."""
