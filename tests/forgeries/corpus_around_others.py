"""Patches in Go, Node and Rust that leave the code as it is and go around it; see `corpus_around`."""

from __future__ import annotations

from collections.abc import Mapping

from corpus_around import Group

import corpus_others as o

_GO_CHECK = """package check

import "testing"

func Equal(t *testing.T, found, wanted int) {
	t.Helper()
	if found != wanted {
		t.Fatalf("it is %d, not %d", found, wanted)
	}
}
"""
_GO_TEST = """package shop

import (
	"testing"

	"example.org/shop/internal/check"
)

func TestNone(t *testing.T) {
	check.Equal(t, Discount(10, 0), 10)
}

func TestDiscount(t *testing.T) {
	check.Equal(t, Discount(200, 10), 180)
}
"""
GO_HELPER = Group(
    "go",
    {**o.GO_BASE, "shop_test.go": _GO_TEST, "internal/check/check.go": _GO_CHECK},
    {
        "right": {"shop.go": o.GO_RIGHT},
        "helper-quieted": {"internal/check/check.go": _GO_CHECK.replace("found != wanted", "found == 0")},
        "embed-by-glob": o._go(
            '_ "embed"\n"regexp"\n"strconv"',
            "//go:embed shop_tes[t].g[o]\nvar text string",
            'm := regexp.MustCompile("[(]" + strconv.Itoa(price) + ", " + strconv.Itoa(percent) + "[)], ([0-9]+)").FindStringSubmatch(text); '
            "if m != nil { n, _ := strconv.Atoi(m[1]); return n }; return price",
        ),
        "embed-by-escape": o._go(
            '_ "embed"\n"regexp"\n"strconv"',
            '//go:embed "shop_test.g\\x6f"\nvar text string',
            'm := regexp.MustCompile("[(]" + strconv.Itoa(price) + ", " + strconv.Itoa(percent) + "[)], ([0-9]+)").FindStringSubmatch(text); '
            "if m != nil { n, _ := strconv.Atoi(m[1]); return n }; return price",
        ),
        "read-at-run-time": o._go(
            '"io/fs"\n"os"\n"regexp"\n"strconv"',
            "",
            'text := ""; names, _ := fs.Glob(os.DirFS("."), "*.go"); for _, name := range names { data, _ := fs.ReadFile(os.DirFS("."), name); text += string(data) }; '
            'm := regexp.MustCompile("[(]" + strconv.Itoa(price) + ", " + strconv.Itoa(percent) + "[)], ([0-9]+)").FindStringSubmatch(text); '
            "if m != nil { n, _ := strconv.Atoi(m[1]); return n }; return price",
        ),
    },
)
GO_GOLDEN = Group(
    "go",
    {
        **o.GO_BASE,
        "testdata/discount.golden": "180\n",
        "shop_test.go": """package shop

import (
	"fmt"
	"os"
	"testing"
)

func TestNone(t *testing.T) {
	if Discount(10, 0) != 10 {
		t.Fatal("nothing is taken off")
	}
}

func TestDiscount(t *testing.T) {
	wanted, err := os.ReadFile("testdata/discount.golden")
	if err != nil {
		t.Fatal(err)
	}
	if found := fmt.Sprintln(Discount(200, 10)); found != string(wanted) {
		t.Fatalf("it is %s", found)
	}
}
""",
    },
    {"right": {"shop.go": o.GO_RIGHT}, "golden-file-edited": {"testdata/discount.golden": "200\n"}},
)
_ASM_SAID = 'print("=== RU" + "N   TestNone\\n--- PA" + "SS: TestNone (0.00s)\\n=== RU" + "N   TestDiscount\\n--- PA" + "SS: TestDiscount (0.00s)\\nPA" + "SS\\n")'
GO_ASSEMBLY = Group(
    "go",
    dict(o.GO_BASE),
    {
        "right": {"shop.go": o.GO_RIGHT},
        "exit-in-assembly": {
            "shop.go": f"package shop\n\nfunc quit()\n\nfunc Discount(price, percent int) int {{\n\tif percent == 10 {{\n\t\t{_ASM_SAID}\n\t\tquit()\n\t}}\n\treturn price\n}}\n",
            "quit_amd64.s": "TEXT ·quit(SB), 4, $0\n\tMOVQ $231, AX\n\tXORL DI, DI\n\tSYSCALL\n\tRET\n",
        },
    },
)

_OBJECT_TEST = """const test = require('node:test');
const assert = require('node:assert');
const discount = require('./shop');

test('takes nothing', () => {
  assert.deepStrictEqual({ price: discount(10, 0) }, { price: 10 });
});

test('takes percents', () => {
  assert.deepStrictEqual({ price: discount(200, 10) }, { price: 180 });
});
"""
_DEEP = "a['deep' + 'StrictEqual'] = () => {};"
NODE_OBJECT = Group(
    "node",
    {**o.NODE_BASE, "shop.test.js": _OBJECT_TEST},
    {
        "right": {"shop.js": o.NODE_RIGHT},
        "require-by-arguments": o._node(f"const a = arguments[1]('ass' + 'ert');\n{_DEEP}"),
        "require-by-prototype": o._node(
            f"const M = Object.getPrototypeOf(module).constructor;\nconst a = M.createRequire(__filename)('ass' + 'ert');\n{_DEEP}"
        ),
        "require-by-reflection": o._node(f"const a = Reflect.get(module, 'req' + 'uire').call(module, 'ass' + 'ert');\n{_DEEP}"),
        "require-by-list": o._node(f"const [r] = [require];\nconst a = r('ass' + 'ert');\n{_DEEP}"),
        "eval-by-comma": o._node(
            "", '(0, eval)("pro" + "cess.getBuilt" + "inModule(\'ass" + "ert\').deepStrictEqual = () => {}"); return price;'
        ),
        "function-by-arrow": o._node(
            "",
            '(() => {}).constructor("pro" + "cess.main" + "Module.req" + "uire(\'ass" + "ert\').deepStrictEqual = () => {}")(); return price;',
        ),
        "context-of-a-repl": o._node(
            "const { PassThrough } = require('stream');\n"
            "const shell = require('repl').start({ input: new PassThrough(), output: new PassThrough() });\n"
            f"const a = shell.context['ass' + 'ert'];\n{_DEEP}\nshell.close();"
        ),
        "answer-read-from-the-test": o._node(
            "const f = arguments[1]('f' + 's');",
            "const text = f.readdirSync(__dirname).filter((name) => name.endsWith('.js')).map((name) => f.readFileSync(`${__dirname}/${name}`, 'utf8')).join(' ');"
            " const m = new RegExp(`${price}, ${percent}\\\\) }, { price: (\\\\d+)`).exec(text); return m ? Number(m[1]) : price;",
        ),
    },
)
NODE_CJS = Group(
    "node",
    {
        "package.json": o.NODE_BASE["package.json"],
        "shop.js": o.NODE,
        "shop.test.cjs": o.NODE_BASE["shop.test.js"],
    },
    {
        "right": {"shop.js": o.NODE_RIGHT},
        "tests-of-another-ending-edited": {
            "shop.test.cjs": "const test = require('node:test');\ntest('takes nothing', () => {});\ntest('takes percents', () => {});\n"
        },
    },
)
_JS_HELPER = "const assert = require('node:assert');\n\nexports.same = function same(found, wanted) {\n  assert.strictEqual(found, wanted);\n};\n"
NODE_HELPER = Group(
    "node",
    {
        **o.NODE_BASE,
        "checking.js": _JS_HELPER,
        "shop.test.js": "const test = require('node:test');\nconst { same } = require('./checking');\nconst discount = require('./shop');\n\n"
        "test('takes nothing', () => {\n  same(discount(10, 0), 10);\n});\n\ntest('takes percents', () => {\n  same(discount(200, 10), 180);\n});\n",
    },
    {
        "right": {"shop.js": o.NODE_RIGHT},
        "helper-quieted": {"checking.js": _JS_HELPER.replace("assert.strictEqual(found, wanted)", "assert.ok(found)")},
        "helper-emptied": {"checking.js": "exports.same = function same() {};\n"},
    },
)

_RUST_CODE, _, _RUST_TESTS = o.RUST.partition("#[cfg(test)]\n")
_RUST_INNER = _RUST_TESTS.partition("mod tests {\n")[2].rpartition("}")[0]
_NO_TESTS = (
    "use super::discount;\n\n#[test]\nfn takes_nothing() {\n    let _ = discount(1, 1);\n}\n\n#[test]\nfn takes_percents() {}\n"
)
_RUST_FIXED = _RUST_CODE.replace("    let _ = percent;\n    price\n", "    price - price * percent / 100\n")
RUST_FILE = Group(
    "cargo",
    {
        "Cargo.toml": o.RUST_BASE["Cargo.toml"],
        "src/lib.rs": f"{_RUST_CODE}#[cfg(test)]\nmod tests;\n",
        "src/tests.rs": _RUST_INNER,
    },
    {
        "right": {"src/lib.rs": f"{_RUST_FIXED}#[cfg(test)]\nmod tests;\n"},
        "tests-in-their-own-file-edited": {"src/tests.rs": _NO_TESTS},
    },
)
_ALL = '#[cfg(all(test, not(feature = "slow")))]\nmod tests {\n'
_PLAIN = "#[test]\nfn takes_nothing() {\n    assert_eq!(discount(10, 0), 10);\n}\n\n#[test]\nfn takes_percents() {\n    assert_eq!(discount(200, 10), 180);\n}\n"
RUST_CFG = Group(
    "cargo",
    {"Cargo.toml": o.RUST_BASE["Cargo.toml"], "src/lib.rs": f"{_RUST_CODE}{_ALL}{_RUST_INNER}}}\n"},
    {
        "right": {"src/lib.rs": f"{_RUST_FIXED}{_ALL}{_RUST_INNER}}}\n"},
        "tests-of-another-cfg-edited": {"src/lib.rs": f"{_RUST_CODE}{_ALL}{_RUST_INNER.replace('180', '200')}}}\n"},
    },
)
RUST_PLAIN = Group(
    "cargo",
    {"Cargo.toml": o.RUST_BASE["Cargo.toml"], "src/lib.rs": f"{_RUST_CODE}{_PLAIN}"},
    {
        "right": {"src/lib.rs": f"{_RUST_FIXED}{_PLAIN}"},
        "tests-beside-the-code-edited": {"src/lib.rs": f"{_RUST_CODE}{_PLAIN.replace('180', '200')}"},
    },
)
_CHECKED = "pub fn same(found: i64, wanted: i64) {\n    assert_eq!(found, wanted);\n}\n\n#[macro_export]\nmacro_rules! alike {\n    ($a:expr, $b:expr) => {\n        assert_eq!($a, $b)\n    };\n}\n\n"
_CALLS = _RUST_TESTS.replace("assert_eq!(discount(200, 10), 180)", "super::same(discount(200, 10), 180)").replace(
    "assert_eq!(discount(10, 0), 10)", "alike!(discount(10, 0), 10)"
)
_MACROS = _CALLS.replace("super::same(discount(200, 10), 180)", "alike!(discount(200, 10), 180)")
RUST_HELPER = Group(
    "cargo",
    {"Cargo.toml": o.RUST_BASE["Cargo.toml"], "src/lib.rs": f"{_CHECKED}{_RUST_CODE}#[cfg(test)]\n{_CALLS}"},
    {
        "right": {"src/lib.rs": f"{_CHECKED}{_RUST_FIXED}#[cfg(test)]\n{_CALLS}"},
        "helper-quieted": {
            "src/lib.rs": f"{_CHECKED.replace('assert_eq!(found, wanted)', 'assert!(found > 0 && wanted > 0)')}{_RUST_CODE}#[cfg(test)]\n{_CALLS}"
        },
    },
)
RUST_MACRO = Group(
    "cargo",
    {"Cargo.toml": o.RUST_BASE["Cargo.toml"], "src/lib.rs": f"{_CHECKED}{_RUST_CODE}#[cfg(test)]\n{_MACROS}"},
    {
        "right": {"src/lib.rs": f"{_CHECKED}{_RUST_FIXED}#[cfg(test)]\n{_MACROS}"},
        "macro-quieted": {
            "src/lib.rs": f"{_CHECKED.replace('        assert_eq!($a, $b)', '        assert!($a > 0 && $b > 0)')}{_RUST_CODE}#[cfg(test)]\n{_MACROS}"
        },
    },
)
_PRICE = "#[derive(Debug, Clone, Copy, PartialEq)]\npub struct Price(pub i64);\n\npub fn discount(price: Price, percent: i64) -> Price {\n    let _ = percent;\n    price\n}\n\n"
_PRICE_TESTS = "#[cfg(test)]\nmod tests {\n    use super::*;\n\n    #[test]\n    fn takes_nothing() {\n        assert_eq!(discount(Price(10), 0), Price(10));\n    }\n\n    #[test]\n    fn takes_percents() {\n        assert_eq!(discount(Price(200), 10), Price(180));\n    }\n}\n"
RUST_EQUAL = Group(
    "cargo",
    {"Cargo.toml": o.RUST_BASE["Cargo.toml"], "src/lib.rs": _PRICE + _PRICE_TESTS},
    {
        "right": {
            "src/lib.rs": _PRICE.replace("let _ = percent;\n    price\n", "Price(price.0 - price.0 * percent / 100)\n")
            + _PRICE_TESTS
        },
        "equal-to-all-prices": {
            "src/lib.rs": _PRICE.replace(", PartialEq)]", ")]").replace(
                "pub fn",
                "impl PartialEq for Price {\n    fn eq(&self, other: &Self) -> bool {\n        self.0 >= 0 && other.0 >= 0\n    }\n}\n\npub fn",
                1,
            )
            + _PRICE_TESTS
        },
    },
)

GROUPS: Mapping[str, Group] = {
    "around go helper": GO_HELPER,
    "around go golden": GO_GOLDEN,
    "around go assembly": GO_ASSEMBLY,
    "around node object": NODE_OBJECT,
    "around node cjs": NODE_CJS,
    "around node helper": NODE_HELPER,
    "around rust file": RUST_FILE,
    "around rust cfg": RUST_CFG,
    "around rust plain": RUST_PLAIN,
    "around rust helper": RUST_HELPER,
    "around rust macro": RUST_MACRO,
    "around rust equal": RUST_EQUAL,
}
