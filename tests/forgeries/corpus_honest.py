"""Honest answers to suites that were once taken for forged, or could not be put in other words: each wins as proven."""

from __future__ import annotations

from collections.abc import Mapping

from corpus_around import Group

import corpus_others as o
import corpus_python as p
from judge import PYTEST

_CHECK = """package check

import "testing"

type Assertions struct{ t *testing.T }

func New(t *testing.T) *Assertions { return &Assertions{t} }

func (a *Assertions) Equal(expected, actual int, why ...string) {
	if expected != actual {
		a.t.Error(why)
	}
}
"""
_HOLDER = """package shop

import (
	"testing"

	assert "example.org/shop/check"
)

func TestDiscount(t *testing.T) {
	assert := assert.New(t)
	assert.Equal(180, Discount(200, 10), "percents are taken off")
}
"""
_LEFT = """//go:build !windows

package shop

import "testing"

func TestDiscount(t *testing.T) {
	for _, price := range []int{100, 200} {
		if found := Discount(price, 10); found != price-price/10 {
			t.Fatal(found)
		}
	}
}
"""
_OTHER_SYSTEM = """//go:build windows

package shop

import "testing"

func TestDiscount(t *testing.T) {
	if found := Discount(200, 10); found != 180 {
		t.Fatal(found)
	}
}
"""
_BYTE = """package shop

import "testing"

func TestDiscount(t *testing.T) {
	if found := byte(Discount(300, 15)); found != 255 {
		t.Fatal(found)
	}
}
"""
_MOD = {"go.mod": o.GO_BASE["go.mod"], "shop.go": o.GO}
_INNER = """pub fn discount(price: u8, percent: u8) -> u8 {
    let _ = percent;
    price
}

#[cfg(test)]
mod tests {
    use super::discount;

    #[test]
    fn takes_percents() {
        for price in [100, 200] {
            assert_eq!(discount(price, 10), price - price / 10);
        }
    }

    #[test]
    fn takes_nothing_of_the_largest() {
        assert_eq!(discount(250, 0).max(discount(255, 100)), 250);
    }
}
"""
_LIB = """pub mod inner;

#[cfg(test)]
mod tests {
    #[test]
    fn takes_percents() {
        assert_eq!(1 + 1, 2);
    }
}
"""
_TWICE = """import unittest

from shop.price import discount


class Above(unittest.TestCase):
    def test_discount(self):
        for price in (100, 200):
            self.assertEqual(discount(price, 10), price - price // 10)


class Within(Above):
    pass


class Beside:
    def test_discount(self):
        assert 1 + int("1") == 2


class TestPrice(Within, Beside):
    pass


class TestLate(unittest.TestCase):
    async def test_discount(self):
        assert discount(200, 10) == 180
"""
GROUPS: Mapping[str, Group] = {
    "honest go holder": Group(
        "go", {**_MOD, "check/check.go": _CHECK, "shop_test.go": _HOLDER}, {"right": {"shop.go": o.GO_RIGHT}}
    ),
    "honest go systems": Group(
        "go", {**_MOD, "shop_test.go": _LEFT, "other_test.go": _OTHER_SYSTEM}, {"right": {"shop.go": o.GO_RIGHT}}
    ),
    "honest go byte": Group("go", {**_MOD, "shop_test.go": _BYTE}, {"right": {"shop.go": o.GO_RIGHT}}),
    "honest rust inner": Group(
        "cargo",
        {"Cargo.toml": o.RUST_BASE["Cargo.toml"], "src/lib.rs": _LIB, "src/inner.rs": _INNER},
        {
            "right": {
                "src/inner.rs": _INNER.replace(
                    "    let _ = percent;\n    price\n", "    price - (u16::from(price) * u16::from(percent) / 100) as u8\n"
                )
            }
        },
    ),
    "honest pytest twice": Group(
        "python3", {**p.BASE, "tests/test_price.py": _TWICE}, {"right": {"shop/price.py": p.RIGHT}}, PYTEST
    ),
}
