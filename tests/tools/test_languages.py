"""Projects in languages other than Python: detected, set up with their dependencies, and tested in
the sandbox without network.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from moothall.app.command_repository import register
from moothall.app.workspaces import open_workspace_services
from moothall.config import SandboxSettings
from moothall.domain.evidence import Verdict
from moothall.domain.tool import ToolCall, ToolStatus
from moothall.settings import load_settings
from support.repos import make_repo

pytestmark = pytest.mark.e2e


@dataclass(frozen=True, slots=True)
class Project:
    """A project whose tests fail, and pass with `mended`."""

    program: str
    bring: str
    tool: str
    files: Mapping[str, str]
    mended: tuple[str, str]


_GO_TEST = """package sum
import "testing"
func TestSum(t *testing.T) { if Sum(2, 3) != 5 { t.Fatal("2 + 3 is 5") } }
"""
_CARGO = """[package]
name = "sum"
version = "0.1.0"
edition = "2021"
[dependencies]
itoa = "1"
"""
_RUST = """pub fn sum(a: i32, b: i32) -> String { itoa::Buffer::new().format(a - b).to_owned() }
#[cfg(test)]
mod tests { #[test] fn sums() { assert_eq!(super::sum(2, 3), "5"); } }
"""
_NODE_TEST = """const test = require('node:test'), assert = require('node:assert'), sum = require('./sum');
test('sums', () => assert.equal(sum(2, 3), '5'));
"""  # noqa: E501 - a line of embedded text
_NODE = (
    "const ms = require('ms'); if (ms('1s') !== 1000) throw 0; module.exports = (a, b) => String(a "
    "- b);\n"
)
_PACKAGE = (
    '{"name": "sum", "version": "1.0.0", "scripts": {"test": "node --test"}, "dependencies": '
    '{"ms": "2.1.3"}}'
)
_GO = (
    'package sum\nimport "github.com/google/uuid"\nfunc Sum(a, b int) int { _ = uuid.Nil; return '
    "a - b }\n"
)
_MAKE = "test:\n\t./check.sh\n"

PROJECTS = {
    "npm": Project(
        "node",
        "apt-get install nodejs npm",
        "tests.npm",
        {"package.json": _PACKAGE, "sum.js": _NODE, "sum.test.js": _NODE_TEST},
        ("sum.js", _NODE.replace("a - b", "a + b")),
    ),
    "go": Project(
        "go",
        "apt-get install golang",
        "tests.go",
        {
            "go.mod": (
                "module example.org/sum\n\ngo 1.19\n\nrequire github.com/google/uuid v1.6.0\n"
            ),
            "go.sum": (
                "github.com/google/uuid v1.6.0 h1:NIvaJDMOsjHA8n1jAhLSgzrAzy1Hgr+hNrb57e+94F0=\n"
                "github.com/google/uuid v1.6.0/go.mod "
                "h1:TIyPZe4MgqvfeYDBFedMoGGpEw/LqOeaOT+nhxU+yHo=\n"
            ),
            "sum.go": _GO,
            "sum_test.go": _GO_TEST,
        },
        ("sum.go", _GO.replace("a - b", "a + b")),
    ),
    "cargo": Project(
        "rustc",
        "apt-get install cargo",
        "tests.cargo",
        {"Cargo.toml": _CARGO, "src/lib.rs": _RUST, ".gitignore": "target/\n"},
        ("src/lib.rs", _RUST.replace("a - b", "a + b")),
    ),
    "make": Project(
        "make",
        "apt-get install make",
        "tests.make",
        {
            "Makefile": _MAKE,
            "check.sh": '#!/bin/sh\ntest "$(cat sum.txt)" = 5\n',
            "sum.txt": "-1\n",
        },
        ("sum.txt", "5\n"),
    ),
}


_VITEST = """import { describe, expect, it } from 'vitest';
import { add } from './add.js';
describe('add', () => {
  it('adds', () => expect(add(1, 2)).toBe(3));
  it('takes nought', () => expect(add(1, 0)).toBe(1));
  it('takes nought', () => expect(add(0, 1)).toBe(1));
  it.skip('later', () => {});
});
"""
_JEST = """const add = require('./add');
describe('add', () => {
  test('adds', () => expect(add(1, 2)).toBe(3));
  test('takes nought', () => expect(add(1, 0)).toBe(1));
  test('takes nought', () => expect(add(0, 1)).toBe(1));
  test.skip('later', () => {});
});
"""
_SUITE = """const assert = require('node:assert'), add = require('./add');
describe('add', () => {
  it('adds', () => assert.equal(add(1, 2), 3));
  it('takes nought', () => assert.equal(add(1, 0), 1));
  it('takes nought', () => assert.equal(add(0, 1), 1));
  it.skip('later', () => {});
});
"""
_NODE_TEST_SUITE = f"const {{ describe, it }} = require('node:test');\n{_SUITE}"
RUNNERS: dict[str, dict[str, str]] = {
    "vitest": {
        "package.json": (
            '{"name": "add", "type": "module", "scripts": {"test": "vitest run"}, '
            '"devDependencies": {"vitest": "3.2.4"}}'
        ),
        "add.js": "export const add = (a, b) => a - b;\n",
        "add.test.js": _VITEST,
    },
    "jest": {
        "package.json": (
            '{"name": "add", "scripts": {"test": "jest"}, "devDependencies": {"jest": "29.7.0"}}'
        ),
        "add.js": "module.exports = (a, b) => a - b;\n",
        "add.test.js": _JEST,
    },
    "borp": {
        "package.json": (
            '{"name": "add", "scripts": {"test": "borp --reporter=dot"}, "devDependencies": '
            '{"borp": "1.0.0"}}'
        ),
        "add.js": "module.exports = (a, b) => a - b;\n",
        "add.test.js": _NODE_TEST_SUITE,
    },
    "node:test": {
        "package.json": '{"name": "add", "scripts": {"test": "node --test"}}',
        "add.js": "module.exports = (a, b) => a - b;\n",
        "add.test.js": _NODE_TEST_SUITE,
    },
    "mocha": {
        "package.json": (
            '{"name": "add", "scripts": {"test": "mocha *.test.js"}, "devDependencies": {"mocha": '
            '"10.8.2"}}'
        ),
        "add.js": "module.exports = (a, b) => a - b;\n",
        "add.test.js": _SUITE,
    },
}
"""Runners of JavaScript, with two cases of one title."""


def _toolchains(program: str) -> tuple[Path, ...]:
    """Show the sandbox the folder of Rust, which rustup put into its owner's home."""
    if program != "rustc":
        return ()
    completed = subprocess.run(
        ["rustc", "--print", "sysroot"], capture_output=True, text=True, check=True
    )
    root = Path(completed.stdout.strip())
    return () if root.is_relative_to("/usr") else (root,)


@pytest.mark.parametrize("name", PROJECTS)
async def test_a_project_is_set_up_and_its_tests_report_cases(tmp_path: Path, name: str) -> None:
    project = PROJECTS[name]
    if shutil.which(project.program) is None:
        pytest.skip(f"{project.program} is not installed: {project.bring}")
    repo = make_repo(tmp_path / "repo", project.files)
    if name == "make":
        (repo.path / "check.sh").chmod(0o755)
        repo.commit()
    settings = load_settings(
        data_dir=tmp_path / "data", sandbox=SandboxSettings(toolchains=_toolchains(project.program))
    )
    async with open_workspace_services(settings) as services:
        base = await services.repositories.resolve(await register(settings, str(repo.path), "HEAD"))
        prepared = await services.repositories.prepare(base)
        assert prepared.runs["tests"].verdict is Verdict.FAILED, prepared.runs["tests"].output
        async with services.workspaces.open(prepared, "one") as workspace:
            deadline = datetime.now(UTC) + timedelta(seconds=240)
            tests = ToolCall("1", project.tool, {}, deadline)
            red = await workspace.call(tests)
            assert (red.status, red.output["verdict"]) == (ToolStatus.SUCCESS, "failed"), red
            path, content = project.mended
            write_result = await workspace.call(
                ToolCall("2", "files.write", {"path": path, "content": content}, deadline)
            )
            assert write_result.status is ToolStatus.SUCCESS
            if name == "go":
                # For files unchanged for so long, it would write an index into its read-only cache.
                await asyncio.sleep(2.1)
            green = await workspace.call(replace(tests, request_id="3"))
            assert (green.status, green.output["verdict"]) == (ToolStatus.SUCCESS, "passed"), green
            assert green.usage.cpu_ms > 0
            assert (await workspace.patch("mended")).paths == (path,), (
                "build output is not part of the change"
            )


@pytest.mark.skipif(
    shutil.which("npm") is None, reason="npm is not installed: apt-get install nodejs npm"
)
@pytest.mark.parametrize("name", RUNNERS)
async def test_a_javascript_runner_reports_its_cases_by_name(tmp_path: Path, name: str) -> None:
    repo = make_repo(tmp_path / "repo", RUNNERS[name])
    settings = load_settings(data_dir=tmp_path / "data")
    async with open_workspace_services(settings) as services:
        prepared = await services.repositories.prepare(
            await services.repositories.resolve(await register(settings, str(repo.path), "HEAD"))
        )
    run = prepared.runs["tests"]
    assert {case: str(outcome) for case, outcome in run.cases.items()} == {
        "add.test.js::add > adds": "failed",
        "add.test.js::add > takes nought": "passed",
        "add.test.js::add > takes nought #2": "failed",
        "add.test.js::add > later": "skipped",
    }, run.output


@pytest.mark.skipif(
    shutil.which("npm") is None, reason="npm is not installed: apt-get install nodejs npm"
)
@pytest.mark.parametrize("manager", ["pnpm@9.15.0", "yarn@1.22.22", "yarn@4.5.3"])
async def test_a_project_is_set_up_with_its_declared_package_manager(
    tmp_path: Path, manager: str
) -> None:
    files = {
        **PROJECTS["npm"].files,
        "package.json": _PACKAGE.replace('"scripts"', f'"packageManager": "{manager}", "scripts"'),
    }
    if manager == "yarn@4.5.3":  # its own registry may be unreachable even if npm's is reachable
        registry = subprocess.run(
            ["npm", "config", "get", "registry"], capture_output=True, text=True, check=True
        )
        files[".yarnrc.yml"] = f"npmRegistryServer: {registry.stdout.strip().rstrip('/')}\n"
    repo = make_repo(tmp_path / "repo", files)
    settings = load_settings(data_dir=tmp_path / "data")
    messages: list[str] = []
    async with open_workspace_services(settings) as services:
        base = await services.repositories.resolve(await register(settings, str(repo.path), "HEAD"))
        prepared = await services.repositories.prepare(base, messages.append)
    assert not any("trying with less" in line for line in messages), messages
    run = prepared.runs["tests"]
    assert {case: str(outcome) for case, outcome in run.cases.items()} == {
        "sum.test.js::sums": "failed"
    }, run.output
