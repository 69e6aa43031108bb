"""Canaries: tests that must fail. A runner that does not report one as failed is not trusted.

A canary is appended to the file of a passed case, so it runs in the same process as the evaluated
code. It fails by the usual assertion of its runner, so a replaced assertion is detected too. Its
name is random.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from moothall.domain.evidence import RED, CheckRun
from moothall.ranking.relevance import find_test_file
from moothall.sandbox_runtime.checks import is_pytest, reports_cases

_PYTHON = (
    "\n\nclass Test{name}(__import__('unittest').TestCase):\n    def test_{name}(self):\n        "
    "self.assertEqual(1, 2)\n"
)
_GO = (
    '\n\nfunc Test{name}(t *testing.T) {{\n\tif got := 1; got != 2 {{\n\t\tt.Errorf("got %d", '
    "got)\n\t}}\n}}\n"
)
_RUST = "\n#[cfg(test)]\n#[test]\nfn test_{name}() {{\n    assert_eq!(1, 2);\n}}\n"
_NODE_TEST = "\n;require('node:test')('{name}', () => require('node:assert').strictEqual(1, 2));\n"
_NODE_TEST_MODULE = (
    "\n;import test{name} from 'node:test';\nimport assert{name} from 'node:assert';\n"
    "test{name}('{name}', () => assert{name}.strictEqual(1, 2));\n"
)
_VITEST = (
    "\n;import {{ test as test{name}, expect as expect{name} }} from 'vitest';\n"
    "test{name}('{name}', () => {{ expect{name}(1).toBe(2); }});\n"
)
_GLOBAL = "\n;{call}('{name}', () => {{ {failing} }});\n"
_SCRIPT = re.compile(r"\.[cm]?[jt]sx?$")
_MODULE = re.compile(r"(?m)^\s*(?:import\b[^(\n]*['\"{*]|export\b)")
_CALL = re.compile(r"(?m)^\s*(it|test)\s*\(")
_NODE = frozenset({"npm", "pnpm", "yarn", "npx", "node"})


@dataclass(frozen=True, slots=True)
class Canary:
    """A test to append to a test file.

    case: the name that narrows a run to it.
    """

    path: str
    text: str
    name: str
    case: str

    def failed_in(self, run: CheckRun | None) -> bool:
        """True if a run reports the canary as failed."""
        return run is not None and any(
            self.name in case and outcome in RED for case, outcome in run.cases.items()
        )


def find_case_file(case: str, files: Sequence[str]) -> str:
    """Return the file of a case; '' if it is unknown.

    For a Go case, this is a test file of its package.
    """
    package, _, test = case.partition("::")
    path = find_test_file(case, files)
    if path or not test or " " in package:
        return path
    folders = {path.rpartition("/")[0]: path for path in files if path.endswith("_test.go")}
    matching = [folder for folder in folders if not folder or package.endswith(f"/{folder}")]
    return folders[max(matching, key=len)] if matching else ""


def make_canary(argv: Sequence[str], case: str, path: str, source: str) -> Canary | None:
    """Return a canary for the file of a case; None if its runner is unknown.

    source: the text of the file.
    """
    name = f"z{secrets.token_hex(4)}"
    container = case.partition("::")[0]
    if path.endswith(".py") and is_pytest(argv):
        return Canary(
            path, _PYTHON.format(name=name), name, f"{container}::Test{name}::test_{name}"
        )
    if path.endswith(".py"):
        return (
            Canary(path, _PYTHON.format(name=name), name, f"Test{name}")
            if reports_cases(argv)
            else None
        )
    if path.endswith(".go"):
        return Canary(
            path, _GO.format(name=name.upper()), name.upper(), f"{container}::Test{name.upper()}"
        )
    if path.endswith(".rs"):
        return Canary(path, _RUST.format(name=name), name, f"{container}::test_{name}")
    if _SCRIPT.search(path) and argv and argv[0].rpartition("/")[2] in _NODE:
        return Canary(
            path,
            _script_template(source, path).format(name=name, **_global_calls(source)),
            name,
            f"{container}::{name}",
        )
    return None


def _script_template(source: str, path: str) -> str:
    module = path.endswith((".mjs", ".mts")) or (
        not path.endswith((".cjs", ".cts")) and bool(_MODULE.search(source))
    )
    if re.search(r"['\"](?:node:)?test['\"]", source):
        return _NODE_TEST_MODULE if module else _NODE_TEST
    return _VITEST if re.search(r"['\"]vitest['\"]", source) else _GLOBAL


def _global_calls(source: str) -> dict[str, str]:
    """Return how tests are declared and fail if the runner's functions are global, as in mocha and
    jest.
    """
    call = _CALL.search(source)
    failing = (
        "expect(1).toBe(2);"
        if ".toBe(" in source or ".toEqual(" in source
        else 'throw new Error("1 is not 2");'
    )
    if re.search(r"require\(['\"](?:node:)?assert", source):
        failing = "require('assert').strictEqual(1, 2);"
    return {"call": call[1] if call else "it", "failing": failing}
