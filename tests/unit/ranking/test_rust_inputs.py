"""Inputs for functions of Rust: from calls of tests, and by type."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.ranking.inputs.rust import changed_rust_functions, rust_inputs

CODE = """pub fn last<'a>(items: &[i32], other: u8, name: &'a str) -> Option<i32> {
    items.first().copied()
}

fn sort(items: &mut Vec<String>, mark: char) {
    items.sort();
}

pub fn shown<T: ToString>(item: T) -> String {
    item.to_string()
}

impl Shop {
    pub fn price(&self, percent: i64) -> i64 {
        percent
    }
}
"""


def test_functions_of_plain_types_that_differ_are_run() -> None:
    texts = [CODE.replace("first", "last"), CODE.replace("items.sort()", "items.reverse()")]
    assert changed_rust_functions(CODE, texts) == ("last", "sort")
    assert changed_rust_functions(CODE, [CODE, CODE.replace("    items.f", "    // as it was\n    items.f")]) == ()
    assert changed_rust_functions(CODE, [CODE, CODE.replace("other: u8", "other: u16")]) == ()
    assert changed_rust_functions(CODE, [CODE, CODE.replace("item.to_string()", "String::new()")]) == ()
    assert changed_rust_functions(CODE, [CODE, CODE.replace("        percent\n", "        1\n")]) == ()


def test_calls_of_tests_come_first_and_fit_their_types() -> None:
    test = 'assert_eq!(shop::last(&vec![1_000i32, -2], 255, "é"), Some(1));\nlast(items, 1, "a");\nlast(&[1], 256, "a");\n'
    made = rust_inputs("last", [test], CODE, 40)
    assert made[0].call == 'last(&vec![1000, -2], 255, "é")'
    assert ast.literal_eval(made[0].arguments)[0] == ("&", "std::vec::Vec<i32>", "std::vec![1000, -2]")
    assert all(0 <= int(ast.literal_eval(item.arguments)[1][2]) < 256 for item in made)
    assert len({item.call for item in made}) == len(made) > 5


def test_what_is_changed_in_place_and_texts_of_its_own_are_declared_as_such() -> None:
    test = 'sort(&mut vec!["b".to_string(), String::from("a")], \'x\')'
    first, *_ = rust_inputs("sort", [test], CODE, 40)
    assert first.call == 'sort(&mut vec![string::String::from("b"), string::String::from("a")], \'x\')'


def test_without_a_call_values_are_those_of_the_types() -> None:
    made = [item.call for item in rust_inputs("last", ["last(given, one)"], CODE, 5)]
    assert 'last(&vec![], 0, "")' in made
    assert len(made) <= 5


@pytest.mark.parametrize(
    "kind", ["&dyn Fn", "[i32; 4]", "Option<i32>", "&mut str", "[i32]", "T", "HashMap<String, i32>", "Vec<Vec<i32>>"]
)
def test_what_cannot_be_written_plainly_is_not_run(kind: str) -> None:
    text = f"pub fn f(a: {kind}) -> i32 {{\n    1\n}}\n"
    assert changed_rust_functions(text, [text, text.replace("1\n", "2\n")]) == ()


@given(st.text(alphabet="fn a(){};:,&[]<>'\"\n", max_size=200))
def test_whatever_stands_there_breaks_nothing(text: str) -> None:
    assert isinstance(changed_rust_functions(text, [text, f"fn f(a: i32) {{{text}"]), tuple)
    for item in rust_inputs("last", [f"last({text}"], CODE, 10):
        assert item.call.startswith("last(")
