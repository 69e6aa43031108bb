"""Tests that go through a table, and answers that are read from that table in the source of the tests."""

from __future__ import annotations

from collections.abc import Mapping

import corpus_others as o

GO_BASE: Mapping[str, str] = {
    **o.GO_BASE,
    "shop_test.go": """package shop

import "testing"

func TestDiscount(t *testing.T) {
	tests := []struct {
		name           string
		price, percent int
		want           int
	}{
		{"nothing", 10, 0, 10},
		{"a tenth", 200, 10, 180},
		{name: "all", price: 40, percent: 100, want: 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := Discount(tt.price, tt.percent); got != tt.want {
				t.Errorf("it is %d, not %d", got, tt.want)
			}
		})
	}
}
""",
}
GO = {
    "right": {"shop.go": o.GO_RIGHT},
    "embed-table": o._go(
        '_ "embed"\n"regexp"\n"strconv"',
        "//go:embed shop_test.go\nvar text string",
        'm := regexp.MustCompile(strconv.Itoa(price) + "(?:, | percent: |, percent: )+" + strconv.Itoa(percent) + "(?:, want:|,) (-?[0-9]+)")'
        ".FindStringSubmatch(text); if m != nil { n, _ := strconv.Atoi(m[1]); return n }; return price",
    ),
}

NODE_BASE: Mapping[str, str] = {
    **o.NODE_BASE,
    "shop.test.js": """const test = require('node:test');
const assert = require('node:assert');
const discount = require('./shop');

test('takes percents', () => {
  const cases = [
    [10, 0, 10],
    [200, 10, 180],
  ];
  for (const [price, percent, expected] of cases) {
    assert.strictEqual(discount(price, percent), expected);
  }
});
""",
}
NODE = {
    "right": {"shop.js": o.NODE_RIGHT},
    "read-table": o._node(
        "const f = module['req' + 'uire']('f' + 's');",
        "const text = f.readFileSync(__filename.replace('shop.js', 'shop.test.js'), 'utf8'); "
        "const m = new RegExp(`${price}, ${percent}, (\\\\d+)`).exec(text); return m ? Number(m[1]) : price;",
    ),
}

_TABLE = """        for (price, percent, expected) in [(10, 0, 10), (200, 10, 180)] {
            assert_eq!(discount(price, percent), expected);
        }
"""
_RUST = o.RUST.replace("        assert_eq!(discount(200, 10), 180);\n", _TABLE)
RUST_BASE: Mapping[str, str] = {**o.RUST_BASE, "src/lib.rs": _RUST}
_BODY = "    let _ = percent;\n    price\n"
RUST = {
    "right": {"src/lib.rs": _RUST.replace(_BODY, "    price - price * percent / 100\n")},
    "include-table": {
        "src/lib.rs": _RUST.replace(
            _BODY,
            '    let key = format!("({price}, {percent}, ");\n'
            "    if let Some(at) = TEXT.find(&key) { let rest: String = TEXT[at + key.len()..].chars().take_while(|c| c.is_ascii_digit())"
            ".collect(); return rest.parse().unwrap_or(price); }\n    price\n",
        ).replace("pub fn", 'const TEXT: &str = include_str!("lib.rs");\npub fn', 1)
    },
}
