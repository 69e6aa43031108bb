"""A script that sets NODE_OPTIONS itself: its value and our reporter are both kept."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from moothall.sandbox_runtime.cases import Cases, read_folder
from moothall.sandbox_runtime.checks import variables, with_reporters_path
from moothall.sandbox_runtime.plugins import FOLDER

pytestmark = pytest.mark.e2e  # real processes over and over: run with the end-to-end tests

_TEST = """const test = require('node:test');
const assert = require('node:assert');
test('deprecated', () => assert.strictEqual(process.noDeprecation, true));
"""


def run_node_tests(top: Path, script: str, **overrides: str) -> tuple[Cases, str]:
    if shutil.which("node") is None:
        pytest.skip("node is not installed; apt-get install nodejs brings it")
    reports = top / "reports"
    reports.mkdir()
    (top / "shop.test.js").write_text(_TEST, encoding="utf-8")
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("NODE_")}
    check_variables = variables(seconds=20, plugins=str(FOLDER), folder=str(reports))
    env = (
        inherited
        | check_variables
        | {"PATH": with_reporters_path(os.environ["PATH"], str(FOLDER))}
        | overrides
    )
    process = subprocess.run(
        ["sh", "-c", script], cwd=top, env=env, check=False, capture_output=True, text=True
    )
    cases = Cases()
    read_folder(cases, str(reports))
    return cases, process.stdout + process.stderr


@pytest.mark.parametrize(
    "script",
    [
        "NODE_OPTIONS=--no-deprecation node --test",
        "env NODE_OPTIONS=--no-deprecation node --test",
        "export NODE_OPTIONS=--no-deprecation; node --test",
        "NODE_OPTIONS= node --no-deprecation --test",
        "unset NODE_OPTIONS; node --no-deprecation --test",
    ],
)
def test_a_script_that_sets_node_options_reports_its_cases(tmp_path: Path, script: str) -> None:
    cases, printed = run_node_tests(tmp_path, script)
    assert cases.results == {"shop.test.js::deprecated": "passed"}, printed


def test_a_package_manager_that_prepends_its_own_node_keeps_the_reporter(tmp_path: Path) -> None:
    node_folder = tmp_path / "own"
    node_folder.mkdir()
    (node_folder / "node").write_text(
        f'#!/bin/sh\nexec {shutil.which("node")} "$@"\n', encoding="utf-8"
    )
    (node_folder / "node").chmod(0o755)
    script = "NODE_OPTIONS=--no-deprecation node --test"
    (tmp_path / "yarn.js").write_text(
        "const { spawn } = require('child_process');\n"
        f"const env = {{ ...process.env, PATH: '{node_folder}:' + process.env.PATH }};\n"
        f"spawn('{script}', {{ env, shell: true, stdio: 'inherit' }}).on('close', (code) => "
        "process.exit(code));\n",
        encoding="utf-8",
    )
    cases, printed = run_node_tests(tmp_path, f"node {tmp_path / 'yarn.js'}")
    assert cases.results == {"shop.test.js::deprecated": "passed"}, printed


def test_without_the_reporter_node_gets_only_the_options_of_the_script(tmp_path: Path) -> None:
    cases, printed = run_node_tests(
        tmp_path, "NODE_OPTIONS=--no-deprecation node -p process.env.NODE_OPTIONS", MOOTHALL_NODE=""
    )
    assert (cases.results, printed.strip()) == ({}, "--no-deprecation")


def test_a_path_without_node_is_unchanged(tmp_path: Path) -> None:
    assert with_reporters_path(str(tmp_path)) == str(tmp_path)


def test_the_launcher_is_executable() -> None:
    assert (FOLDER / "bin" / "node").stat().st_mode & stat.S_IXUSR
