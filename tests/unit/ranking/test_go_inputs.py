"""Inputs for functions of Go: from calls of tests, and by type."""

from __future__ import annotations

import ast

from moothall.ranking.inputs.go import changed_go_functions, go_inputs

CODE = """package shop

func Discount(price, percent int) int {
	return price
}

func Named(words []string, few uint8, deep bool) (string, error) {
	return words[0], nil
}

func (s *Shop) Method(price int) int {
	return price
}

func Put(items map[string]int) {
}
"""


def test_functions_of_plain_types_that_differ_are_run() -> None:
    texts = [CODE.replace("return price\n", "return price * percent\n", 1), CODE.replace("words[0]", "words[1]")]
    assert changed_go_functions(CODE, texts) == ("Discount", "Named")
    assert changed_go_functions(CODE, [CODE, CODE.replace("return price\n", "// as it was\n\treturn price\n", 1)]) == ()
    assert changed_go_functions(CODE, [CODE, CODE.replace("price, percent int", "price, percent int64")]) == ()
    assert changed_go_functions(CODE, [CODE, CODE.replace("items map", "things map")]) == ()


def test_calls_of_tests_come_first_and_fit_their_types() -> None:
    test = 'x := shop.Named([]string{"a", "b"}, 255, true)\nshop.Named(words, 1, false)\n'
    made = go_inputs("Named", [test], CODE, 40)
    assert made[0].call == 'Named([]string{"a", "b"}, 255, true)'
    for item in made:
        given, said = ast.literal_eval(item.arguments)
        assert said == {"returns": True, "types": ["[]string", "uint8", "bool"]}
        assert 0 <= int(given[1]) < 256
    assert len({item.call for item in made}) == len(made) > 5


def test_without_a_call_values_are_those_of_the_types() -> None:
    made = [item.call for item in go_inputs("Discount", ["Discount(tt.price, tt.percent)"], CODE, 5)]
    assert "Discount(0, 0)" in made
    assert len(made) <= 5
