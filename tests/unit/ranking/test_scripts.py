"""What tests do with the instances of a class: literals alone, bounded, and the same each time."""

from __future__ import annotations

import ast

from hypothesis import given
from hypothesis import strategies as st

from moothall.ranking.inputs.steps import find_dialogues, scripts

STACK = """
class Stack:
    \"\"\"A stack.

    >>> stack = Stack([9])
    >>> stack.pop()
    9
    \"\"\"

    def __init__(self, items: list[int]) -> None: ...

    def push(self, item: int) -> None: ...

    def pop(self): ...

    def _inner(self, item: int): ...

    @property
    def top(self): ...
"""
TESTS = """
import pytest
import stacks
from stacks import Stack


@pytest.fixture
def full():
    return Stack([1, 2])


def test_one():
    stack = Stack([])
    stack.push(stack.pop())
    stack.push(1)


def test_two(full):
    full.push(3)
    assert full.top == 3
    assert len(full) == 3
    assert 3 in full
    assert full[0] == 1


def test_three():
    assert stacks.Stack([4]).pop() == 4
    other = Stack(make())
    other.pop()


class TestSet(unittest.TestCase):
    def setUp(self):
        self.stack = Stack([5])

    def test_it(self):
        self.assertEqual(self.stack.pop(), 5)
"""


def calls(sources: list[str], most: int = 40) -> list[str]:
    return [item.call for item in scripts("Stack", sources, STACK, most)]


def test_what_is_done_with_an_instance_is_taken_in_its_order_until_more_than_literals_is_given() -> None:
    found = calls([TESTS])
    assert {*found[:4]} == {
        "Stack([4]).pop()",
        "Stack([]).pop()",
        "it = Stack([1, 2]); it.push(3); it.top; it.__len__(); it.__contains__(3); it.__getitem__(0)",
        "Stack([5]).pop()",
    }
    assert {"it = Stack([4]); it.pop(); it.pop()", "Stack([4, 4]).pop()"} <= {*found}
    assert not any("make" in call for call in found)


def test_a_dialogue_of_a_docstring_is_read_alike_and_annotations_stand_in_where_nothing_is_shown() -> None:
    assert calls(list(find_dialogues(STACK)))[0] == "Stack([9]).pop()"
    found = calls([])
    assert "Stack([]).push(0)" in found
    assert not any("_inner" in call for call in found)
    assert scripts("Stack", [TESTS], "class Other: pass", 5) == ()


@given(
    st.text(max_size=100),
    st.lists(st.sampled_from(["stack = Stack([1])", "stack.push(2)", "stack.pop()", "x = stack[0]"]), max_size=6),
    st.integers(1, 30),
)
def test_whatever_stands_there_they_are_literals_bounded_and_the_same_each_time(text: str, lines: list[str], most: int) -> None:
    source = "def test():\n    pass\n" + "".join(f"    {line}\n" for line in lines)
    found = scripts("Stack", [text, source], STACK, most)
    assert found == scripts("Stack", [text, source], STACK, most)
    assert len(found) == len(set(found)) <= most
    for item in found:
        assert isinstance(ast.literal_eval(item.then), tuple)
        assert len(item.arguments) + len(item.then) <= 500
        ast.parse(item.call)
