from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from moothall.sandbox_runtime.cases import Cases, read_folder
from moothall.sandbox_runtime.checks import command, variables
from moothall.sandbox_runtime.plugins import FOLDER

pytestmark = pytest.mark.e2e  # real processes over and over: run with the end-to-end tests

TESTS = """
import signal, time
import pytest

class TestA:
    class TestB:
        @pytest.mark.parametrize("x", ["a b", "c/d::e"])
        def test_p(self, x):
            assert x != "a b"

class TestInherits(TestA):
    pass

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

@pytest.mark.parametrize("how", [1, 2])
def test_loop(how):
    while True:
        try:
            time.sleep(0.01)
        except Exception:
            pass

def test_fine():
    assert signal.getsignal(signal.SIGALRM) is not None
"""
UNITTESTS = """
import unittest

class TestA(unittest.TestCase):
    def test_fine(self):
        pass
    def test_red(self):
        with self.subTest(x=1):
            self.assertEqual(1, 2)
    @unittest.skip("later")
    def test_skip(self):
        pass
    def test_loop(self):
        while True:
            pass

class TestB(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        raise ValueError("no")
    def test_never(self):
        pass
"""


def run_plugin(folder: Path, argv: tuple[str, ...], seconds: float, **overrides: str) -> Cases:
    reports = folder / "reports"
    reports.mkdir(exist_ok=True)
    env = {
        **variables(seconds=seconds, plugins=str(FOLDER), folder=str(reports)),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    env["PYTHONPATH"] = ":".join([env["PYTHONPATH"], *sys.path])
    with subprocess.Popen(
        command(argv),
        cwd=folder,
        env=env | overrides,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as running:
        while (stop := folder / "stand-still").exists() or running.poll() is None:
            if stop.exists():
                stop.unlink()
                running.send_signal(signal.SIGSTOP)
                time.sleep(3)
                running.send_signal(signal.SIGCONT)
            time.sleep(0.02)
    cases = Cases()
    read_folder(cases, str(reports))
    return cases


@pytest.mark.e2e  # a pytest with two cases that wait out their limit
def test_pytest_reports_the_ids_it_prints_and_ends_hanging_tests(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text(TESTS, encoding="utf-8")
    (tmp_path / "tests" / "test_b.py").write_text("import nothing_of_that_name\n", encoding="utf-8")
    cases = run_plugin(tmp_path, (sys.executable, "-m", "pytest", "-x", "tests"), 0.5)
    assert cases.results == {
        "tests/test_b.py": "errored",
        "tests/test_a.py::TestA::TestB::test_p[a b]": "failed",
        "tests/test_a.py::TestA::TestB::test_p[c/d::e]": "passed",
        "tests/test_a.py::TestInherits::TestB::test_p[a b]": "failed",
        "tests/test_a.py::TestInherits::TestB::test_p[c/d::e]": "passed",
        "tests/test_a.py::test_skip": "skipped",
        "tests/test_a.py::test_xfail": "skipped",
        "tests/test_a.py::test_teardown": "errored",
        "tests/test_a.py::test_both": "errored",
        "tests/test_a.py::test_loop[1]": "failed",
        "tests/test_a.py::test_loop[2]": "failed",
        "tests/test_a.py::test_fine": "passed",
    }
    assert cases.is_finished
    assert "hit the limit of 0.5 s" in cases.details["tests/test_a.py::test_loop[1]"]
    assert "No module named 'nothing_of_that_name'" in cases.details["tests/test_b.py"]
    assert "assert 'a b' != 'a b'" in cases.details["tests/test_a.py::TestA::TestB::test_p[a b]"]


@pytest.mark.e2e  # a pytest that is started anew
def test_pytest_continues_after_a_case_that_ended_the_process(tmp_path: Path) -> None:
    text = "import os\ndef test_a(): pass\ndef test_b(): os._exit(0)\ndef test_c(): pass\n"
    (tmp_path / "test_a.py").write_text(text, encoding="utf-8")
    argv = (sys.executable, "-m", "pytest")
    first = run_plugin(tmp_path, argv, 60)
    assert (first.results, list(first.running), first.is_finished) == (
        {"test_a.py::test_a": "passed"},
        ["test_a.py::test_b"],
        False,
    )
    second = run_plugin(tmp_path, argv, 60, MOOTHALL_AGAIN="1")
    assert second.results == {"test_a.py::test_a": "passed", "test_a.py::test_c": "passed"}
    assert second.is_finished


@pytest.mark.e2e  # real runs of unittest
def test_garbage_of_tests_is_collected_and_the_runner_is_frozen(tmp_path: Path) -> None:
    text = """
import gc, weakref

class A:
    pass

def test_collected():
    a = A()
    a.own = a
    seen = weakref.ref(a)
    del a
    gc.collect()
    assert gc.isenabled() and seen() is None

def test_left_out():
    assert gc.get_freeze_count() > 1000
"""
    (tmp_path / "test_a.py").write_text(text, encoding="utf-8")
    cases = run_plugin(tmp_path, (sys.executable, "-m", "pytest"), 60)
    assert cases.results == {
        "test_a.py::test_collected": "passed",
        "test_a.py::test_left_out": "passed",
    }


def test_a_test_file_that_runs_itself_or_exits_does_not_affect_other_files(tmp_path: Path) -> None:
    case = "import unittest\nclass TestA(unittest.TestCase):\n    def test_a(self): pass\n"
    for name, text in (
        ("a", f"{case}unittest.main()\n"),
        ("b", f"{case}raise SystemExit('no')\n"),
        ("c", case),
    ):
        (tmp_path / f"test_{name}.py").write_text(text, encoding="utf-8")
    cases = run_plugin(tmp_path, (sys.executable, "-m", "pytest"), 5)
    assert cases.results == {
        "test_a.py::TestA::test_a": "passed",
        "test_b.py": "errored",
        "test_c.py::TestA::test_a": "passed",
    }
    assert "it ended the process: SystemExit('no')" in cases.details["test_b.py"]


@pytest.mark.e2e  # a pytest that starts pytest
def test_pytest_started_by_tests_is_not_reported(tmp_path: Path) -> None:
    text = (
        "import subprocess, sys\ndef test_inner(): pass\ndef test_outer():\n    "
        "subprocess.run([sys.executable, '-m', 'pytest', '-k', 'inner'])\n"
    )
    (tmp_path / "test_a.py").write_text(text, encoding="utf-8")
    run_plugin(tmp_path, (sys.executable, "-m", "pytest"), 20)
    assert len(list((tmp_path / "reports").iterdir())) == 1


@pytest.mark.e2e  # a pytest that is started anew
def test_cases_are_reported_with_the_commands_own_pytest_options(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(
        "def test_a(): pass\ndef test_b(): assert False\n", encoding="utf-8"
    )
    cases = run_plugin(tmp_path, ("sh", "-c", f"PYTEST_ADDOPTS=-q {sys.executable} -m pytest"), 20)
    assert cases.results == {"test_a.py::test_a": "passed", "test_a.py::test_b": "failed"}


def test_unittest_cases_are_reported(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(UNITTESTS, encoding="utf-8")
    (tmp_path / "test_b.py").write_text("import nothing_of_that_name\n", encoding="utf-8")
    cases = run_plugin(tmp_path, (sys.executable, "-m", "unittest"), 0.5)
    assert cases.results == {
        "test_a.TestA.test_fine": "passed",
        "test_a.TestA.test_red": "failed",
        "test_a.TestA.test_skip": "skipped",
        "test_a.TestA.test_loop": "errored",
        "test_a.TestB": "errored",
        "test_b": "errored",
    }
    assert "hit the limit of 0.5 s" in cases.details["test_a.TestA.test_loop"]


_SCRIPT = """
import sys
import unittest

if __name__ == "__main__":
    assert sys.argv[1:] == ["test"], sys.argv
    suite = unittest.defaultTestLoader.discover(".", "test_*.py")
    sys.exit(not unittest.TextTestRunner(resultclass=None).run(suite).wasSuccessful())
"""


def test_a_script_that_runs_the_unittest_runner_reports_its_cases(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(UNITTESTS, encoding="utf-8")
    (tmp_path / "manage.py").write_text(_SCRIPT, encoding="utf-8")
    cases = run_plugin(tmp_path, (sys.executable, "manage.py", "test"), 0.5)
    assert cases.results["test_a.TestA.test_fine"] == "passed"
    assert cases.results["test_a.TestA.test_red"] == "failed"
    assert cases.results["test_a.TestB"] == "errored"


_STANDS = """
import pathlib, time, unittest

class TestA(unittest.TestCase):
    def test_stands_still(self):
        stop = pathlib.Path("stand-still")
        stop.touch()
        while stop.exists():
            pass
        time.sleep(0.2)
    def test_wait(self):
        time.sleep(9)
"""


@pytest.mark.e2e  # a process that stands still for seconds
@pytest.mark.parametrize("runner", ["pytest", "unittest"])
def test_time_during_which_the_process_was_stopped_does_not_count(
    tmp_path: Path, runner: str
) -> None:
    (tmp_path / "test_a.py").write_text(_STANDS, encoding="utf-8")
    cases = run_plugin(tmp_path, (sys.executable, "-m", runner), 0.8)
    results = {case[-len("test_wait") :]: result for case, result in cases.results.items()}
    assert results == {
        "nds_still": "passed",
        "test_wait": "failed" if runner == "pytest" else "errored",
    }


_CLOSES = (
    "import os, unittest\n\n\nclass TestA(unittest.TestCase):\n    def test_a(self):\n        {}\n"
    "\n    def test_b(self):\n        pass\n"
)


@pytest.mark.e2e  # real runs of pytest and unittest
@pytest.mark.parametrize("runner", ["pytest", "unittest"])
@pytest.mark.parametrize(
    "statement",
    [
        "os.closerange(3, 1000)",
        "[os.dup2(os.open('other', os.O_CREAT | os.O_WRONLY), n) for n in range(6, 300)]",
    ],
)
def test_closing_all_files_of_the_process_loses_no_case(
    tmp_path: Path, runner: str, statement: str
) -> None:
    (tmp_path / "test_a.py").write_text(_CLOSES.format(statement), encoding="utf-8")
    cases = run_plugin(
        tmp_path, (sys.executable, "-m", runner, *(("-s",) if runner == "pytest" else ())), 20
    )
    assert list(cases.results.values()) == ["passed", "passed"]
    other_file = tmp_path / "other"
    assert not other_file.exists() or other_file.read_bytes() == b""


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("moothall_*.py")))
def test_reporters_are_valid_python_3_7(name: str) -> None:
    import ast

    ast.parse((FOLDER / name).read_text(encoding="utf-8"), feature_version=(3, 7))


LOOKS = """
import os, signal, subprocess, sys, time
import moothall_reporter

moothall_reporter._pressure = time.monotonic  # the machine has no free core at any time
signal.signal(signal.SIGALRM, lambda *_: None)
clock = moothall_reporter.Clock(0.5)
child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
moothall_reporter._process = moothall_reporter._delay = lambda: 0.0  # of the parent, which waits
moothall_reporter._listdir = lambda path: [str(child.pid)] if path == "/proc" else os.listdir(path)

def look(sleeping):
    os.kill(child.pid, signal.SIGSTOP if sleeping else signal.SIGCONT)
    state = ""
    while (state == "T") != sleeping:
        state = open(f"/proc/{child.pid}/stat").read().rpartition(")")[2].split()[0]
    return clock.has_more_time()

looks = [look(sleeping == "1") for sleeping in sys.argv[1]]
child.kill()
print(*looks, clock.remark)
"""


@pytest.mark.parametrize(
    ("sleeping", "expected_output"),
    [("0110110", "True True True True True True True"), ("0111", "True True True False")],
)
def test_a_case_is_only_waiting_if_several_looks_in_a_row_find_it_idle(
    sleeping: str, expected_output: str
) -> None:
    process = subprocess.run(
        [sys.executable, "-c", LOOKS, sleeping],
        env={"PYTHONPATH": str(FOLDER)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert process.stdout.strip() == expected_output
