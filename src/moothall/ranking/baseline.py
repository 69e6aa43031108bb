"""Diagnosis of the unchanged base: the results of its checks, and whether they can judge an
answer. Pure.

Failing tests on the base are fine, since the task may be to make them pass. Checks that cannot run
are not, since no candidate could win.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from moothall.domain.evidence import FAILED_OUTCOMES, CheckRun, Verdict
from moothall.domain.repository import Prepared, Profile
from moothall.domain.task import VALIDATION
from moothall.ranking.assess import effective_cases
from moothall.ranking.criteria import format_cases, sanitize_line
from moothall.ranking.failures import (
    failure_outputs,
    find_environment_error,
    find_folder_off_path,
    is_django_unconfigured,
    suggest_smaller_suite,
)

_SLOW_CASE_MS = 1000
_MAX_SLOW_CASES = 5
_OUTPUT_CHARS = 2000
_NOT_FOUND_EXIT_CODE = 127
_USAGE_EXIT_CODE = 4  # of pytest: wrong options, or a conftest.py that cannot be imported
_MISSING_PROGRAM = re.compile(
    r"(?m)^(?:cannot run '(?P<ours>[^'\n]{1,200})'|(?:.{0,40}sh: )?(?:\d+: |line \d+: "
    r")?(?P<shell>[\w./@+-]{1,100}): (?:command )?not found)"
)
_MISSING_SUBCOMMAND = re.compile(
    r"(?m)^error: no such command: `(?P<name>[\w-]{1,100})`"
)  # cargo's
_NO_TESTS = re.compile(
    r"(?mi)^.{0,60}\bno tests?(?: files?)? (?:were )?found\b|^.{0,10}Couldn.t find any files to "
    r"test"
)  # runners of Node
_TEST_COUNT = re.compile(r"(?m)^Ran (\d+) tests? in ")  # unittest's, also within Django
_MISSING_MODULE = re.compile(r"No module named '?(?P<name>\w+)")
_CONFIG_FILE = ".moothall.toml"
_MAX_NAMED_MODULES = 3


@dataclass(frozen=True, slots=True)
class CheckRow:
    """One check of the base.

    slow: the slowest cases with their duration in milliseconds.
    told: the check reported cases; otherwise it counts as one case.
    fault: why the check cannot judge; '' if it can.
    advice: what to configure; '' if it can judge and is not slow.
    output: the end of the output; '' if it can judge.
    note: a remark for people.
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
        """The row as a short text: `tests 180 passed, 3 failed (a, b, c)`."""
        if self.fault:
            result = self.fault
        elif self.findings:
            result = f"{self.findings} {'finding' if self.findings == 1 else 'findings'}"
        elif self.told and self.green + len(self.red) + self.skipped:
            counts = [
                (self.green, "passed"),
                (len(self.red), "failed"),
                (self.skipped, "skipped"),
                (len(self.flaky), "flaky"),
            ]
            names = {"failed": self.red, "flaky": self.flaky}
            result = ", ".join(
                f"{count} {word}" + (f" ({format_cases(names[word])})" if word in names else "")
                for count, word in counts
                if count
            )
        else:
            result = str(self.verdict)
        return (
            f"{self.check} {result}"
            + (f" ({self.note})" if self.note else "")
            + ("" if self.required else " (advises only)")
        )


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The results of all checks of a base."""

    rows: tuple[CheckRow, ...] = ()

    @property
    def faults(self) -> tuple[CheckRow, ...]:
        """Required checks that cannot judge. With one of them no candidate could win."""
        return tuple(row for row in self.rows if row.required and row.fault)

    @property
    def line(self) -> str:
        """The diagnosis in one line."""
        return (
            f"base: {'; '.join(row.line for row in self.rows)}"
            if self.rows
            else "base: it has no check, so nothing will be proven"
        )

    @property
    def text(self) -> str:
        """The reasons why the checks cannot judge, with advice and the end of each distinct output;
        '' if they can.
        """
        lines_by_output: dict[str, list[str]] = {}
        for row in self.faults:
            lines_by_output.setdefault(row.output, []).append(
                f"Check {row.check} cannot judge anything: {row.fault}. {row.advice}"
            )
        return "\n".join(
            "\n".join([*lines, *([output] if output else [])])
            for output, lines in lines_by_output.items()
        )


def diagnose(prepared: Prepared) -> Diagnosis:
    """Return the diagnosis of a prepared base."""
    profile = prepared.base.profile
    rows = tuple(
        _make_row(
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
    fault = "all its results differ between two runs of the same files, so none of them is evidence"
    advice = f"Name a command with stable results in [checks] of {_CONFIG_FILE}."
    return Diagnosis(
        tuple(replace(row, fault=fault, advice=advice) if row.required else row for row in rows)
    )


def _make_row(prepared: Prepared, name: str, run: CheckRun, *, required: bool) -> CheckRow:
    cases = effective_cases(run) if not run.findings else {}
    fault, advice = _find_fault(prepared, run)
    advice = advice or suggest_smaller_suite(run, prepared.base.profile.checks.get(name, ()))
    missing_modules = (
        []
        if fault or "passed" in run.cases.values()
        else _find_missing_modules(run, prepared.files)
    )
    module_names = ", ".join(missing_modules[:_MAX_NAMED_MODULES])
    note = (
        f"no file declares the missing module {module_names}, so an answer may add it"
        if module_names
        else ""
    )
    slow_cases = sorted(
        ((ms, case) for case, ms in run.durations.items() if ms >= _SLOW_CASE_MS), reverse=True
    )[:_MAX_SLOW_CASES]
    flaky = tuple(case for case in prepared.flaky if case in cases)
    steady_cases = {case: outcome for case, outcome in cases.items() if case not in flaky}
    return CheckRow(
        check=name,
        verdict=run.verdict,
        required=required,
        green=sum(outcome == "passed" for outcome in steady_cases.values()),
        red=()
        if fault
        else tuple(case for case, outcome in steady_cases.items() if outcome in FAILED_OUTCOMES),
        skipped=sum(outcome == "skipped" for outcome in steady_cases.values()),
        flaky=flaky,
        slow=tuple((case, ms) for ms, case in slow_cases),
        findings=len(run.findings),
        duration_ms=run.duration_ms,
        told=bool(run.cases),
        fault=fault,
        advice=advice,
        output=run.output.strip()[-_OUTPUT_CHARS:]
        if fault or (run.verdict is not Verdict.PASSED and not run.cases and not run.findings)
        else "",
        note=note,
    )


def _find_fault(prepared: Prepared, run: CheckRun) -> tuple[str, str]:
    """Return why a run cannot judge, and what to do about it; two empty strings if it can."""
    argv = prepared.base.profile.checks.get(run.check, ())
    has_passed_case = "passed" in run.cases.values()
    # The subject of a task's own check may still have to be written. A missing program from
    # outside the repository is a mistake nevertheless.
    may_need_answer = run.check.startswith(f"{VALIDATION}-") and not (
        run.exit_code == _NOT_FOUND_EXIT_CODE and "/" not in argv[0]
    )
    if run.findings or has_passed_case or may_need_answer:
        return "", ""
    if run.status != "success":
        fault = sanitize_line(run.output.partition("\n")[0], 300) or f"it was stopped: {run.status}"
        return (
            fault.rstrip("."),
            ""
            if run.cases
            else f"Raise the limit, or name a smaller command in [checks] of {_CONFIG_FILE}.",
        )
    missing_modules = _find_missing_modules(run, prepared.files)
    if missing_modules and all(
        _belongs_to_environment(name, run, prepared.base.profile) for name in missing_modules
    ):
        advice = (
            'Add it to what the project declares for its tests, or to setup = ["…"] in '
            f"{_CONFIG_FILE}."
        )
        return (
            f"the module {', '.join(missing_modules[:_MAX_NAMED_MODULES])} is not installed",
            advice,
        )
    fault, advice = _find_obstacle(run, prepared.files)
    return (fault, advice) if fault else _explain_no_tests(run, argv)


def _find_obstacle(run: CheckRun, files: Sequence[str]) -> tuple[str, str]:
    """Return an obstacle that no candidate could remove, and its remedy; two empty strings if there
    is none.
    """
    module, folder = find_folder_off_path(run, files)
    if module:
        advice = (
            f'Declare it in the project (pythonpath = ["{folder}"] among pytest\'s options, or a '
            f"[build-system] that installs it), or set in [checks] of {_CONFIG_FILE}: "
            f'tests = "env PYTHONPATH={folder} python -m pytest".'
        )
        return (
            f"the module {module} lies in {folder}/, which is neither installed nor on the path",
            advice,
        )
    if is_django_unconfigured(run):
        return "Django's settings are not configured, so none of its tests can be loaded", (
            f"Name Django's own runner in [checks] of {_CONFIG_FILE}, such as "
            'tests = "python manage.py test" or "env DJANGO_SETTINGS_MODULE=… python -m django '
            'test", '
            "or add pytest-django to the tests' dependencies."
        )
    if line := find_environment_error(run):
        return f"the environment fails before the first case: {line}", (
            f'Provide what it needs with setup = ["…"] in {_CONFIG_FILE}, or set a command in its '
            "[checks] that runs the tests without it."
        )
    return "", ""


def _explain_no_tests(run: CheckRun, argv: Sequence[str]) -> tuple[str, str]:
    if run.exit_code == _NOT_FOUND_EXIT_CODE and not run.cases:
        match = _MISSING_PROGRAM.search(run.output)
        program = sanitize_line(
            (match["ours"] or match["shell"]) if match else argv[0] if argv else run.check
        )
        install = (
            f'Install it by setup = ["…"] in {_CONFIG_FILE}, or name another command in [checks] '
            "there."
        )
        return f"the program {program} was not found", install
    if (
        not run.cases
        and argv[:1] == ("cargo",)
        and (match := _MISSING_SUBCOMMAND.search(run.output))
    ):
        name = f"cargo-{match['name']}"
        return (
            f"the program {name} was not found",
            (
                f'Install it with setup = ["…"] in {_CONFIG_FILE}, or add the folder of your own '
                "installation to sandbox.toolchains: checks have its bin on PATH."
            ),
        )
    if (
        run.exit_code == _USAGE_EXIT_CODE
        and not run.cases
        and "pytest" in " ".join(argv)
        and "ImportError while loading" not in run.output
    ):
        return (
            "pytest refuses its options",
            f"Fix the project's pytest configuration, or [checks] in {_CONFIG_FILE}.",
        )
    if not run.cases and (
        (run.exit_code and _NO_TESTS.search(run.output))
        or {*_TEST_COUNT.findall(run.output)} == {"0"}
    ):
        return (
            "no test was found",
            f"Name the command that runs the tests in [checks] of {_CONFIG_FILE}.",
        )
    if run.verdict is Verdict.MISSING or (run.cases and set(run.cases.values()) <= {"skipped"}):
        fault = (
            f"all of its {len(run.cases)} tests were skipped"
            if run.cases
            else "no test was collected"
        )
        return fault, f"Name the command that runs the tests in [checks] of {_CONFIG_FILE}."
    return "", ""


def _find_missing_modules(run: CheckRun, files: Sequence[str]) -> list[str]:
    """Return the missing third-party modules if each failure names one.

    A missing module of the project may be the task itself.
    """
    names = [
        match["name"] if (match := _MISSING_MODULE.search(text)) else ""
        for text in failure_outputs(run) or [run.output]
    ]
    if not all(names) or any(_is_in_project(name, files) for name in names):
        return []
    return sorted(set(names))


def _is_in_project(module: str, files: Sequence[str]) -> bool:
    return any(
        module in (*path.split("/")[:-1], path.rpartition("/")[2].partition(".")[0])
        for path in files
    )


def _belongs_to_environment(module: str, run: CheckRun, profile: Profile) -> bool:
    """True if a missing module belongs to the environment: Python provides it, it runs tests, or a
    file declares its package.

    The task may be to write any other module.
    """
    if (
        module in sys.stdlib_module_names
        or module in _RUNNERS
        or "Error importing plugin" in run.output
    ):
        return True
    name = module.lower().replace("_", "-")
    package_names = {
        name,
        f"py{name}",
        f"python-{name}",
        f"{name}-python",
        f"{name}-py",
        f"{name}-binary",
        *_PACKAGES.get(module, ()),
    }
    return not package_names.isdisjoint(profile.declared) or (
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
"""Modules whose packages have different names."""
