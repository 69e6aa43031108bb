from __future__ import annotations

import ast

import pytest

from moothall.ranking.screening.equals import says_what_is_equal
from moothall.ranking.screening.reach import reaches
from moothall.ranking.screening.shadows import find_stars
from moothall.ranking.screening.veiled import veils


def added(path: str, text: str) -> str:
    lines = text.rstrip("\n").split("\n")
    body = "".join(f"+{line}\n" for line in lines)
    return f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n@@ -0,0 +1,{len(lines)} @@\n{body}"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("# coding: raw_unicode_escape\nx = 1\n", [1]),
        ("#!/usr/bin/python\n# -*- coding: utf-7 -*-\n", [2]),
        ("# coding: no_such_one\n", [1]),
        ("# -*- coding: utf-8 -*-\nx = 1\n", []),
        ("# vim: set fileencoding=latin-1 :\n", []),
        ("x = 1\ny = 2\n# coding: utf-7\n", []),
        ("from sys import *\n", [1]),
        ("from importlib.util import *\n", [1]),
        ("from .sys import *\n", []),
        ("from math import *\n", []),
        ("def read(t):\n    return ''.join(chr(ord(c) - 1) for c in t)\n\n\nx = getattr(y, read('b'))\n", [5]),
        ("def turn(t, n):\n    return ''.join(chr(ord(c) + n) for c in t)\n", []),
        ("x = [getattr(y, n) for n in dir(y) if n.endswith('ck')]\n", [1]),
        ("for n in sorted(dir(y)):\n    if n:\n        setattr(y, n, 1)\n", [3]),
        ("x = [n for n in dir(y) if n.endswith('ck')]\n", []),
        ("x = [getattr(self, n) for n in names]\n", []),
        ("class A:\n    __class__ = int\n", [1]),
        ("class A:\n    @property\n    def __bases__(self):\n        return ()\n", [1]),
        ("class A:\n    def of(self):\n        return self.__class__\n", []),
    ],
)
def test_what_hides_something(text: str, lines: list[int]) -> None:
    assert sorted(set(veils(text, ast.parse(text)))) == lines


@pytest.mark.parametrize(
    ("path", "text", "shown"),
    [
        ("a.js", "(() => {})['constr' + 'uctor']('x')();", True),
        ("a.js", "f['\\x63onstructor']('x');", True),
        ("a.js", "const A = Object.getPrototypeOf(async () => {});", True),
        ("a.js", "import('data:text/javascript,1');", True),
        ("a.js", "const { exit } = require('process');", True),
        ("a.js", "import p from 'node:process';", True),
        ("a.js", "import process from 'node:process';", False),
        ("a.js", "const s = 'one ' + 'two';", False),
        ("a.js", "const url = 'data:text/plain,1';", False),
        ("a.js", "const s = ['a', 'b'].join(', ');", False),
        ("a.js", "const s = ['pro', 'cess'].join('');", True),
        ("a.go", 'flag.NewFlagSet("", flag.ExitOnError)', True),
        ("a.go", "func min(a, b int) int { return a }", True),
        ("a.go", "func float64(a int) int { return a }", True),
        ("a.go", "func minimum(a, b int) int { return a }", False),
        ("a.go", 'println("--- PA" + "SS: TestA")', True),
        ("a.go", 'log.Println("a" + "b")', False),
        ("a.rs", "use std::os::unix::process::CommandExt;", True),
        ("a.rs", "trait Holds {\n    fn contains(&self) -> bool;\n}\n\nimpl Holds for String {}", True),
        ("a.rs", "trait Told {\n    fn is_err(self) -> bool;\n}\n\nimpl<T> Told for Result<T, ()> {}", True),
        ("a.rs", "trait Shop {\n    fn discount(&self) -> i64;\n}\n\nimpl Shop for String {}", False),
        ("a.rs", "trait Holds {\n    fn contains(&self) -> bool;\n}\n\nimpl Holds for Basket {}", False),
        ("a.rs", "trait Said {\n    fn to_vec(&self) -> bool;\n}\n\nimpl Said for [u8] {}", True),
        ("a.rs", "trait Said {\n    fn to_small(&self) -> bool;\n}\n\nimpl Said for [u8] {}", False),
        ("a.rs", "impl From<Price> for String {}", False),
        ("a.py", "import traceback\nx = traceback.walk_tb(y)", True),
        ("a.py", "name = logger.findCaller()", True),
        ("a.py", "from importlib.metadata import EntryPoint", True),
        ("a.py", "from importlib.metadata import version", False),
    ],
)
def test_ways_around_the_names_of_what_judges_are_shown(path: str, text: str, *, shown: bool) -> None:
    assert bool(reaches(added(path, text), {}, ())) is shown


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("def all(x):\n    return True\n", [1]),
        ("total = sum = max\n", [1]),
        ("from math import isclose as any\n", [1]),
        ("if 1:\n    abs = int\n", [2]),
        ("def setup_module():\n    pass\n", [1]),
        ("pytestmark = []\n", [1]),
        ("globals().update('x')\nd.setdefault('len', 1)\n", [2]),
        ("def total(x):\n    sum = 1\n    return sum\n", []),
        ("class Price:\n    max = 1\n", []),
        ("def total(x):\n    return sum(x)\n", []),
        ("not python", []),
    ],
)
def test_names_that_a_star_takes_from_the_code(text: str, lines: list[int]) -> None:
    diff, star = added("shop/price.py", text), {"tests/test_price.py": "from shop.price import *\n"}
    assert [int(line.split(":")[1]) for line in find_stars(diff, {}, star)] == lines
    assert find_stars(diff, {}, {"tests/test_price.py": "from shop.price import all\n"}) == ()
    assert find_stars(diff, {}, {"tests/test_price.py": "from other import *\n"}) == ()


def test_a_line_within_a_method_that_says_what_is_equal() -> None:
    before = "class A:\n    def __eq__(self, other):\n        if other:\n            return self.b == other.b\n        return False\n\n    def of(self):\n        return 1\n"
    head = "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n"
    within = f"{head}@@ -4 +4 @@\n-            return self.b == other.b\n+            return other is not None\n"
    outside = f"{head}@@ -8 +8 @@\n-        return 1\n+        return 2\n"
    assert says_what_is_equal(within, (), {"a.py": before}) == "a.py:2: def __eq__(self, other):"
    assert says_what_is_equal(outside, (), {"a.py": before}) == ""
    assert says_what_is_equal(within, ()) == ""
