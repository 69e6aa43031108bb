"""Checks in a real sandbox: checks that hang, that end their process, and that report no cases."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from moothall.domain.evidence import CheckRun, Verdict
from moothall.ranking import diagnose
from support.local import PYTEST, local

pytestmark = pytest.mark.e2e
BASE = CheckRun("tests", Verdict.PASSED, {"t": "passed"}, duration_ms=100, durations={"t": 10})
TESTS = """
import ctypes, os, time

def test_first():
    pass

def test_loop():
    while True:
        pass

def test_ends():
    os._exit(0)

def test_crashes():
    ctypes.string_at(0)

def test_last():
    pass
"""
JUNIT = (
    '<testsuites><testcase classname="a.B" name="x"/><testcase classname="a.B" '
    'name="y"><failure>no</failure></testcase></testsuites>'
)


async def test_a_case_that_hangs_or_ends_the_process_fails_alone(
    tmp_path: Path,
) -> None:
    async with local(tmp_path, {"tests/test_a.py": TESTS}) as app:
        prepared = replace(await app.prepared({"tests": PYTEST}), runs={"tests": BASE})
        async with app.workspaces.open(prepared, "a") as workspace:
            run = await workspace.check("tests")
            narrow = await workspace.check("tests", cases=("tests/test_a.py::test_last",))
    at = "tests/test_a.py::test_"
    assert run.cases == {
        f"{at}first": "passed",
        f"{at}loop": "failed",
        f"{at}ends": "failed",
        f"{at}crashes": "failed",
        f"{at}last": "passed",
    }
    assert (run.verdict, run.status) == (Verdict.FAILED, "success")
    assert "hit the limit of 10 s" in run.details[f"{at}loop"]
    assert "the process ended in it, with exit code 0" in run.details[f"{at}ends"]
    assert narrow.cases == {f"{at}last": "passed"}


async def test_a_check_over_its_time_limit_names_the_limit_and_the_setting(tmp_path: Path) -> None:
    async with local(tmp_path) as app:
        prepared = await app.prepared({"tests": ("sh", "-c", "echo begun; sleep 100")})
        quick = replace(BASE, cases={})
        quickly = app.settings.workspace.model_copy(update={"check_floor_seconds": 2.0})
        app.workspaces._settings = app.settings.model_copy(update={"workspace": quickly})
        async with app.workspaces.open(replace(prepared, runs={"tests": quick}), "a") as workspace:
            run = await workspace.check("tests")
    assert run.output.startswith(
        "tests hit the limit of 2 s (workspace.check_floor_seconds)\nbegun"
    )
    diagnosis = diagnose(replace(prepared, runs={"tests": run}))
    assert "tests hit the limit of 2 s (workspace.check_floor_seconds)" in diagnosis.text


async def test_time_during_which_a_check_was_stopped_does_not_count(tmp_path: Path) -> None:
    async with local(tmp_path) as app:
        prepared = await app.prepared({"tests": ("sh", "-c", "sleep 1.25")})
        quickly = app.settings.workspace.model_copy(update={"check_floor_seconds": 3.0})
        app.workspaces._settings = app.settings.model_copy(update={"workspace": quickly})
        quick = replace(prepared, runs={"tests": replace(BASE, cases={})})
        async with app.workspaces.open(quick, "a") as workspace, asyncio.TaskGroup() as group:
            check = group.create_task(workspace.check("tests"))
            sleeping: list[psutil.Process] = []
            while not sleeping:
                await asyncio.sleep(0.05)
                children = psutil.Process().children(recursive=True)
                sleeping = [
                    process
                    for process in children
                    if "1.25" in process.cmdline() and process.name() == "sleep"
                ]
            sandbox = [
                process for process in sleeping[0].parents() if process in children
            ] + sleeping
            for process in sandbox:
                process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(5)
            for process in sandbox:
                process.send_signal(signal.SIGCONT)
    run = check.result()
    assert (run.verdict, run.status) == (Verdict.PASSED, "success")


async def test_make_is_one_case_and_junit_files_add_theirs(tmp_path: Path) -> None:
    files = {"Makefile": "test:\n\t@grep -q right answer\n", "answer": "wrong\n", "r.xml": JUNIT}
    async with local(tmp_path, files) as app:
        prepared = await app.prepared({"tests": ("make", "test")})
        writes = await app.prepared(
            {"tests": ("sh", "-c", "mkdir -p out; cp r.xml out/a.xml; exit 1")},
            reports={"tests": ("out/*.xml",)},
        )
        async with app.workspaces.open(prepared, "a") as workspace:
            red = await workspace.check("tests")
        async with app.workspaces.open(writes, "b") as workspace:
            run = await workspace.check("tests")
    assert (red.verdict, red.cases) == (Verdict.FAILED, {})
    assert run.cases == {"a.B::x": "passed", "a.B::y": "failed"}
    assert run.details == {"a.B::y": "no"}
