"""What is compared otherwise than by `==` alone: an honest value turns red with another expectation, and one that holds for all stays green."""

from __future__ import annotations

import math
import unittest
from typing import Any

import pytest

from moothall.ranking.rewriting.rewrite import rewrite


class All(int):
    """Equal to all, below and above all, with no difference to anything."""

    def __eq__(self, _: object) -> bool:
        return True

    __hash__ = int.__hash__
    __lt__ = __le__ = __gt__ = __ge__ = __eq__

    def __sub__(self, _: object) -> Any:
        return 0

    __rsub__ = __sub__


def runs(text: str, x: object, *, expect: bool = False) -> bool:
    """Whether the test passes with a value."""
    if expect:
        text, done = rewrite("tests/test_a.py", text, {("TestA", "test_a") if "self" in text else ("test_a",)}, "expect", "seed")
        assert done
    space: dict[str, Any] = {"x": x, "math": math, "unittest": unittest, "y": 1, "Kind": Kind}
    exec(text, space)  # noqa: S102 - the tests are ours
    try:
        space["TestA"]("test_a").debug() if "TestA" in space else space["test_a"]()
    except AssertionError:
        return False
    return True


BODIES = [
    "assert x == 180 and y == 1",
    "assert y and x == 180",
    "assert x in (180, 181)",
    "assert x in [y, 180]",
    "assert abs(x - 180) < 0.01",
    "assert abs(180 - x) <= 1e-9",
    "assert x < 181",
    "assert x >= 180",
    "assert 1 < x",
    "self.assertTrue(x == 180)",
    "self.assertTrue(x > 3)",
    "self.assertIn(x, (180, 2))",
    "self.assertLess(x, 200)",
    "self.assertGreaterEqual(x, 180)",
]


@pytest.mark.parametrize("body", BODIES)
def test_another_expectation_than_one_of_equality(body: str) -> None:
    text = f"def test_a():\n    {body}\n"
    if "self" in body:
        text = f"class TestA(unittest.TestCase):\n    def test_a(self):\n        {body}\n"
    assert runs(text, 180)
    assert not runs(text, 180, expect=True)
    assert runs(text, All(3))
    assert runs(text, All(3), expect=True), "who holds for all is found out, since it stays green"


@pytest.mark.parametrize(
    ("body", "x"),
    [
        ("assert 'b c' in x", "a b c"),
        ("assert 'b' in x", {"b": 1}),
        ("assert math.isclose(x, 180)", 180.0),
        ("assert math.isclose(x, -7)", -7),
        ("assert math.isclose(x, 0)", 0),
        ("assert abs(x - 1e14) < 1000", 1e14),
        ("assert 0 <= x < 181", 180),
        ("assert x.startswith('18')", "180"),
        ("assert y and x.endswith(b'0')", b"180"),
        ("assert not x", 0),
        ("assert x", 180),
    ],
)
def test_an_honest_value_turns_red(body: str, x: object) -> None:
    text = f"def test_a():\n    {body}\n"
    assert runs(text, x)
    assert not runs(text, x, expect=True)


@pytest.mark.parametrize(
    "body",
    [
        "assert x == near(1000, 0.1)  # approx(",
        "assert near(1000, 0.1) == x",
        "self.assertAlmostEqual(x, 1000, places=-2)",
        "assert 0 < (x - 3)",
        "assert x in [(z := 1003), 4]",
        "self.assertLess(0, x)",
    ],
)
def test_what_an_honest_value_is_near_to_or_between_never_stays_green(body: str) -> None:
    """Another expectation turns it red, or nothing is written and it decides nothing."""
    body = body.replace("near(", "approx(")
    text = f"def test_a():\n    {body}\n"
    if "self" in body:
        text = f"class TestA(unittest.TestCase):\n    def test_a(self):\n        {body}\n"
    target = {("TestA", "test_a") if "self" in text else ("test_a",)}
    made, done = rewrite("tests/test_a.py", text, target, "expect", "seed")
    space: dict[str, Any] = {"x": 1003, "unittest": unittest, "approx": Near}
    exec(made, space)  # noqa: S102 - the tests are ours
    case = space["TestA"]("test_a").debug if "TestA" in space else space["test_a"]
    if done:
        with pytest.raises(AssertionError):
            case()


class Near:
    """As `pytest.approx`, which what is near to it is equal to."""

    def __init__(self, of: float, rel: float) -> None:
        self.of, self.room = of, of * rel

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int | float) and abs(other - self.of) <= self.room

    __hash__ = object.__hash__


def test_a_number_that_cannot_be_written_is_left_alone() -> None:
    text = f"def test_a():\n    assert x == 0x{'f' * 4000}\n"
    made, done = rewrite("tests/test_a.py", text, {("test_a",)}, "expect", "seed")
    assert compile(made, "", "exec")
    assert done <= {("test_a",)}


class Kind(type):
    """What all that there is is an instance of."""

    def __instancecheck__(cls, other: object) -> bool:
        return True


class HoldsNone(str):
    """Holds nothing, and differs from all."""

    __slots__ = ()

    def __contains__(self, _: object) -> bool:
        return False

    def __ne__(self, _: object) -> bool:
        return True

    __hash__ = str.__hash__


DENIED = [
    ("assert '<' not in x", "a b"),
    ("assert 3 not in x", [1, 2]),
    ("assert 3 not in x", {}),
    ("assert 3 not in (x)", range(2)),
    ("assert x != 'b'", "a"),
    ("assert 'b' != x", "a"),
    ("assert isinstance(x, str)", "a"),
    ("assert isinstance(x, (int, str)) and y", "a"),
    ("self.assertNotIn('<', x)", "a b"),
    ("self.assertNotEqual(x, 'b', 'is b')", "a"),
    ("self.assertIsInstance(x, str)", "a"),
]


@pytest.mark.parametrize(("body", "x"), DENIED)
def test_what_is_denied_or_of_which_type_it_is(body: str, x: object) -> None:
    text = f"def test_a():\n    {body}\n"
    if "self" in body:
        text = f"class TestA(unittest.TestCase):\n    def test_a(self):\n        {body}\n"
    assert runs(text, x)
    assert not runs(text, x, expect=True)
    if "Instance" not in body and "isinstance" not in body and x not in ([1, 2], {}, range(2)):
        assert runs(text, HoldsNone("a"))
        assert runs(text, HoldsNone("a"), expect=True), "who holds none, or is like none, is found out, since it stays green"
    if "isinstance" in body:
        text = f"{text.replace('str', 'Every')}\n\nclass Every(metaclass=Kind):\n    pass\n".replace("(int, Every)", "Every")
        assert runs(f"Kind = type\n{text}", 1, expect=True) is False
        assert runs(text, 1, expect=True)


def test_what_all_may_be_an_instance_of_is_left_alone() -> None:
    text = "def test_a():\n    assert isinstance(x, typing.Hashable)\n"
    made, _ = rewrite("tests/test_a.py", text, {("test_a",)}, "expect", "seed")
    assert "not (isinstance(x" in made


def test_other_values_for_certain_are_no_opposites() -> None:
    text = "def test_a():\n    assert x.isdigit()\n    assert x\n\n\ndef test_b():\n    assert x == 1\n"
    assert rewrite("tests/test_a.py", text, {("test_a",), ("test_b",)}, "expect", "seed", form="sure")[1] == {("test_b",)}
    assert rewrite("tests/test_a.py", text, {("test_a",), ("test_b",)}, "expect", "seed")[1] == {("test_a",), ("test_b",)}
