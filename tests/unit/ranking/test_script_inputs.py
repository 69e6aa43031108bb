"""Inputs for JavaScript by its words: literals alone, and whatever stands there breaks nothing."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.ranking.inputs.script import ScriptInput, changed_script_functions, script_calls_of


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (
            "assert.equal(f(1, 'a'), 2); m.f([true, null], {a: -1.5, 'b': `x`})",
            ["f(1, 'a')", 'f([True, None], {"a": -1.5, \'b\': "x"})'],
        ),
        ("f(x); f(1, y); f(() => 1); f(`${x}`); f(undefined); f(1n)", []),
        ("af(1); f(", []),
        ("f()", ["f()"]),
    ],
)
def test_the_calls_of_tests_that_make_them_with_literals(text: str, calls: list[str]) -> None:
    assert list(script_calls_of(text, "f")) == calls


@pytest.mark.parametrize(
    "text",
    [
        "function f(a) { return 1; }",
        "export async function f(a) {\n  return 1;\n}",
        "export default function f(a) { return 1 }",
        "const f = (a) => { return 1; };",
        "export const f = async (a) => 1;",
        "module.exports = function f(a) { return 1; };",
        "exports.f = (a) => 1;",
        "export const f = (a): number => 1;",
    ],
)
def test_functions_at_the_top_that_differ(text: str) -> None:
    other = text.replace("1", "2")
    assert changed_script_functions("a.ts", text, [text, other]) == ("f",)
    assert changed_script_functions("a.ts", text, [f"// said\n{text}", text]) == ()
    assert changed_script_functions("a.ts", text, [other, text.replace("(a)", "(a, b)")]) == ()


def test_a_value_is_no_function_and_a_call_is_spelt_in_its_language() -> None:
    assert changed_script_functions("a.js", "", ["const f = (1 + 2) * 3;", "const f = (1 + 2) * 4;"]) == ()
    assert ScriptInput("f", "((True, None, {'a': [1]}), {})").call == 'f(true, null, {"a": [1]})'


@given(st.text(max_size=120))
def test_whatever_stands_there_breaks_nothing(text: str) -> None:
    for call in script_calls_of(f"f({text}); {text}", "f"):
        assert isinstance(ast.parse(call, mode="eval").body, ast.Call)
    assert isinstance(changed_script_functions("a.js", text, [text, f"function f(a) {{{text}"]), tuple)
