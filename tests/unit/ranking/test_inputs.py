"""Inputs that may tell answers apart: literals alone, bounded, and the same each time."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.ranking.inputs.calls import Input, calls_of, changed_functions, inputs

literals = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(st.lists(literals, min_size=1, max_size=3), min_size=1, max_size=4), st.integers(1, 60))
def test_they_are_calls_with_literals_bounded_and_the_same_each_time(seeds: list[list[object]], most: int) -> None:
    shown = [f"f({', '.join(map(repr, seed))})" for seed in seeds]
    found = inputs("f", shown, "", most)
    assert found == inputs("f", shown, "", most)
    assert len(found) == len(set(found)) <= most
    for item in found:
        given_, named = ast.literal_eval(item.arguments)
        assert isinstance(given_, tuple)
        assert named == {}
        assert len(item.arguments) <= 500
        assert isinstance(ast.parse(item.call, mode="eval").body, ast.Call)


@given(st.text(max_size=200))
def test_whatever_stands_there_breaks_nothing(text: str) -> None:
    assert isinstance(inputs("f", [text, f"f({text})"], text, 5), tuple)
    assert isinstance(list(calls_of(text, "f")), list)
    assert isinstance(changed_functions(text, [text, f"def f(): {text}"]), tuple)


def test_what_is_shown_comes_first_then_edges_of_it() -> None:
    found = [item.call for item in inputs("f", ["f([3, 1], key='a')"], "", 40)]
    assert found[0] == "f([3, 1], key='a')"
    assert {"f([], key='a')", "f([3], key='a')", "f([3, 3, 1], key='a')", "f([1, 3], key='a')", "f([3, 1], key='')"} <= {*found}


def test_an_annotation_stands_in_where_no_call_is_shown() -> None:
    text = "def f(a: int, b: list[str], c: float = 1.0):\n    pass\n\n\ndef g(a):\n    pass\n"
    assert inputs("f", [], text, 3)[:2] == (Input("f", "((0, []), {})"), Input("f", "((1, ['a']), {})"))
    assert inputs("g", [], text, 3) == ()


def test_the_calls_of_tests_that_make_them_with_literals() -> None:
    text = "def test_a():\n    assert m.f(1, x=[2]) == 3\n    assert f(-1) == f(y)\n    assert g(2)\n    f(*z)\n    f(**z)\n"
    assert list(calls_of(text, "f")) == ["f(1, x=[2])", "f(-1)"]


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [
        ("def f(a):\n    return 1\n", "def f(a):\n    return 2\n", ("f",)),
        ("def f(a):\n    return 1\n", "def f(b):\n    return 1\n", ()),  # called by name they differ
        ("def f(a):\n    return 0\n", "def f(a):\n    return 0\n", ()),  # as the base has it
        ("@cache\ndef f(a):\n    return 1\n", "def f(a):\n    return 2\n", ("f",)),
        ("async def f(a):\n    return 1\n", "async def f(a):\n    return 2\n", ("f",)),
        ("class f:\n    def g(self): return 1\n", "def f():\n    return 2\n", ()),
        ("class A:\n    def __init__(self, a): pass\n", "class A:\n    def __init__(self, b): pass\n", ()),
        ("def f(a):\n    return 1\n\ndef f(a):\n    return 3\n", "def f(a):\n    return 2\n", ("f",)),
        ("def f(a):\n    return 1\n", "def f(:\n", ()),
        ("class A:\n    def f(self): return 1\n", "class A:\n    def f(self): return 2\n", ("A",)),
    ],
)
def test_which_functions_are_run(one: str, other: str, found: tuple[str, ...]) -> None:
    assert changed_functions("def f(a):\n    return 0\n", [one, other]) == found
