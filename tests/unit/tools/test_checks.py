from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from moothall.tools.checks import REPORT, is_pytest, narrowed, pytest_command, read_report, verdict

PYTEST = ("python", "-m", "pytest", "-q")

TESTS = """
import pytest

class TestA:
    class TestB:
        @pytest.mark.parametrize("x", ["a b", "c/d::e"])
        def test_p(self, x):
            assert x != "a b"

def test_skip():
    pytest.skip("later")

@pytest.mark.xfail
def test_xfail():
    assert False

@pytest.fixture
def broken():
    yield
    raise ValueError

def test_teardown(broken):
    pass

def test_both(broken):
    assert False

def test_fine():
    pass
"""


def test_cases_of_a_real_run(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text(TESTS, encoding="utf-8")
    (tmp_path / "tests" / "test_b.py").write_text("import nothing_of_that_name\n", encoding="utf-8")
    report = tmp_path / "report.xml"
    command = [part.replace(REPORT, str(report)) for part in pytest_command((sys.executable, *PYTEST[1:]), ["tests"])]
    env = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, check=False)
    cases = read_report(str(report))
    assert cases == {
        "tests/test_b.py": "errored",
        "tests/test_a.py::TestA::TestB::test_p[a b]": "failed",
        "tests/test_a.py::TestA::TestB::test_p[c/d::e]": "passed",
        "tests/test_a.py::test_skip": "skipped",
        "tests/test_a.py::test_xfail": "skipped",
        "tests/test_a.py::test_teardown": "errored",
        "tests/test_a.py::test_both": "errored",
        "tests/test_a.py::test_fine": "passed",
    }
    assert verdict(PYTEST, done.returncode, cases) == "failed"


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
    ],
)
def test_verdicts(argv: tuple[str, ...], code: int, cases: dict[str, str], expected: str) -> None:
    assert verdict(argv, code, cases) == expected


def test_paths_and_keywords_are_no_options() -> None:
    command = pytest_command(("pytest", "--", "tests"), ["--collect-only", "@file", "tests/a.py"], "-x")
    assert command[command.index("--") :] == ("--", "./--collect-only", "./@file", "tests/a.py")
    assert "-k=-x" in command
    assert pytest_command(("pytest", "--", "tests"))[-2:] == ("--", "tests")
    assert narrowed(("npm", "test"), ["-x"]) == ("npm", "test", "--", "./-x")
    assert narrowed(("go", "test", "./..."), ["pkg/a_test.go", "b_test.go"]) == ("go", "test", "./pkg", "./")
    assert narrowed(("make", "test"), ["x"]) == ("make", "test")


def test_what_is_pytest() -> None:
    assert is_pytest(PYTEST)
    assert is_pytest(("/env/bin/pytest",))
    assert is_pytest(("env", "A=b", "python3", "-m", "pytest"))
    assert not is_pytest(("make", "pytest"))
    assert not is_pytest(())


def test_a_report_that_is_none(tmp_path: Path) -> None:
    assert read_report(str(tmp_path / "absent.xml")) == {}
    broken = tmp_path / "broken.xml"
    broken.write_text("<testsuites><testcase name='a' classname='b'>", encoding="utf-8")
    assert read_report(str(broken)) == {}
    bomb = tmp_path / "bomb.xml"
    entities = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 12))
    bomb.write_text(f'<!DOCTYPE x [<!ENTITY e0 "lol">{entities}]><testcase name="&e11;"/>', encoding="utf-8")
    assert read_report(str(bomb)) == {}
    (tmp_path / "link.xml").symlink_to(broken)
    assert read_report(str(tmp_path / "link.xml")) == {}
