from __future__ import annotations

import difflib

import pytest

from moothall.ranking.screening.helpers import altered_helpers
from moothall.ranking.screening.shadows import find_shadows, new_modules


def changed(path: str, before: str, after: str) -> str:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), f"a/{path}", f"b/{path}", lineterm="")
    return f"diff --git a/{path} b/{path}\n" + "\n".join(lines) + "\n"


def new(path: str) -> str:
    return f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+x = 1\n"


def look(path: str, before: str, after: str) -> tuple[str, ...]:
    return altered_helpers(changed(path, before, after), {path: before}, ())


SAME = "def same(a, b):\n    assert a == b\n\n\ndef code(a):\n    return a\n"
GO = "package c\n\nfunc Equal(t *testing.T, a, b int) {\n\tif a != b {\n\t\tt.Fatal()\n\t}\n}\n\nfunc Sum(a int) int {\n\treturn a\n}\n"
JS = "exports.same = function (a, b) {\n  assert.equal(a, b);\n};\nfunction sum(a) {\n  assert(a);\n  return a;\n}\n"
RUST = "pub fn same(a: u8, b: u8) {\n    assert_eq!(a, b);\n}\npub fn sum(a: u8) -> u8 {\n    assert_eq!(a, a);\n    a\n}\n"
MACRO = "macro_rules! alike {\n    ($a:expr) => { assert!($a) };\n}\n"


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        ("c.py", SAME, SAME.replace("a == b", "a")),
        ("c.py", SAME, f"{SAME}\n\nsame = print\n"),
        ("c.py", SAME, "def code(a):\n    return a\n"),
        ("c.py", "def same(a):\n    if not a:\n        raise AssertionError(a)\n", "def same(a):\n    pass\n"),
        (
            "c.py",
            "class Checks:\n    def same(self, a):\n        assert a != 1\n",
            "class Checks:\n    def same(self, a):\n        pass\n",
        ),
        ("c.py", "class A(unittest.TestCase):\n    x = 1\n", "class A(unittest.TestCase):\n    x = 2\n"),
        ("c.py", "@pytest.fixture\ndef a():\n    return 1\n", "@pytest.fixture\ndef a():\n    return 2\n"),
        ("c.go", GO, GO.replace("a != b", "a == 0")),
        ("c.js", JS, JS.replace("equal(a, b)", "ok(a)")),
        ("c.rs", RUST, RUST.replace("(a, b);", "(a, a);", 1)),
        ("c.rs", MACRO, MACRO.replace("assert!($a)", "()")),
    ],
)
def test_a_helper_of_tests_that_is_altered_is_shown(path: str, before: str, after: str) -> None:
    assert look(path, before, after)
    assert not altered_helpers(changed(path, before, after), {path: before}, [path])


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        ("c.py", SAME, SAME.replace("return a", "return a + 1")),
        (
            "c.py",
            "class Stack:\n    def push(self, a):\n        assert a != 1\n",
            "class Stack:\n    def push(self, a):\n        assert a != 2\n",
        ),
        ("c.py", "def f(a):\n    assert a == 1\n    return a\n", "def f(a):\n    assert a == 1\n    return -a\n"),
        ("c.py", "def f(:\n", "def f(a):\n    pass\n"),
        ("c.go", GO, GO.replace("return a", "return a + 1")),
        ("c.js", JS, JS.replace("return a", "return a + 1")),
        ("c.rs", RUST, RUST.replace("    a\n", "    a + 1\n")),
        (
            "c.rs",
            f"{RUST}#[test]\nfn one() {{\n    assert_eq!(1, 1);\n}}\n",
            f"{RUST}#[test]\nfn one() {{\n    assert_eq!(2, 2);\n}}\n",
        ),
        ("c.md", "assert a == b", "x"),
    ],
)
def test_code_that_asserts_is_code(path: str, before: str, after: str) -> None:
    assert look(path, before, after) == ()


def test_a_new_module_that_takes_the_name_of_another_is_shown() -> None:
    files = ("shop/price.py", "tests/test_price.py", "tests/test_calc.py", "tests/tools.py")
    diff = new("filecmp.py") + new("calc.py") + new("shop/new.py") + new("src/json/__init__.py") + new("docs/conf.txt")
    modules = new_modules(diff, files, ("",))
    assert modules == {"filecmp": "filecmp.py", "calc": "calc.py", "json": "src/json/__init__.py"}
    tests = {
        "tests/test_price.py": "import os, filecmp\n",
        "tests/test_calc.py": "from calc import x\n",
        "tests/tools.py": "import json\n",
    }
    told = {"tests/test_price.py::test_a", "tests/test_calc.py"}
    assert [line.partition(":")[0] for line in find_shadows(modules, tests, told)] == ["filecmp.py", "src/json/__init__.py"]
    assert [line.partition(":")[0] for line in find_shadows(modules, tests, {"test_calc.TestA.test_b"})] == [
        "calc.py",
        "src/json/__init__.py",
    ]
    assert find_shadows(modules, tests, ()) == ()


def test_lines_that_end_in_other_ways_are_counted_as_python_does() -> None:
    assert look("c.py", "def check(x):\n    assert x == 1\n", "x = '''\r\r\r'''\ndef check(x):\n    assert x == 2\n")


def test_a_name_that_only_moved_is_as_it_was() -> None:
    base = f"{SAME}\n\nsame = print\n"
    assert look("c.py", base, f"import re\n{base}") == ()
