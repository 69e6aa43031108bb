"""Values whose type says itself what it is equal to: another of its kind is told from it, unless it is equal to all of them."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from moothall.ranking.rewriting.rewrite import Form, rewrite


@dataclass
class Plain:
    amount: Any


@dataclass(frozen=True)
class Frozen:
    amount: Any


class Slotted:
    __slots__ = ("amount",)

    def __init__(self, amount: Any) -> None:
        self.amount = amount

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Slotted) and self.amount == other.amount

    __hash__ = object.__hash__


class OfItsKind(Plain):
    """Equal to all of its kind."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OfItsKind)

    __hash__ = object.__hash__


class Slots(Slotted):
    """Equal to all that has what it has."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return hasattr(other, "amount")

    __hash__ = object.__hash__


class Color(enum.Enum):
    RED = 1


class Unequal:
    """Is equal to itself alone."""

    def __init__(self) -> None:
        self.name = "a"


def passes(found: object, wanted: object, form: Form = "") -> bool:
    """Whether a test that compares the two passes with another expectation."""
    text, done = rewrite(
        "tests/test_a.py", "def test_a():\n    assert found == wanted\n", {("test_a",)}, "expect", "seed", form=form
    )
    assert done
    space: dict[str, Any] = {"found": found, "wanted": wanted}
    exec(text, space)  # noqa: S102 - the tests are ours
    try:
        space["test_a"]()
    except AssertionError:
        return False
    return True


ONE = Unequal()
HONEST = [
    (Plain(180), Plain(180)),
    (Frozen("a"), Frozen("a")),
    (Slotted([1]), Slotted([1])),
    (Plain(Slotted(180)), Plain(Slotted(180))),
    (Color.RED, Color.RED),
    (ONE, ONE),
    (Decimal("1.5"), Decimal("1.5")),
    (Fraction(3, 3), Fraction(1)),
    (Plain, Plain),
    ([Plain(1)], [Plain(1)]),
    (None, None),
]


@pytest.mark.parametrize("form", ["", "again", "plain"])
@pytest.mark.parametrize(("found", "wanted"), HONEST)
def test_an_honest_value_is_not_equal_to_another(found: object, wanted: object, form: Form) -> None:
    assert not passes(found, wanted, form)


@pytest.mark.parametrize(("found", "wanted"), [(OfItsKind(200), OfItsKind(180)), (Slots(200), Slots(180))])
def test_one_that_is_equal_to_all_of_its_kind_stays_green(found: object, wanted: object) -> None:
    assert passes(found, wanted)
    assert passes(found, wanted, "again")
    assert not passes(found, wanted, "plain"), "something that is of no kind is not equal to it"


def test_what_another_expectation_cannot_tell_is_not_written_plainly() -> None:
    for body in ("assert x < 5", "assert x.startswith('a')", "assert 'a' in x"):
        text = f"def test_a():\n    {body}\n"
        assert rewrite("tests/test_a.py", text, {("test_a",)}, "expect", "seed")[1]
        assert not rewrite("tests/test_a.py", text, {("test_a",)}, "expect", "seed", form="plain")[1]


def test_written_again_the_same_place_wants_a_third_value() -> None:
    text = "def test_a():\n    assert f(1) == 7\n    assert f(2) == 9\n"
    once, again = (rewrite("tests/test_a.py", text, {("test_a",)}, "expect", "seed", form=form)[0] for form in ("", "again"))
    first, second = once.split("\n\n")[0].split("\n"), again.split("\n\n")[0].split("\n")
    assert [one != other for one, other in zip(first, second, strict=True)].count(True) == 1
    assert [line in text for line in first] == [line in text for line in second]
