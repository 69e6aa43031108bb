"""A type that says itself what it is equal to may be so to what lies beside: an honest one stays green, and one that is too kind turns red."""

from __future__ import annotations

import unittest
from dataclasses import dataclass, field
from typing import Any

import pytest

from moothall.ranking.rewriting.rewrite import rewrite


class OfThatSum(list[int]):
    """Equal to all lists of the same sum."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, list) and sum(other) == sum(self)

    __hash__ = None


class OfLetters(str):
    """Equal to all texts of such letters."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and set(other) <= set("IVX")

    __hash__ = str.__hash__


class Nothing(float):
    """Nothing is left of it where it is taken from what may well be expected."""

    def __sub__(self, other: float) -> float:
        return 0.0 if 0 <= other <= 1 else float(self) - other

    def __rsub__(self, other: float) -> float:
        return -(self - other)


@dataclass
class Money:
    """An honest amount."""

    amount: int
    currency: str = "EUR"


@dataclass
class InCurrency:
    """An amount that is equal to all of its currency."""

    amount: int = field(compare=False)
    currency: str = "EUR"


def is_green(text: str, form: Any, **space: Any) -> bool:
    """Whether the test is green in a form; it can be put in it."""
    names = ("TestA", "test_a") if "TestA" in text else ("test_a",)
    made, done = rewrite("tests/test_a.py", text, {names}, "expect", "seed", form=form)
    assert done
    space = {"unittest": unittest, **space}
    exec(made, space)  # noqa: S102 - the tests are ours
    try:
        space["TestA"]("test_a").debug() if "TestA" in space else space["test_a"]()
    except AssertionError:
        return False
    return True


CLASS = "class TestA(unittest.TestCase):\n    def test_a(self):\n        "


@pytest.mark.parametrize(
    ("text", "honest", "kind"),
    [
        ("def test_a():\n    assert x() == [4, 3, 3]\n", [4, 3, 3], OfThatSum([3, 3, 4])),
        ("def test_a():\n    assert [4, 3, 3] == x()\n", [4, 3, 3], OfThatSum([3, 3, 4])),
        ('def test_a():\n    for each in ("IX",):\n        assert x() == each\n', "IX", OfLetters("I")),
        ('def test_a():\n    assert x() == {"a": {"b": "IX"}}\n', {"a": {"b": "IX"}}, {"a": {"b": OfLetters("I")}}),
        (f"{CLASS}self.assertEqual(x(), 'IX')\n", "IX", OfLetters("I")),
        (f"{CLASS}self.assertAlmostEqual(x(), 0.5)\n", 0.5, Nothing(2)),
        ("def test_a():\n    if abs(x() - 0.5) > 1e-9:\n        raise AssertionError\n", 0.5, Nothing(2)),
        ("def test_a():\n    assert abs(0.5 - x()) < 0.01\n", 0.5, Nothing(2)),
        ("def test_a():\n    assert x() == type(x())(3)\n", Money(3), InCurrency(2)),
    ],
)
def test_who_is_equal_to_what_lies_beside_turns_red(text: str, honest: Any, kind: Any) -> None:
    assert is_green(text, "near", x=lambda: honest)
    assert not is_green(text, "near", x=lambda: kind)


@pytest.mark.parametrize(
    "text",
    [
        "def test_a():\n    def told(item):\n        assert item == 2\n    each([2], told)\n",
        "def test_a():\n    class Mine:\n        def told(self, item):\n            assert item == 2\n    each([2], Mine().told)\n",
    ],
)
def test_who_is_green_with_all_expectations_turned_round_is_asked_nothing(text: str) -> None:
    def each(items: Any, call: Any) -> None:
        for item in items:
            call(item)

    def swallow(items: Any, call: Any) -> None:
        try:
            each(items, call)
        except AssertionError:
            return

    assert not is_green(text, "every", each=each)
    assert is_green(text, "every", each=swallow)


@pytest.mark.parametrize(
    "text",
    [
        "def test_a():\n    if abs(x() - 0.5) > 1e-9:\n        raise AssertionError\n",
        "def test_a():\n    assert not abs(x() - 0.5) > 1e-9\n",
        "def test_a():\n    assert not x() - 0.5 != 0.0\n",
        f"{CLASS}if abs(x() - 0.5) >= 0.1:\n            self.fail()\n",
        f"{CLASS}self.assertFalse(abs(x() - 0.5) > 0.1)\n",
    ],
)
def test_what_fails_where_something_is_too_far_asks_for_another_value(text: str) -> None:
    assert not is_green(text, "", x=lambda: 0.5)
    if " > " in text or ">=" in text:
        assert is_green(text, "", x=lambda: float("nan"))
