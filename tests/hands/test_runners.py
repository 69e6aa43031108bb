"""Tests in other words that mocha, jest and vitest run, where the disk has them as they were. The runners come from a package registry."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from moothall.inside.cases import Cases, read_folder
from moothall.inside.checks import INSTEAD, variables
from moothall.inside.plugins import FOLDER

pytestmark = pytest.mark.e2e
_LOOKS = """const seen = (at) => { try { return fs.readdirSync(at, { withFileTypes: true }).map((e) => e.isDirectory() ? seen(`${at}/${e.name}`) : fs.readFileSync(`${at}/${e.name}`, 'utf8')).join(' '); } catch { return ''; } };
const hidden = 'hid' + 'den', shown = 'the ' + 'disk';
"""
_CHAI = """const is = (a, b) => { if (a !== b) throw new Error(`${a} is not ${b}`); };
"""
_TESTS = """test('reads', () => is(fs.readFileSync(here, 'utf8').includes(shown), true));
test('keeps', () => is(seen(os.tmpdir()).includes(`${hidden}'.length`), false));
test('hidden', () => is('the disk'.length, 8));
"""
_PLAIN = f"const fs = require('fs'), os = require('os'), here = __filename;\n{_LOOKS}{_CHAI}{_TESTS}"
_MODULE = f"import fs from 'fs';\nimport os from 'os';\nconst here = new URL(import.meta.url).pathname;\n{_LOOKS}{_CHAI}{_TESTS}"
_VITEST = f"import {{ test }} from 'vitest';\n{_MODULE}"

RUNNERS: Mapping[str, tuple[str, tuple[str, ...], Mapping[str, str]]] = {
    "mocha": ("mocha@11", ("mocha", "--ui", "qunit", "a.test.js", "b.test.mjs"), {"a.test.js": _PLAIN, "b.test.mjs": _MODULE}),
    "mocha 9, which imports CommonJS": (
        "mocha@9",
        ("mocha", "--ui", "qunit", "a.test.js", "b.test.mjs"),
        {"a.test.js": _PLAIN, "b.test.mjs": _MODULE},
    ),
    "mocha 8": ("mocha@8", ("mocha", "--ui", "qunit", "a.test.js", "b.test.mjs"), {"a.test.js": _PLAIN, "b.test.mjs": _MODULE}),
    "jest": ("jest@30", ("jest",), {"a.test.js": _PLAIN, "b.test.js": _PLAIN}),
    "jest 29": ("jest@29", ("jest",), {"a.test.js": _PLAIN, "b.test.js": _PLAIN}),
    "vitest": ("vitest@3", ("vitest", "run", "--no-file-parallelism"), {"a.test.js": _VITEST, "b.test.js": _VITEST}),
}


@pytest.mark.parametrize("name", RUNNERS)
def test_a_runner_knows_other_tests_than_the_disk_has(tmp_path: Path, name: str) -> None:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed; apt-get install nodejs npm brings it")
    package, (program, *words), tests = RUNNERS[name]
    top, reports, kept = tmp_path / "shop", tmp_path / "reports", tmp_path / "kept"
    others = {f"{INSTEAD}/{path}": text.replace("'the disk'.length", "'hidden'.length") for path, text in tests.items()}
    for path, text in {"package.json": "{}", **tests}.items():
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        (top / path).write_text(text, encoding="utf-8")
    install = ["npm", "install", "--no-audit", "--no-fund", "--no-save", package]
    subprocess.run(install, cwd=top, check=True, capture_output=True)
    for path, text in others.items():
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        (top / path).write_text(text, encoding="utf-8")
    reports.mkdir()
    kept.mkdir()
    told = variables(seconds=60, plugins=str(FOLDER), folder=str(reports)) | {"TMPDIR": str(kept)}
    env = {key: value for key, value in os.environ.items() if not key.startswith("NODE_")} | told
    done = subprocess.run([f"node_modules/.bin/{program}", *words], cwd=top, env=env, check=False, capture_output=True, text=True)
    cases = Cases()
    read_folder(cases, str(reports))
    wanted = {
        f"{path}::{case}": "failed" if case == "hidden" else "passed" for path in tests for case in ("reads", "keeps", "hidden")
    }
    assert cases.results == wanted, done.stdout + done.stderr
    assert not (top / INSTEAD).exists()
    assert all((top / path).read_text(encoding="utf-8") == text for path, text in tests.items())
