from __future__ import annotations

import ast

import pytest

from moothall.ranking.rewriting.shown import rewrite_shown

PYTHON = '''import pytest
from a1 import discount

CASES = [(100, 50, "fifty")]


def helper():
    return 180


@pytest.mark.parametrize(("price", "wanted"), [(200, 180)])
def test_a(price, wanted):
    """It takes 10."""
    assert discount(price, 10) == wanted != 0x1F, f"{price} is 200"
'''


@pytest.mark.parametrize("step", range(8))
def test_the_literals_of_python_are_others_and_the_rest_is_as_it_was(step: int) -> None:
    made = rewrite_shown("tests/test_a.py", PYTHON, [("test_a",)], step)
    assert made.count("\n") == PYTHON.count("\n")
    assert "from a1 import discount" in made
    assert "    return 180\n" in made
    assert not any(word in made for word in ("(200, 180)", "(100, 50", "fifty", ", 10)"))
    assert [type(node) for node in ast.walk(ast.parse(made))] == [type(node) for node in ast.walk(ast.parse(PYTHON))]
    assert rewrite_shown("tests/test_a.py", "def f(:\n", [("f",)], step) == "def f(:\n"


@pytest.mark.parametrize(
    ("path", "text", "kept", "gone"),
    [
        (
            "a_test.go",
            'package a1\n\nimport "x9"\n\nfunc TestA() { f(200, "a tenth") }\n',
            ('package a1\n\nimport "x9"',),
            ("200", "tenth"),
        ),
        (
            "a.rs",
            "fn f() -> u8 { 200 }\n#[test]\nfn t() { assert_eq!(f(), 180); } // 7\n",
            ("{ 200 }", "assert_eq!", "// 7"),
            ("180",),
        ),
        (
            "a.test.js",
            "const f = require('./f1');\ntest('a tenth', () => is(f(`x${2}`, 180)));\n",
            ("require('./f1')", "${2}"),
            ("180", "tenth"),
        ),
    ],
)
def test_of_other_languages_all_behind_what_a_file_brings_in(
    path: str, text: str, kept: tuple[str, ...], gone: tuple[str, ...]
) -> None:
    made = rewrite_shown(path, text, [("t",)], 3)
    assert made.count("\n") == text.count("\n")
    assert all(word in made for word in kept)
    assert not any(word in made for word in gone)
