from __future__ import annotations

from typing import Any

import pytest

from moothall.domain.evidence import CheckRun, Verdict
from moothall.domain.repository import Base, Prepared, Profile, with_checks
from moothall.errors import InvalidRequest
from moothall.ranking import diagnose

FILES = ("src/own/__init__.py", "tests/test_a.py")


def prepared_with(
    run: CheckRun, *, argv: tuple[str, ...] = ("python", "-m", "pytest"), **fields: Any
) -> Prepared:
    declared = fields.pop("declared", ())
    base = Base(
        "r",
        "0" * 40,
        Profile(checks={"tests": argv}, advisory=fields.pop("advisory", ()), declared=declared),
    )
    return Prepared(base, "key", FILES, {"tests": run}, **fields)


def test_passed_failed_flaky_and_slow_are_reported() -> None:
    cases = {"a": "passed", "b": "failed", "c": "skipped", "d": "passed"}
    run = CheckRun("tests", Verdict.FAILED, cases, durations={"a": 1500, "d": 3})
    diagnosis = diagnose(prepared_with(run, flaky=("d",)))
    (row,) = diagnosis.rows
    assert (row.green, row.red, row.skipped, row.flaky, row.slow) == (
        1,
        ("b",),
        1,
        ("d",),
        (("a", 1500),),
    )
    assert diagnosis.line == "base: tests 1 passed, 1 failed (b), 1 skipped, 1 flaky (d)"
    assert diagnosis.text == ""


@pytest.mark.parametrize(
    ("run", "fault"),
    [
        (
            CheckRun(
                "tests", Verdict.FAILED, output="cannot run 'uv': No such file", exit_code=127
            ),
            "the program uv was not found",
        ),
        (
            CheckRun(
                "tests", Verdict.FAILED, output="> jest\nsh: 1: jest: not found", exit_code=127
            ),
            "the program jest was not found",
        ),
        (
            CheckRun("tests", Verdict.ERRORED, output="No module named pytest", exit_code=1),
            "the module pytest is not installed",
        ),
        (
            CheckRun(
                "tests", Verdict.ERRORED, output="error: unrecognized arguments: --cov", exit_code=4
            ),
            "pytest refuses its options",
        ),
        (CheckRun("tests", Verdict.MISSING, exit_code=5), "no test was collected"),
        (
            CheckRun("tests", Verdict.FAILED, output="> mocha\n\nNo test files found", exit_code=1),
            "no test was found",
        ),
        (
            CheckRun(
                "tests", Verdict.FAILED, output="No tests found, exiting with code 1", exit_code=1
            ),
            "no test was found",
        ),
        (
            CheckRun(
                "tests",
                Verdict.ERRORED,
                output="tests hit the limit of 9 s (x)\n…",
                status="timeout",
            ),
            "tests hit the limit of 9 s (x)",
        ),
        (
            CheckRun(
                "tests",
                Verdict.FAILED,
                {"t.py": "errored"},
                details={"t.py": "E ModuleNotFoundError: No module named 'numpy.linalg'"},
            ),
            "the module numpy is not installed",
        ),
        (
            CheckRun(
                "tests",
                Verdict.FAILED,
                output="error: no such command: `nextest`\n\nhelp: view all",
                exit_code=101,
            ),
            "the program cargo-nextest was not found",
        ),
    ],
)
def test_a_check_that_cannot_judge_is_reported_with_the_reason_and_the_setting(
    run: CheckRun, fault: str
) -> None:
    argv = ("cargo", "nextest", "run") if "cargo" in fault else ("python", "-m", "pytest")
    diagnosis = diagnose(prepared_with(run, argv=argv, declared=("numpy",)))
    assert diagnosis.rows[0].fault == fault
    assert fault in diagnosis.text
    assert ".moothall.toml" in diagnosis.text
    assert diagnosis.text.count(run.output or fault) == 1


@pytest.mark.parametrize(
    "run",
    [
        CheckRun(
            "tests",
            Verdict.FAILED,
            {"t.py": "errored"},
            details={"t.py": "No module named 'own.new'"},
        ),
        CheckRun(
            "tests",
            Verdict.FAILED,
            {"t.py": "errored"},
            details={"t.py": "cannot import name 'new' from 'own'"},
        ),
        CheckRun(
            "tests",
            Verdict.FAILED,
            {"t.py": "errored", "u.py::x": "passed"},
            details={"t.py": "No module named 'numpy'"},
        ),
        CheckRun(
            "tests", Verdict.FAILED, output="error[E0425]: cannot find function", exit_code=101
        ),
        CheckRun(
            "tests",
            Verdict.ERRORED,
            output="ImportError while loading conftest: No module named 'own.a'",
            exit_code=4,
        ),
    ],
)
def test_a_failure_that_the_task_may_be_about_is_not_an_environment_fault(run: CheckRun) -> None:
    diagnosis = diagnose(prepared_with(run))
    assert diagnosis.faults == ()
    assert diagnosis.rows[0].output == run.output


def missing(*modules: str, output: str = "") -> CheckRun:
    cases = {f"tests/test_{module}.py": "errored" for module in modules}
    details = {
        case: f"ModuleNotFoundError: No module named '{module}'"
        for case, module in zip(cases, modules, strict=True)
    }
    return CheckRun("tests", Verdict.FAILED, cases, details=details, output=output)


def test_an_undeclared_missing_module_may_be_what_the_task_must_add() -> None:
    diagnosis = diagnose(
        prepared_with(missing("calc"), declared=("numpy", "calculus", "pytest-calc"))
    )
    assert diagnosis.text == ""
    assert diagnosis.rows[0].red == ("tests/test_calc.py",)
    assert "no file declares the missing module calc, so an answer may add it" in diagnosis.line
    assert diagnose(prepared_with(missing("calc", "numpy"), declared=("numpy",))).text == ""


@pytest.mark.parametrize(
    ("module", "package"),
    [
        ("numpy", "numpy"),
        ("yaml", "pyyaml"),
        ("PIL", "pillow"),
        ("dateutil", "python-dateutil"),
        ("psycopg2", "psycopg2-binary"),
        ("typing_extensions", "typing-extensions"),
        ("google", "google-cloud-storage"),
        ("pytest", "anything"),
        ("tkinter", "anything"),
    ],
)
def test_a_declared_but_missing_module_is_reported_as_not_installed(
    module: str, package: str
) -> None:
    assert (
        f"the module {module} is not installed"
        in diagnose(prepared_with(missing(module), declared=(package,))).text
    )


def test_a_plugin_that_pytest_cannot_import_is_an_environment_fault() -> None:
    output = "ImportError: Error importing plugin \"own_plugin\": No module named 'own_plugin'"
    assert (
        "own_plugin is not installed"
        in diagnose(prepared_with(missing("own_plugin", output=output))).text
    )


def test_the_tests_of_a_tasks_own_check_may_be_missing_but_not_its_program() -> None:
    def fault_of(run: CheckRun) -> str:
        base = Base(
            "r",
            "0" * 40,
            Profile(checks={run.check: ("python", "-m", "pytest", "tests/test_new.py")}),
        )
        return diagnose(Prepared(base, "key", FILES, {run.check: run})).text

    assert "no test was collected" in fault_of(CheckRun("tests", Verdict.MISSING, exit_code=5))
    assert fault_of(CheckRun("validation-1", Verdict.MISSING, exit_code=5)) == ""
    assert "program pyhton was not found" in fault_of(
        CheckRun(
            "validation-1",
            Verdict.FAILED,
            output="cannot run 'pyhton': No such file",
            exit_code=127,
        )
    )


def test_a_tasks_own_checks_join_those_of_the_repository() -> None:
    base = Base("r", "0" * 40, Profile(checks={"tests": ("pytest",)}))
    assert with_checks(base, {}) is base
    assert with_checks(base, {"validation-1": ("make",)}).profile.checks == {
        "tests": ("pytest",),
        "validation-1": ("make",),
    }
    with pytest.raises(InvalidRequest, match="has a check called tests"):
        with_checks(base, {"tests": ("true",)})


def test_a_check_whose_results_all_differ_between_runs_cannot_judge() -> None:
    run = CheckRun("tests", Verdict.FAILED, exit_code=1)
    assert "differ between two runs" in diagnose(prepared_with(run, flaky=("tests",))).text
    cases = CheckRun("tests", Verdict.FAILED, {"a": "passed", "b": "failed"})
    assert diagnose(prepared_with(cases, flaky=("b",))).text == ""
    assert "differ between two runs" in diagnose(prepared_with(cases, flaky=("a", "b"))).text
    assert diagnose(prepared_with(run, flaky=("tests",), advisory=("tests",))).text == ""


def test_an_advisory_check_is_no_fault_and_a_missing_check_is_reported() -> None:
    run = CheckRun("tests", Verdict.FAILED, output="cannot run 'uv'", exit_code=127)
    assert diagnose(prepared_with(run, advisory=("tests",))).text == ""
    bare = Prepared(Base("r", "0" * 40, Profile()), "key", FILES)
    assert "no check" in diagnose(bare).line


def failed_run(*messages: str) -> CheckRun:
    cases = {f"t{number}": "errored" for number, _ in enumerate(messages)}
    details = {f"t{number}": text for number, text in enumerate(messages)}
    return CheckRun("tests", Verdict.FAILED, cases, details=details, exit_code=1)


def fault(run: CheckRun, *files: str) -> tuple[str, str]:
    base = Base("r", "0" * 40, Profile(checks={"tests": ("python", "-m", "pytest")}))
    (row,) = diagnose(Prepared(base, "key", files, {"tests": run})).rows
    return row.fault, row.advice


def test_a_src_layout_that_is_not_installed_gets_advice() -> None:
    missing = failed_run("E ModuleNotFoundError: No module named 'own'")
    problem, advice = fault(missing, "src/own/__init__.py", "tests/test_a.py")
    assert problem == "the module own lies in src/, which is neither installed nor on the path"
    assert 'tests = "env PYTHONPATH=src python -m pytest"' in advice
    assert fault(missing, "python/lib/own.py")[0].startswith("the module own lies in python/lib/")


@pytest.mark.parametrize(
    ("run", "files"),
    [
        (failed_run("No module named 'own'", "assert 1 == 2"), ("src/own/__init__.py",)),
        (failed_run("No module named 'own.new'"), ("own/__init__.py", "src/own/__init__.py")),
        (failed_run("No module named 'util'"), ("pkg/__init__.py", "pkg/util.py")),
    ],
)
def test_a_module_that_a_candidate_can_provide_is_not_a_fault(
    run: CheckRun, files: tuple[str, ...]
) -> None:
    assert fault(run, *files) == ("", "")


@pytest.mark.parametrize(
    "line",
    [
        (
            "Internal Error: Error when performing the request to "
            "https://registry.example.org/pnpm; for troubleshooting help"
        ),
        " ERR_PNPM_META_FETCH_FAIL  GET https://registry.example.org/pnpm: request failed",
        "npm error code ENOTCACHED",
        "Usage Error: The project in /workspace/package.json doesn't seem to have been installed",
        "error: Failed to fetch: `https://example.org/simple/six/`",
        "go: go.mod requires go >= 1.30 (running go 1.22; GOTOOLCHAIN=local)",
        "error: failed to get `x`: attempting to make an HTTP request, but --offline was specified",
        (
            'django.db.utils.OperationalError: connection to server at "127.0.0.1", port 5432 '
            "failed: "
            "Connection refused"
        ),
    ],
)
def test_tests_that_the_environment_prevents_are_reported_with_their_line(line: str) -> None:
    problem, advice = fault(
        CheckRun("tests", Verdict.FAILED, output=f"> t test\n{line}\n", exit_code=1)
    )
    assert problem == f"the environment fails before the first case: {line.strip()}"
    assert "setup" in advice
    assert fault(failed_run(f"E {line}"))[0].startswith("the environment fails")
    assert fault(failed_run(f"E {line}", "assert 1 == 2")) == ("", ""), "another case ran"
    run = CheckRun(
        "tests", Verdict.FAILED, {"a": "passed", "b": "failed"}, output=line, exit_code=1
    )
    assert fault(run) == ("", ""), "a case passes"


def test_a_connection_refused_in_the_code_under_test_is_not_an_environment_fault() -> None:
    refused = CheckRun(
        "tests",
        Verdict.FAILED,
        output="ConnectionRefusedError: [Errno 111] Connection refused",
        exit_code=1,
    )
    assert fault(refused) == ("", "")


def test_a_runner_without_tests_cannot_judge() -> None:
    assert (
        fault(CheckRun("tests", Verdict.PASSED, output="Ran 0 tests in 0.000s\n\nOK\n"))[0]
        == "no test was found"
    )
    two_parts = CheckRun(
        "tests", Verdict.PASSED, output="Ran 0 tests in 0.1s\nRan 3 tests in 0.1s\n"
    )
    assert fault(two_parts) == ("", ""), "another part ran some"


def test_unconfigured_django_cannot_judge_and_is_reported_with_advice() -> None:
    text = (
        "django.core.exceptions.ImproperlyConfigured: Requested setting DATABASES, but settings "
        "are not configured. You must"
    )
    problem, advice = fault(failed_run(text, text))
    assert problem.startswith("Django's settings are not configured")
    assert "python manage.py test" in advice
    assert fault(failed_run(text, "assert 1 == 2")) == ("", "")


def test_narrowing_is_suggested_for_a_suite_that_takes_minutes() -> None:
    cases = {
        f"tests/{'io' if number % 4 else 'core'}/test_{number}.py::test": "passed"
        for number in range(100)
    }
    slow = CheckRun(
        "tests", Verdict.PASSED, cases, duration_ms=300_000, durations=dict.fromkeys(cases, 3000)
    )
    problem, advice = fault(slow)
    assert problem == ""
    assert "5.0 minutes for 100 tests" in advice
    assert "tests/io (75 %), tests/core (25 %)" in advice
    assert 'tests = "python -m pytest PATH…"' in advice
    assert fault(CheckRun("tests", Verdict.PASSED, cases, duration_ms=30_000)) == ("", "")
    many_cases = {f"t{number}": "passed" for number in range(62_410)}
    assert (
        "62,410 tests"
        in fault(CheckRun("tests", Verdict.PASSED, many_cases, duration_ms=30_000))[1]
    )
