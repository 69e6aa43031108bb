from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moothall.ranking.screening.equals import says_what_is_equal
from moothall.ranking.screening.reach import reaches
from moothall.ranking.syntax.diffs import file_diffs


def diff(tmp_path: Path, before: str, after: str) -> str:
    (tmp_path / "a").write_bytes(before.encode())
    (tmp_path / "b").write_bytes(after.encode())
    done = subprocess.run(["git", "diff", "--no-index", "--text", "a", "b"], cwd=tmp_path, capture_output=True, check=False)
    return done.stdout.decode().replace("a/a", "a/m.py").replace("b/b", "b/m.py")


def added(path: str, text: str) -> str:
    lines = text.rstrip("\n").split("\n")
    body = "".join(f"+{line}\n" for line in lines)
    return f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n@@ -0,0 +1,{len(lines)} @@\n{body}"


LINES = st.lists(st.sampled_from(["", "x = 1", "y = 2", "-- a", "++ b", "@@ -1 +1 @@", "é"]), max_size=12)


@settings(max_examples=40, deadline=None)
@given(before=LINES, after=LINES)
def test_a_diff_applied_gives_the_text_after_it(
    tmp_path_factory: pytest.TempPathFactory, before: list[str], after: list[str]
) -> None:
    one, other = "\n".join([*before, "end", ""]), "\n".join([*after, "end", ""])
    said = diff(tmp_path_factory.mktemp("diff"), one, other)
    if not said:
        assert one == other
        return
    (part,) = file_diffs(said)
    assert part.apply(one) == other
    assert all(other.split("\n")[number - 1] == line for number, line in part.added.items())


@pytest.mark.parametrize(
    "text",
    [
        "import gc",
        "import os\nos._exit(0)",
        "import os\nos.execv('/bin/true', ['true'])",
        "import argparse\nargparse.ArgumentParser().exit()",
        "import argparse\nargparse.ArgumentParser().parse_args(['--help'])",
        "import sys\nx = sys.modules",
        "import sys as s\nx = s.modules",
        "import os\nx = os.sys.modules",
        "from sys import modules as m",
        "from inspect import stack",
        "import inspect\nx = inspect.stack()",
        "import sys\nx = sys._getframe(1)",
        "import sys\nx = getattr(sys, 'mod' + 'ules')",
        "import sys\nx = getattr(sys, 'modules')",
        "import os as o\nx = getattr(o, 'kill')",
        "import json\njson.dumps = print",
        "import json\nsetattr(json, 'dumps', print)",
        "x = __import__('g' + 'c')",
        "exec('x = 1')",
        "import importlib\nx = importlib.import_module('g' + 'c')",
        "import os\nx = os.environ.get('PYTEST_CURRENT_TEST')",
        "class A:\n    def __eq__(self, other):\n        return True",
        "raise SystemExit(0)",
        "import atexit",
        "from unittest import mock",
        "x = ().__class__.__base__.__subclasses__()",
        "x = open('/proc/self/maps')",
        "def f(:\n    x = sys._getframe(0)",
        "from importlib import import_module as part",
        "from warnings import sys as s",
        "import logging\ns = logging.sys",
        "import pickle\nx = pickle.loads(b'c_py' + b'test.python\\nFunction\\n.')",
        "from pickle import loads",
        "x = b'c_pytest.python\\nFunction\\n.'",
        "import pkgutil\nx = pkgutil.resolve_name('a:b')",
        "name = 'run' + 'te' + 'st'\nx = getattr(object(), name)",
        "x = '0.__globals__[sys]'",
        "def f(): pass\nf.__doc__ = '>>> 1'",
        "def pytest_pyfunc_call(item):\n    return True",
        "import os\nos.kill(os.getpid(), 9)",
        "import signal\nsignal.raise_signal(9)",
        "try:\n    f()\nexcept (AssertionError, ValueError):\n    pass",
        "import math\nm = math\nm.isclose = print",
        "import math\nfor m in (math,):\n    m.isclose = print",
        "import math\ndef put(m):\n    setattr(m, 'isclose', print)\nput(math)",
        "x = bytes(each ^ 1 for each in b'bnogudru')",
        "x = 'bnogudru'.translate({98: 99})",
        "import threading\nthreading.settrace_all_threads(print)",
        "__test__ = {'f': '>>> 1'}",
        "def f(x: \"__import__('a').b\"):\n    pass",
        "def f(x):\n    match x:\n        case object(f_back=y):\n            return y",
        "def f(error):\n    return '{0.tb_frame.f_back}'.format(error.__traceback__)",
        "import dis",
        "def f():\n    import test_price",
        "from tests.test_price import test_discount",
        "from . import test_price",
        "from pathlib import Path\nPath.exists = print",
        "import pathlib\nsetattr(pathlib.Path, 'exists', print)",
        "import os\nos.path.exists = print",
        "from os import path as where\nwhere.exists = print",
        "from pathlib import Path\nP = Path\nP.exists = print",
        "def f(path):\n    type(path).exists = print",
        "def f(path):\n    path.__class__.exists = print",
        "print.__self__.any = print",
        "import test.support",
        "import other\nx = other.unittest.TestCase",
        "from other import unittest",
        "import hypothesis",
        "class A:\n    def __exit__(self, *error):\n        return not None",
    ],
)
def test_pythons_reach_is_shown(text: str) -> None:
    found = reaches(added("shop/a.py", text), {}, (), ("shop/test_price.py",))
    assert found
    assert all(line.startswith("shop/a.py:") for line in found)
    assert reaches(added("tests/test_a.py", text), {}, ("tests/test_a.py",)) == ()


@pytest.mark.parametrize(
    "text",
    [
        '"""Used by pytest."""\nimport os\nimport sys\n\n\ndef f(x):\n    """For test_x."""\n    return os.path.join(x, sys.platform)\n',
        "import sys\n\n\ndef main():\n    sys.exit(1)\n\n\nif __name__ == '__main__':\n    sys.exit(main())\n",
        "class A:\n    def __eq__(self, other):\n        return self.x == other.x\n",
        "import os\nx = getattr(os, 'O_BINARY', 0)",
        "x = getattr(object(), 'a', None)\nself_modules = [1]\n",
        "import pickle\nx = pickle.dumps(1)\ny = 'abort the ' + 'work'\n",
        "from os import path\nx = f'{path.sep}/a.b_c'\n",
        "import time\n\n\ndef f(a, time):\n    a.at = time\n    return hasattr(time, 'x')\n",
        "import json\n\n\ndef f(a, codec=json):\n    return codec.dumps(a)\n",
        "import protest\nfrom django.test import client\nx = '{0.name} {1}'.format(client, protest)\n",
        "import os\n\n\ndef f(a):\n    a.path = os.getcwd()\n    return bytes(each for each in b'a')\n",
    ],
)
def test_plain_code_reaches_for_nothing(text: str) -> None:
    assert reaches(added("shop/a.py", text), {}, ()) == ()


def test_only_what_is_added_counts() -> None:
    base = "import gc\n\nx = 1\ny = gc.get_objects()\n"
    said = "diff --git a/m.py b/m.py\n--- a/m.py\n+++ b/m.py\n@@ -1,4 +1,4 @@\n import gc\n \n-x = 1\n+x = 2\n y = gc.get_objects()\n"
    assert reaches(said, {"m.py": base}, ()) == ()


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        ("const stack = err.stack && ''", "const stack = err.stack || ''", False),
        ("const stack = err.message || ''", "const stack = err.stack || ''", True),
        ("if (err.stack) return a", "if (err.stack) return b", True),
        ("console.log(told)", "console.log = told", True),
        ("process.exit(1)", "process.exit(0)", True),
    ],
)
def test_a_line_that_reached_before_and_of_which_an_operator_changed_reaches_no_further(
    before: str, after: str, *, shown: bool
) -> None:
    said = f"diff --git a/m.js b/m.js\n--- a/m.js\n+++ b/m.js\n@@ -1,2 +1,2 @@\n-{before}\n+{after}\n x()\n"
    assert bool(reaches(said, {"m.js": f"{before}\nx()\n"}, ())) is shown


@pytest.mark.parametrize(
    ("path", "text", "shown"),
    [
        ("a.go", "func init() { os.Exit(0) }", True),
        ("a.go", "func Sum(a, b int) int { return a + b }", False),
        ("a.js", "process.exit(0)", True),
        ("a.mjs", "export const sum = (a, b) => a + b", False),
        ("a.ts", "import { test } from 'node:test'", True),
        ("src/a.rs", "std::process::exit(0);", True),
        ("src/a.rs", "if cfg!(test) { return 1; }", True),
        ("src/a.rs", "#[cfg(test)]\nmod tests {", False),
        ("src/a.rs", '#[cfg(all(test, not(miri), feature = "std"))]\nmod tests;', False),
        ("src/a.rs", "#[cfg(all(test, not(miri)))]\npub fn sum() {}", True),
        ("src/a.rs", "#[cfg(any(test, miri))]\nmod tests;", True),
        ("src/a.rs", "#[cfg(test)]\npub fn sum() {}", True),
        ("src/a.rs", "pub fn sum(a: u8) -> u8 { a }", False),
        ("a.txt", "process.exit(0)", False),
        ("a.go", "os.\n\tExit(0)", True),
        ("a.go", "x := box.\n\tExit(0)", False),
        ("a.js", "process /* it */ .exit(0)", True),
        ("src/a.rs", "macro_rules! r#assert_eq { () => {} }", True),
        ("src/a.rs", "macro_rules!\n    assert_eq { () => {} }", True),
        ("a.go", 'import o "os"', True),
        ("a.go", 'import _o "os"', True),
        ("a.go", 'import (o "os"; "fmt")', True),
        ("a.go", 'import ("fmt"; é "syscall")', True),
        ("a.go", 'import "os"', False),
        ("a.go", 'import "os/exec"', False),
        ("a.go", 'import "runtime"', False),
        ("a.go", 'import "runtime/debug"', False),
        ("a.go", 'import ("fmt"; "os")', False),
        ("a.go", '\t"os"', False),
        ("a.go", 'import _ "os"', False),
        ("a.go", '\treturn "os"', False),
        ("a.go", '\tcase "runtime":', False),
        ("a.go", '\t. "os"', True),
        ("a.go", '\t_ "embed"', False),
        ("a.go", "//go:embed shop_test.go", True),
        ("a.go", "//go:embed page.html", False),
        ("a.go", "//go:linkname fail testing.fail", True),
        ("a.go", "// os.Exit ends the process", False),
        ("a.js", "const r = module['req' + 'uire']", True),
        ("a.js", "const p = process;", True),
        ("a.js", "const a = require('ass' + 'ert')", True),
        ("a.js", "const path = require('path');", False),
        ("a.mjs", "const late = await import('./late.mjs');", False),
        ("src/a.rs", "    named!(assert_eq, $);", True),
        ("src/a.rs", "    macro_rules! $name {", True),
        ("src/a.rs", "use std::process as p;", True),
        ("src/a.rs", "use std::process::Command;", False),
        ("src/a.rs", 'const TEXT: &str = include_str!("lib.rs");', True),
        ("src/a.rs", 'const TEXT: &str = include_str!("page.html");', False),
        ("src/a.rs", "assert!(panicked, x);", False),
        ("a.go", "//go:embed shop_tes[t].g[o]", True),
        ("a.go", '//go:embed "shop_test.g\\x6f"', True),
        ("quit_amd64.s", "TEXT ·quit(SB), 4, $0", True),
        ("a.js", "const r = arguments[1];", True),
        ("a.js", "const M = Object.getPrototypeOf(module).constructor;", True),
        ("a.js", "const [r] = [require];", True),
        ("a.js", "Reflect.get(process, 'x')", True),
        ("a.js", "(0, eval)('1')", True),
        ("a.js", "(() => {}).constructor('return 1')()", True),
        ("a.js", "const shell = require('repl').start();", True),
        ("a.js", "require.extensions['.js'] = load;", True),
        ("a.js", "expect.extend({ toBe: () => ({ pass: true }) })", True),
        ("a.js", "this.expect('(')", False),
        ("a.js", "const g = (function () { return this; })();", True),
        ("a.js", "class A { constructor(a) { super(a); } }", False),
        ("a.js", "module.exports = { a, b };", False),
        ("a.js", "Math.abs = () => 0;", True),
        ("a.js", "RegExp.prototype.test = () => true;", True),
        ("a.js", "const text = String.prototype;", True),
        ("a.js", "Object.defineProperty(Math, 'abs', { value: () => 0 });", True),
        ("a.js", "Object.assign(JSON, other);", True),
        ("a.js", "const numbers = Math;", True),
        ("a.js", "const kept = Object.assign(this, other);", False),
        ("a.js", "const own = Object.prototype.hasOwnProperty;", False),
        ("a.js", "Error.captureStackTrace(this, ShopError)", False),
        ("a.js", "Error.captureStackTrace(found)", True),
        ("a.js", "if (Math.PI == x) y = Math.abs(x);", False),
        ("a.js", "my.Map = Map; tables.Map.size = 3;", False),
        ("a.go", "var nil error = ErrMuch", True),
        ("a.go", "\ttrue = false", True),
        ("a.go", "func len(x string) int {", True),
        ("a.go", "\tlen := 3", False),
        ("a.go", "\tif err == nil && ok == true {", False),
        ("a.go", "\tio.EOF = nil", True),
        ("a.go", "\tend := &io.EOF", True),
        ("a.go", "\tif err == io.EOF {", False),
        ("a.go", "\ts.err = io.EOF", False),
        ("src/a.rs", "macro_rules! matches {", True),
        ("src/a.rs", "fn Ok(x: i64) -> Any {", True),
        ("src/a.rs", "type Result<T> = std::result::Result<T, Error>;", False),
        ("src/a.rs", "macro_rules! lines {", False),
    ],
)
def test_other_languages(path: str, text: str, *, shown: bool) -> None:
    assert bool(reaches(added(path, text), {}, ())) is shown


def test_what_runs_without_being_read_is_shown() -> None:
    said = "diff --git a/shop/price.abi3.so b/shop/price.abi3.so\nnew file mode 100755\nindex 0000000..1\nGIT binary patch\nliteral 1\nIcmZPo000310RR91\n\n"
    assert reaches(said, {}, ()) == ("shop/price.abi3.so:1: it runs without being read",)
    assert reaches(said.replace(".so", ".png"), {}, ()) == ()
    assert reaches(said.replace("new file", "deleted file"), {}, ()) == ()


@pytest.mark.parametrize(
    ("path", "text", "says"),
    [
        ("a.py", "    def __eq__(self, other):", True),
        ("src/a.rs", "impl PartialEq for Price {", True),
        ("a.go", "func (p Price) Equal(other Price) bool {", True),
        ("a.py", "    def equal(self, other):", False),
        ("src/a.rs", "#[derive(PartialEq)]", False),
        ("src/a.rs", "impl std::ops::Sub<f64> for Same {", True),
        ("a.js", "class Text extends String {", True),
        ("a.js", "return { includes: (part) => part !== '' };", True),
        ("a.js", "  includes(part) {", True),
        ("a.js", "  if (list.includes(part)) {", False),
        ("a.js", "class Text extends Base {", False),
        ("a.js", "  static [Symbol.hasInstance](other) {", True),
        ("a.py", "    def __instancecheck__(cls, other):", True),
        ("a.py", "class Text(str):", True),
        ("a.py", "class Text(Base, dict):", True),
        ("a.py", "class Colour(str, Enum):", False),
        ("a.py", "class Text(Base):", False),
        ("src/a.rs", "match (a, b) {", False),
        ("a.go", "if match(a, b) {", False),
        ("CHANGELOG.md", "- `__eq__` is faster", False),
    ],
)
def test_a_type_that_says_what_is_equal_to_it(path: str, text: str, *, says: bool) -> None:
    assert bool(says_what_is_equal(added(path, text), ())) is says
    assert says_what_is_equal(added(path, text), (path,)) == ""


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("fn label(a: i64) -> String {", "pub fn label(a: i64) -> Label {", True),
        (") -> String {", ") -> Label {", True),
        ("type Price = i64;", "type Price = Same;", True),
        ("fn label(a: i64) -> String {", "fn label(b: i64) -> String {", False),
        ("fn label(a: i64) -> String {", "fn other(a: i64) -> Label {", False),
    ],
)
def test_a_function_of_rust_that_returns_another_type(before: str, after: str, *, says: bool) -> None:
    said = f"diff --git a/m.rs b/m.rs\n--- a/m.rs\n+++ b/m.rs\n@@ -1,2 +1,2 @@\n-{before}\n+{after}\n x()\n"
    assert bool(says_what_is_equal(said, ())) is says


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("m.js", "class A {\n  get name() {\n    return this._name;\n  }\n}"),
        ("m.js", "const it = x[Symbol.iterator]();\nit.next();"),
        ("m.js", "visit(node.arguments);"),
        ("m.js", "if (arguments.length > 1) return;"),
        ("m.js", "const names = list.map((module) => name(module.id));"),
        ("m.go", "//go:embed templates/*.html"),
        ("m.py", "from .db import test_connection, load_test\ntest_connection()"),
        ("m.py", "import m\nfrom m.config import settings\nsettings.debug = True"),
        (
            "m.py",
            "class A:\n    count = 0\n    def __init__(self):\n        type(self).count += 1\n        self.__class__.count += 1",
        ),
        ("m.py", "class A:\n    def __exit__(self, *error):\n        self.close()\n        return False"),
        ("m.go", 'import "net/http"\n\nvar handler http.Handler = mux\nvar c = &http.Client{}\nfunc f() { s.Handler = x }'),
        (
            "m.js",
            "const http = require('http');\nconst own = require('./own');\nown.x = 1;\nserver.x = http.get;\nconst f = ({ fetch = get }) => 1;",
        ),
        ("m.rs", "let x = y as f64;\nuse a::b as c;\nmod number;"),
        (
            "m.py",
            "try:\n    import yaml\nexcept ImportError:\n    yaml = None\n\n\ndef load(c):\n    if yaml is None:\n        c.data = 1\n",
        ),
    ],
)
def test_what_ordinary_code_says_is_no_reach(path: str, text: str) -> None:
    assert reaches(added(path, text), {}, (), ("m/__init__.py",)) == ()


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("m.js", "const util = require('node:util');\nutil.isDeepStrictEqual = () => true;"),
        ("m.js", "const util = require('util');\nObject.assign(util, { inspect: print });"),
        ("m.js", "const util = require('util');\nconst other = util;"),
        ("m.js", "const { Readable: R } = require('stream');\nR.prototype.read = print;"),
        ("m.mjs", "import * as util from 'util';\nutil.x = 1;"),
        ("m.js", "require('util').isDeepStrictEqual = () => true;"),
        ("m.js", "fetch = async () => ({ status: 200 });"),
        ("m.js", "class A {\n  static [Symbol.hasInstance](other) { return true; }\n}"),
        ("m.go", 'import (\n\t"net/http"\n)\n\nfunc init() { http.DefaultTransport = fake{} }'),
        ("m.go", 'import h "net/http"\n\nfunc init() {\n\th.DefaultClient.Transport = fake{}\n}'),
        ("m.go", 'import "net/http"\n\nvar p = &http.DefaultTransport'),
        ("m.rs", "pub mod f64 {\n}"),
        ("m.rs", "use crate::near as f64;"),
        ("m.rs", "extern {\n    fn exit(code: i32);\n}"),
        ("m.js", "const all = (function () { return this })();"),
        ("m.js", "load(arguments[1]);"),
        ("m.js", "const own = [...arguments];"),
        ("m.js", 'it("is green", () => {});'),
        ("m.go", "//go:embed *"),
        ("m.go", "//go:embed *.go"),
    ],
)
def test_what_reaches_farther_is_shown(path: str, text: str) -> None:
    assert reaches(added(path, text), {}, ())


@pytest.mark.parametrize("text", [" " * 200_000, "/* " * 60_000, "a /* b\n" * 30_000], ids=["spaces", "remarks", "lines"])
@pytest.mark.parametrize("path", ["a.go", "a.js", "a.rs"])
def test_a_text_made_to_be_slow_is_read_in_one_go(path: str, text: str) -> None:
    """Minutes went into each of them once."""
    assert reaches(added(path, f"{text}\nx = 1\n"), {}, ()) == ()


@pytest.mark.parametrize("text", ["#[cfg(" * 60_000, "use " * 60_000], ids=["attributes", "uses"])
def test_what_is_too_long_to_be_read_in_rust_is_shown(text: str) -> None:
    assert reaches(added("a.rs", text), {}, ())
