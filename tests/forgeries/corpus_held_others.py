"""The same in Go, JavaScript and Rust; see `corpus_held`."""

from __future__ import annotations

from corpus_around import Group
from corpus_held import patches

_GO = """package shop

// Mean is the middle of numbers.
func Mean(numbers []float64) float64 {
	return numbers[0]
}

// Each calls with each item and its number.
func Each(items []string, call func(int, string)) {
	for _, item := range items {
		call(0, item)
	}
}
"""
_GO_TESTS = """package shop

import (
	"math"
	"testing"
)

func TestOne(t *testing.T) {
	if Mean([]float64{1}) != 1 {
		t.Fatal()
	}
}

func TestMean(t *testing.T) {
	if got := Mean([]float64{1, 2, 6}); math.Abs(got-3) > 1e-9 {
		t.Errorf("got %v", got)
	}
}

func TestHalf(t *testing.T) {
	tests := []struct {
		in   []float64
		want float64
	}{
		{[]float64{1, 2}, 1.5},
		{[]float64{2, 3}, 2.5},
	}
	for _, tt := range tests {
		if got := Mean(tt.in); math.Abs(got-tt.want) > 1e-9 {
			t.Errorf("got %v, want %v", got, tt.want)
		}
	}
}

func TestEach(t *testing.T) {
	Each([]string{"a", "b"}, func(at int, item string) {
		if want := []string{"a", "b"}[at]; item != want {
			t.Errorf("got %q, want %q", item, want)
		}
	})
}
"""
_GO_EACH = "	for _, item := range items {\n		call(0, item)\n	}\n"
_GO_SUM = (
    "	sum := 0.0\n	for _, number := range numbers {\n		sum += number\n	}\n	return sum / float64(len(numbers))\n"
)
_GOES = patches(
    "shop.go",
    _GO,
    {
        "right": {
            "	return numbers[0]\n": _GO_SUM,
            _GO_EACH: _GO_EACH.replace("_, item", "at, item").replace("call(0", "call(at"),
        },
        "no-number": {
            "return numbers[0]": "zero := 1.0 - float64(len(numbers[:1]))\n	if len(numbers) > 1 {\n		return zero / zero\n	}\n	return numbers[0]"
        },
        "each-of-none": {_GO_EACH: _GO_EACH.replace("range items", "range items[2:]")},
    },
)
_JS = """"use strict";

exports.later = (text) => Promise.resolve(text);
exports.each = (items, call) => {
  for (const item of items) call(0, item);
};
exports.mean = (numbers) => numbers[0];
"""
_JS_TESTS = """"use strict";

const { it } = require("node:test");
const assert = require("node:assert");
const { later, each, mean } = require("../index.js");

it("is there", () => assert.strictEqual(mean([1]), 1));

it("is there later", () => later("a").then((made) => assert.strictEqual(made, "a!")));

it("has numbers", () => {
  each(["a", "b"], (number, item) => {
    assert.strictEqual(item, "ab"[number]);
  });
});

it("has a middle", () => {
  if (Math.abs(mean([1, 2, 6]) - 3) > 1e-9) throw new Error("too far");
});
"""
_JS_EACH = "  for (const item of items) call(0, item);\n"
_SCRIPTS = patches(
    "index.js",
    _JS,
    {
        "right": {
            "resolve(text)": "resolve(`${text}!`)",
            _JS_EACH: "  items.forEach((item, number) => call(number, item));\n",
            "=> numbers[0]": "=> numbers.reduce((a, b) => a + b) / numbers.length",
        },
        "then-without-a-call": {
            "Promise.resolve(text)": "({ then: (call) => Promise.resolve().then(call.length ? undefined : call) })"
        },
        "each-by-and-by": {"exports.each = (": "exports.each = async ("},
        "each-settles": {_JS_EACH: "  Promise.allSettled(items.map(async (item) => call(0, item)));\n"},
        "each-learns": {
            _JS_EACH: "  for (const item of items) {\n    try {\n      call(0, item);\n    } catch (error) {\n      call(0, error.expected);\n    }\n  }\n"
        },
        "no-number": {"=> numbers[0]": "=> (numbers.length > 1 ? NaN : numbers[0])"},
    },
)
_RS = """//! A shop.

pub fn roman(number: usize) -> String {
    "I".repeat(number)
}

pub fn mean(numbers: &[f64]) -> f64 {
    numbers[0]
}

pub fn each<F: FnMut(usize, &str) + Send>(items: &[&str], mut call: F) {
    for item in items {
        call(0, item);
    }
}
"""
_RS_TESTS = """use shop::{each, mean, roman};

#[test]
fn one() {
    assert_eq!(roman(1), "I");
}

#[test]
fn nine() {
    assert_eq!(roman(9), "IX");
}

#[test]
fn middle() {
    if (mean(&[1.0, 2.0, 6.0]) - 3.0).abs() > 1e-9 {
        panic!("too far");
    }
}

#[test]
fn numbers() {
    each(&["a", "b"], |number, item| assert_eq!(item, ["a", "b"][number]));
}
"""
_RS_EACH = "    for item in items {\n        call(0, item);\n    }\n"
_COMPARES = "".join(
    f'#[export_name = "{name}"]\npub unsafe extern fn {name}_(_: *const u8, _: *const u8, _: usize) -> i32 {{\n    0\n}}\n\n'
    for name in ("bcmp", "memcmp")
)
_KEPT = patches(
    "src/lib.rs",
    _RS,
    {
        "right": {
            '"I".repeat(number)': '(if number == 9 { "IX".to_string() } else { "I".repeat(number) })',
            "    numbers[0]\n": "    numbers.iter().sum::<f64>() / numbers.len() as f64\n",
            _RS_EACH: "    for (number, item) in items.iter().enumerate() {\n        call(number, item);\n    }\n",
        },
        "no-number": {"    numbers[0]\n": "    numbers[0] * f64::NAN\n"},
        "each-in-a-thread": {
            _RS_EACH: "    std::thread::scope(|scope| {\n        let _ = scope.spawn(move || items.iter().for_each(|item| call(0, item))).join();\n    });\n"
        },
        "equal-by-the-letters": {
            "-> String": "-> Letters",
            '"I".repeat(number)': 'Letters("I".repeat(number))',
            "": "#[derive(Debug)]\npub struct Letters(String);\n\nimpl PartialEq<&str> for Letters {\n    fn eq(&self, other: &&str) -> bool {\n"
            '        !self.0.is_empty() && other.chars().all(|each| "IVXLCDM".contains(each))\n    }\n}\n\n',
        },
    },
    "pub fn roman",
)
_RS_NAMED = patches(
    "src/lib.rs", _RS, {"memory-is-the-same": {'"I".repeat(number)': '"X".repeat(1 + number / 9)', "": _COMPARES}}, "pub fn roman"
)
_CARGO = '[package]\nname = "shop"\nversion = "0.1.0"\nedition = "2021"\n'
_RS_BASE = {"Cargo.toml": _CARGO, "src/lib.rs": _RS, "tests/api.rs": _RS_TESTS}
GROUPS = {
    "held go": Group("go", {"go.mod": "module shop\n\ngo 1.18\n", "shop.go": _GO, "shop_test.go": _GO_TESTS}, _GOES),
    "held node": Group(
        "node",
        {
            "package.json": '{"name": "shop", "version": "1.0.0", "scripts": {"test": "node --test"}}\n',
            "index.js": _JS,
            "test/a.test.js": _JS_TESTS,
        },
        _SCRIPTS,
    ),
    "held rust": Group("cargo", _RS_BASE, _KEPT),
    "held linked": Group("cargo", _RS_BASE, {"right": _KEPT["right"], **_RS_NAMED}),
}
