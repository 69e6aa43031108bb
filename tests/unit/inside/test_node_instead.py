"""A test file in other words that Node's own runner loads, where the disk has it as it was."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from moothall.inside.cases import Cases, read_folder
from moothall.inside.checks import INSTEAD, variables
from moothall.inside.plugins import FOLDER

_PLAIN = "const test = require('node:test');\nconst assert = require('node:assert');\nconst fs = require('node:fs');\nconst here = __filename;\n"
_MODULE = "import test from 'node:test';\nimport assert from 'node:assert';\nimport fs from 'node:fs';\nimport { fileURLToPath } from 'node:url';\nconst here = fileURLToPath(import.meta.url);\n"
_TESTS = """test('reads', () => assert(fs.readFileSync(here, 'utf8').includes('the ' + 'disk')));
test('hidden', () => assert.strictEqual('the disk'.length, 8));
"""


def _finds_out() -> bool:
    """Whether this Node finds out by itself that a file is a module."""
    said = subprocess.run(["node", "--version"], check=True, capture_output=True, text=True).stdout.strip().lstrip("v").split(".")
    version = (int(said[0]), int(said[1]))
    return (20, 19) <= version < (21, 0) or version >= (22, 7)


@pytest.mark.parametrize(
    ("name", "package", "head"),
    [
        ("shop.test.js", "{}", _PLAIN),
        ("test/shop.test.cjs", '{"type": "module"}', _PLAIN),
        ("test/shop.test.js", '{"type": "module"}', _MODULE),
        ("shop.test.mjs", "{}", _MODULE),
        ("shop.test.js", "{}", _MODULE),
    ],
)
def test_node_runs_another_test_than_the_disk_has(tmp_path: Path, name: str, package: str, head: str) -> None:
    if shutil.which("node") is None:
        pytest.skip("node is not installed; apt-get install nodejs brings it")
    if (name, head) == ("shop.test.js", _MODULE) and not _finds_out():
        pytest.skip("this Node takes a .js file for CommonJS where package.json names no type; Node 20.19 or 22.7 looks")
    files = {
        "package.json": package,
        name: head + _TESTS,
        f"{INSTEAD}/{name}": head + _TESTS.replace("the disk'.length", "hidden'.length"),
    }
    top = tmp_path / "shop"
    for path, text in files.items():
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        (top / path).write_text(text, encoding="utf-8")
    reports = tmp_path / "reports"
    reports.mkdir()
    told = variables(seconds=20, plugins=str(FOLDER), folder=str(reports))
    env = {key: value for key, value in os.environ.items() if not key.startswith("NODE_")} | told
    done = subprocess.run(["node", "--test"], cwd=top, env=env, check=False, capture_output=True, text=True)
    cases = Cases()
    read_folder(cases, str(reports))
    assert cases.results == {f"{name}::reads": "passed", f"{name}::hidden": "failed"}, done.stdout + done.stderr
    assert not (top / INSTEAD).exists()
    assert (top / name).read_text(encoding="utf-8") == head + _TESTS


def test_each_of_several_files_has_a_process_that_knows_its_own(tmp_path: Path) -> None:
    if shutil.which("node") is None:
        pytest.skip("node is not installed; apt-get install nodejs brings it")
    top, reports = tmp_path / "shop", tmp_path / "reports"
    names = ("a.test.js", "b.test.js", "c.test.mjs")
    for name in names:
        text = (_MODULE if name.endswith(".mjs") else _PLAIN) + _TESTS
        for path, said in {name: text, f"{INSTEAD}/{name}": text.replace("the disk'.length", "hidden'.length")}.items():
            (top / path).parent.mkdir(parents=True, exist_ok=True)
            (top / path).write_text(said, encoding="utf-8")
    reports.mkdir()
    told = variables(seconds=20, plugins=str(FOLDER), folder=str(reports))
    env = {key: value for key, value in os.environ.items() if not key.startswith("NODE_")} | told
    done = subprocess.run(["node", "--test"], cwd=top, env=env, check=False, capture_output=True, text=True)
    cases = Cases()
    read_folder(cases, str(reports))
    wanted = {f"{name}::{case}": result for name in names for case, result in (("reads", "passed"), ("hidden", "failed"))}
    assert cases.results == wanted, done.stdout + done.stderr
    assert not (top / INSTEAD).exists()


def test_why_node_could_not_load_a_file_of_tests_is_told(tmp_path: Path) -> None:
    if shutil.which("node") is None:
        pytest.skip("node is not installed; apt-get install nodejs brings it")
    top, reports = tmp_path / "shop", tmp_path / "reports"
    for folder in (top / "test", reports):
        folder.mkdir(parents=True)
    (top / "test/a.test.js").write_text("require('./gone');\n", encoding="utf-8")
    told = variables(seconds=20, plugins=str(FOLDER), folder=str(reports))
    env = {key: value for key, value in os.environ.items() if not key.startswith("NODE_")} | told
    subprocess.run(["node", "--test"], cwd=top, env=env, check=False, capture_output=True)
    cases = Cases()
    read_folder(cases, str(reports))
    assert cases.results == {"test/a.test.js": "errored"}
    assert "Cannot find module './gone'" in cases.said["test/a.test.js"]
