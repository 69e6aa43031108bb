"""Inputs for methods of Go: what tests do with an instance, in the types that it takes."""

from __future__ import annotations

import ast

from moothall.ranking.inputs.go_methods import changed_go_types, go_steps

CODE = """package shop

type Stack struct{ most int; items []int }

func NewStack(most int) *Stack {
	return &Stack{most: most}
}

func Open(name string) (*Stack, error) {
	return nil, nil
}

func (s *Stack) Push(item int8, deep bool) *Stack {
	s.items = append(s.items, int(item))
	return s
}

func (s Stack) Top() int {
	return s.items[0]
}

func (s *Stack) Put(each func()) {
	each()
}
"""
WRONG = CODE.replace("s.items[0]", "s.items[1]")


def spelt(*sources: str, texts: tuple[str, ...] = (CODE, WRONG), most: int = 40) -> list[str]:
    return [item.call for item in go_steps("Stack", sources, texts, most)]


def test_types_whose_methods_differ_are_run_if_they_are_made_alike() -> None:
    assert changed_go_types(CODE, [CODE, WRONG]) == ("Stack",)
    assert changed_go_types(CODE, [CODE, CODE.replace("	each()", "	// as it was\n	each()")]) == ()
    assert changed_go_types(CODE, [CODE, WRONG.replace("NewStack(most int)", "NewStack(most int64)")]) == ()
    helper = f"{WRONG}\nfunc (s *Stack) helper() int {{\n	return 1\n}}\n"
    assert changed_go_types(CODE, [CODE, helper]) == ("Stack",)


def test_what_tests_do_with_one_comes_first_then_variants() -> None:
    test = "func TestTop(t *testing.T) {\n\ts := shop.NewStack(2)\n\ts.Push(1, true)\n\tif s.Top() != 1 {\n\t}\n}\n\nfunc TestNone(t *testing.T) {\n\ts.Top()\n}\n"
    made = spelt(test)
    assert made[0] == "it := NewStack(2); it.Push(1, true); it.Top()"
    assert "it := NewStack(1); it.Push(1, true); it.Top()" in made
    assert "it := NewStack(2); it.Top()" in made
    assert len(set(made)) == len(made) > 3


def test_each_way_to_make_one() -> None:
    assert spelt("s := Stack{2, -1}\ns.Top()\n")[0] == "it := Stack{2, -1}; it.Top()"
    assert spelt('s := &shop.Stack{most: 2, name: "a"}\ns.Top()\n')[0] == 'it := &Stack{most: 2, name: "a"}; it.Top()'
    assert spelt("var s shop.Stack\ns.Top()\n")[0] == "it := *new(Stack); it.Top()"
    assert spelt("NewStack(2).Top()\n")[0] == "it := NewStack(2); it.Top()"
    assert spelt("s := Stack{most: size}\ns.Top()\n") == spelt("s := NewStack(size)\ns.Top()\n") == []


def test_what_may_fail_and_what_each_call_returns_is_noted() -> None:
    first, *_ = go_steps("Stack", ['s, err := Open("a")\ns.Push(3, false)\ns.Top()\n'], (CODE, WRONG), 10)
    assert ast.literal_eval(first.arguments) == ('Open("a")', True)
    assert ast.literal_eval(first.then) == (("Push(3, false)", False), ("Top()", True))


def test_steps_end_where_one_is_not_known_or_does_not_fit() -> None:
    assert spelt("s := NewStack(2)\ns.Top()\ns.Push(other, true)\ns.Top()\n", most=1) == ["it := NewStack(2); it.Top()"]
    assert spelt("s := NewStack(2)\ns.Top()\ns.Put(nil)\ns.Top()\n", most=1) == ["it := NewStack(2); it.Top()"]
    assert spelt("s := NewStack(2)\ns.Top()\ns.Push(300, true)\n", most=1) == ["it := NewStack(2); it.Top()"]
    assert spelt("s := NewStack(2)\ns.Top()\ns = NewStack(3)\ns.Push(1, true)\n")[1] == "it := NewStack(3); it.Push(1, true)"
    gone = WRONG.replace("Push(item int8", "Push(item int16")
    assert spelt("s := NewStack(2)\ns.Top()\ns.Push(1, true)\n", texts=(CODE, gone), most=1) == ["it := NewStack(2); it.Top()"]
