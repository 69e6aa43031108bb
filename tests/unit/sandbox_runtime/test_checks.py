from __future__ import annotations

import re

import pytest

from moothall.sandbox_runtime.checks import PLUGINS, command, is_pytest, variables, verdict

PYTEST = ("python", "-m", "pytest", "-q")
GO = ("go", "test", "./...")


@pytest.mark.parametrize(
    ("argv", "code", "cases", "expected"),
    [
        (PYTEST, 0, {"a": "passed", "b": "skipped"}, "passed"),
        (PYTEST, 0, {"a": "passed", "b": "failed"}, "missing"),
        (PYTEST, 0, {}, "missing"),
        (PYTEST, 0, {"a": "skipped"}, "missing"),
        (PYTEST, 5, {}, "missing"),
        (PYTEST, 1, {"a": "failed"}, "failed"),
        (PYTEST, 1, {}, "errored"),
        (PYTEST, 2, {"a": "passed"}, "errored"),
        (PYTEST, -9, {"a": "passed"}, "errored"),
        (("make", "test"), 0, {}, "passed"),
        (("make", "test"), 2, {}, "failed"),
        (("make", "test"), 127, {}, "errored"),
        (("npm", "test"), 0, {"a": "passed"}, "passed"),
        (("npm", "test"), 1, {"a": "passed", "b": "failed"}, "failed"),
        (("npm", "test"), 1, {"a": "passed"}, "errored"),
        (("npm", "test"), 0, {"a": "passed", "b": "failed"}, "failed"),
        (GO, 0, {}, "missing"),
        (GO, 1, {}, "failed"),
        (("cargo", "test"), 101, {}, "failed"),
        (("python", "-m", "unittest"), 5, {}, "missing"),
    ],
)
def test_verdicts_follow_from_command_exit_code_and_cases(
    argv: tuple[str, ...], code: int, cases: dict[str, str], expected: str
) -> None:
    assert verdict(argv, code, cases) == expected


def test_paths_and_keywords_are_never_read_as_options() -> None:
    argv = command(("pytest", "--", "tests"), ["--collect-only", "@file", "tests/a.py"], "-x")
    assert argv[argv.index("--") :] == ("--", "./--collect-only", "./@file", "tests/a.py")
    assert "-k=-x" in argv
    assert command(("pytest", "--", "tests"))[-2:] == ("--", "tests")
    assert command(("npm", "test"), ["-x"]) == ("npm", "test", "--", "./-x")
    assert command(GO, ["pkg/a_test.go", "b_test.go"]) == ("go", "test", "-json", "./pkg", "./")
    assert command(("make", "test"), ["x"]) == ("make", "test")


@pytest.mark.parametrize(
    ("argv", "cases", "expected"),
    [
        (
            ("pytest",),
            ["t.py::test_a[x y]"],
            ("pytest", "-q", "--rootdir=.", "--", "t.py::test_a[x y]"),
        ),
        (
            ("python", "-m", "unittest"),
            ["t.T.test_a"],
            ("python", "-m", "moothall_unittest", "-k", "t.T.test_a"),
        ),
        (
            GO,
            ["m/p::TestA/sub", "m/p::TestB"],
            ("go", "test", "-json", "-run=^(TestA|TestB)$", "m/p"),
        ),
        (GO, ["m/p"], ("go", "test", "-json", "m/p")),
        (GO, ["-exec=sh::TestA"], ("go", "test", "-json", "./...")),
        (
            ("cargo", "test"),
            ["a src/lib.rs::t::one", "b tests/x.rs::two #2"],
            ("cargo", "test", "--no-fail-fast", "--", "t::one", "two"),
        ),
        (("make", "test"), ["x"], ("make", "test")),
    ],
)
def test_a_command_is_narrowed_to_cases(
    argv: tuple[str, ...], cases: list[str], expected: tuple[str, ...]
) -> None:
    assert command(argv, cases=cases) == expected


def test_go_gets_a_time_limit_per_package() -> None:
    assert "-timeout=60s" in command(GO, seconds=10)
    assert command(("go", "test", "-timeout", "5s"), seconds=10).count("-timeout=60s") == 0


def test_javascript_reads_the_wanted_cases_from_its_environment() -> None:
    environment = variables(seconds=10, cases=["test/a.js::outer (x) > inner"])
    assert environment["MOOTHALL_ONLY"] == r"outer\ \(x\)\ inner$"
    assert environment["MOOTHALL_ONLY_LAST"] == "^inner$"
    assert "MOOTHALL_ONLY" not in variables(seconds=10)
    assert "MOOTHALL_ONLY" not in variables(seconds=10, cases=["a.js::a NUL \0 in it"])
    for named in ("adds", "adds #2"):  # numbered by the runner, or named so by its author
        assert re.search(variables(seconds=10, cases=["a.js::adds #2"])["MOOTHALL_ONLY"], named)


def test_the_projects_own_python_path_is_kept() -> None:
    assert command(("env", "PYTHONPATH=src", "pytest"))[1] == f"PYTHONPATH=src:{PLUGINS}"


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (PYTEST, True),
        (("/env/bin/pytest",), True),
        (("env", "A=b", "python3", "-m", "pytest"), True),
        (("uv", "run", "pytest", "-x"), True),
        (("make", "pytest"), False),
        ((), False),
    ],
)
def test_pytest_commands_are_recognised(argv: tuple[str, ...], *, expected: bool) -> None:
    assert is_pytest(argv) is expected


@pytest.mark.parametrize(
    ("argv", "started"),
    [
        ("python manage.py test", "python -m moothall_script manage.py test"),
        (
            "python -W error manage.py test app1",
            "python -W error -m moothall_script manage.py test app1",
        ),
        ("./manage.py test", "python -m moothall_script ./manage.py test"),
        ("uv run manage.py test", "uv run python -m moothall_script manage.py test"),
        (
            "env --chdir=web python manage.py test",
            "env --chdir=web python -m moothall_script manage.py test",
        ),
        (
            "python -m django test --settings=a.b",
            "python -m moothall_script -m django test --settings=a.b",
        ),
        ("django-admin test app1", "python -m moothall_script -m django test app1"),
        ("python tests/runtests.py -v", "python -m moothall_script tests/runtests.py -v"),
    ],
)
def test_a_unittest_script_is_run_with_our_runner(argv: str, started: str) -> None:
    words = tuple(argv.split())
    assert command(words) == tuple(started.split())
    assert command(command(words)) == command(words)
    assert command(words, cases=("app1.tests.T.test_a",))[-2:] == ("-k", "app1.tests.T.test_a")
    assert command(words, ("app1/tests.py",))[-1] == "app1.tests"


def test_a_django_label_is_relative_to_its_working_folder() -> None:
    words = ("env", "--chdir=web", "python", "manage.py", "test")
    assert command(words, ("web/app1/tests.py",))[-1] == "app1.tests"


def test_options_of_pytest_are_passed_through_poetry() -> None:
    argv = ("poetry", "run", "pytest", "-x")
    assert command(argv) == ("poetry", "run", "--", "pytest", "-x", "-q", "--rootdir=.", "--")
    assert is_pytest(command(argv))


def test_other_django_commands_are_unchanged() -> None:
    assert command(("python", "manage.py", "check")) == ("python", "manage.py", "check")


@pytest.mark.parametrize(
    ("argv", "cases", "paths", "expected"),
    [
        (
            ("go", "test", "./..."),
            ("./cmd::TestA", "cmd/new_test.go"),
            ("cmd/new_test.go",),
            ("go", "test", "-json", "./cmd"),
        ),
        (
            ("go", "test", "./..."),
            ("./cmd::TestA", "doc/new_test.go"),
            ("doc/new_test.go",),
            ("go", "test", "-json", "./cmd", "./doc"),
        ),
        (
            ("npm", "exec", "--offline", "--call", "ava"),
            (),
            ("test/new one.ts",),
            ("npm", "exec", "--offline", "--call", "ava 'test/new one.ts'"),
        ),
        (("npm", "test"), (), ("test/new.js",), ("npm", "test", "--", "test/new.js")),
    ],
)
def test_a_new_test_file_runs_beside_the_selected_cases(
    argv: tuple[str, ...], cases: tuple[str, ...], paths: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert command(argv, paths, cases=cases) == expected


def test_a_new_unittest_file_is_not_filtered_by_the_cases_of_others() -> None:
    narrowed = command(
        ("python", "-m", "unittest"),
        ("tests/test_a.py", "tests/test_new.py"),
        cases=("tests.test_a.T.test", "tests/test_new.py"),
    )
    assert narrowed[-2:] == ("tests/test_a.py", "tests/test_new.py")
    assert "-k" not in narrowed
