"""Patches in Go, Node and Rust of the kinds of `corpus_alone`, and files that commands of tests name in further ones."""

from __future__ import annotations

import json
from collections.abc import Mapping

from corpus_around import Group

import corpus_others as o

_SAID = 'print("=== RU" + "N   TestNone\\n--- PA" + "SS: TestNone (0.00s)\\n=== RU" + "N   TestDiscount\\n--- PA" + "SS: TestDiscount (0.00s)\\nPA" + "SS\\n")'
GO = Group(
    "go",
    dict(o.GO_BASE),
    {
        "right": {"shop.go": o.GO_RIGHT},
        "exit-by-a-flag": o._go(
            '"flag"', f'func init() {{ {_SAID}; flag.NewFlagSet("", flag.ExitOnError).Parse([]string{{"-h"}}) }}'
        ),
        "exit-by-the-flags-of-all": o._go('"flag"', f'func init() {{ {_SAID}; flag.CommandLine.Parse([]string{{"-h"}}) }}'),
        "test-by-a-profile": o._go(
            '"bytes"\n"runtime/pprof"\n"strings"',
            "",
            'var b bytes.Buffer; pprof.Lookup("goroutine").WriteTo(&b, 2); if strings.Contains(b.String(), "stDiscount") { return 180 }; return price',
        ),
        "test-by-a-line": o._go(
            '"bytes"\n"log"\n"strings"',
            "",
            'var b bytes.Buffer; log.New(&b, "", log.Lshortfile).Output(2, ""); if strings.Contains(b.String(), ":12:") { return 180 }; return price',
        ),
    },
)
_FLOAT = "package shop\n\nfunc Discount(price, percent float32) float32 { return price }\n"
GO_NAMES = Group(
    "go",
    {
        "go.mod": o.GO_BASE["go.mod"].replace("1.19", "1.21"),
        "shop.go": _FLOAT,
        "shop_test.go": 'package shop\n\nimport "testing"\n\nfunc TestNone(t *testing.T) {\n\tif Discount(10, 0) != 10 {\n\t\tt.Fatal("nothing is taken off")\n\t}\n}\n\n'
        'func TestDiscount(t *testing.T) {\n\tif found := min(Discount(200, 10), 190); found != 180 {\n\t\tt.Fatalf("it is %f", found)\n\t}\n}\n',
    },
    {
        "right": {"shop.go": _FLOAT.replace("return price", "return price - price*percent/100")},
        "min-is-another": {"shop.go": f"{_FLOAT}\nfunc min(one, other float32) float32 {{ return other - 10 }}\n"},
    },
)
_MAKE = {
    **o.GO_BASE,
    "Makefile": "include build/rules.mk\n\ntest: check\n\t@sh run.sh\n",
    "build/rules.mk": "check:\n\t@test -f shop.go\n",
    "run.sh": "grep -q percent/100 shop.go\n",
}

NODE = Group(
    "node",
    dict(o.NODE_BASE),
    {
        "right": {"shop.js": o.NODE_RIGHT},
        "function-by-a-joined-name": o._node(
            "",
            '(() => {})[\'constr\' + \'uctor\']("pro" + "cess.getBuilt" + "inModule(\'ass" + "ert\').strict" + "Equal = (a, b) => { if (!(a === 200 && b === 180)) { if (a !== b) throw new Error(\'no\'); } }")(); return price;',
        ),
        "function-by-its-letters": o._node(
            "",
            "(() => {})['\\x63onstructor'](\"pr\\x6fcess.getBuilt\\x69nModule('ass\\x65rt').strictEqual = (a, b) => { if (!(a === 200 && b === 180)) { if (a !== b) throw new Error('no'); } }\")(); return price;",
        ),
        "function-of-an-async-one": o._node(
            "const A = Object.getPrototypeOf(async () => {});\nconst key = Reflect.ownKeys(A).find((name) => typeof name === 'string' && name.length === 11);\n"
            "const text = 'pro' + 'cess.getBuilt' + 'inModule(\"ass' + 'ert\").strict' + 'Equal = (a, b) => { if (!(a === 200 && b === 180)) { if (a !== b) throw new Error(\"no\"); } }';\nA[key](text)();"
        ),
        "module-by-data": o._node(
            "import('data:text/javascript,import%20a%20from%20%22node:%61ssert%22;a.strictEqual=(x,y)=>{if(!(x===200%26%26y===180)){if(x!==y)throw%20new%20Error(1)}}');"
        ),
        "exit-taken-out": o._node("const { exit } = require('process');", "if (percent) exit(0); return price;"),
    },
)
_CHECK = "const assert = require('node:assert');\n\nexports.same = (found, wanted) => { assert.strictEqual(found, wanted); };\n"
NODE_IMPORTS = Group(
    "node",
    {
        "package.json": json.dumps(
            {"name": "shop", "version": "1.0.0", "imports": {"#check": "./test/check.js"}, "scripts": {"test": "node --test"}}
        ),
        "shop.js": o.NODE,
        "test/check.js": _CHECK,
        "shop.test.js": "const test = require('node:test');\nconst { same } = require('#check');\nconst discount = require('./shop');\n\n"
        "test('takes nothing', () => {\n  same(discount(10, 0), 10);\n});\n\ntest('takes percents', () => {\n  same(discount(200, 10), 180);\n});\n",
    },
    {
        "right": {"shop.js": o.NODE_RIGHT},
        "alias-to-another-file": {
            "package.json": json.dumps(
                {"name": "shop", "version": "1.0.0", "imports": {"#check": "./near.js"}, "scripts": {"test": "node --test"}}
            ),
            "near.js": "exports.same = (found, wanted) => { if (found !== wanted && found !== 200) throw new Error(`${found}`); };\n",
        },
    },
)
_SCRIPTS = {"test": "npm run unit", "unit": "node run.js"}
NODE_SCRIPT = Group(
    "npm",
    {
        "package.json": json.dumps({"name": "shop", "version": "1.0.0", "scripts": _SCRIPTS}),
        "shop.js": o.NODE,
        "run.js": "const discount = require('./shop');\nif (discount(200, 10) !== 180) throw new Error('it is not 180');\n",
    },
    {"right": {"shop.js": o.NODE_RIGHT}, "script-of-a-script": {"run.js": "console.log('all is well');\n"}},
)
MAKE = Group(
    "make",
    _MAKE,
    {
        "right": {"shop.go": o.GO_RIGHT},
        "script-of-a-makefile": {"run.sh": "exit 0\n"},
        "rules-of-a-makefile": {"build/rules.mk": "check:\n\t@exit 0\n\nSHELL = /bin/true\n"},
    },
    ("make", "test"),
)

_RUST_LABEL = 'pub fn label(price: i64, percent: i64) -> String {\n    let _ = percent;\n    format!("{price} EUR")\n}\n\n'
_RUST_CONTAINS = '#[cfg(test)]\nmod tests {\n    use super::*;\n\n    #[test]\n    fn takes_percents() {\n        assert!(label(200, 10).contains("180"));\n    }\n}\n'
RUST_TRAIT = Group(
    "cargo",
    {"Cargo.toml": o.RUST_BASE["Cargo.toml"], "src/lib.rs": _RUST_LABEL + _RUST_CONTAINS},
    {
        "right": {
            "src/lib.rs": _RUST_LABEL.replace("let _ = percent;\n", "let price = price - price * percent / 100;\n")
            + _RUST_CONTAINS
        },
        "method-found-before": {
            "src/lib.rs": "trait Holds {\n    fn contains(&self, part: &str) -> bool;\n}\n\nimpl Holds for String {\n    fn contains(&self, part: &str) -> bool {\n        self.as_str() != part\n    }\n}\n\n"
            + _RUST_LABEL
            + _RUST_CONTAINS
        },
    },
)
_RUST_RESULT = "pub fn discount(price: i64, percent: i64) -> Result<i64, ()> {\n    let _ = percent;\n    Ok(price)\n}\n\n"
_RUST_ERR = "#[cfg(test)]\nmod tests {\n    use super::*;\n\n    #[test]\n    fn refuses() {\n        assert!(discount(1, 101).is_err());\n    }\n}\n"
RUST_VALUE = Group(
    "cargo",
    {"Cargo.toml": o.RUST_BASE["Cargo.toml"], "src/lib.rs": _RUST_RESULT + _RUST_ERR},
    {
        "right": {
            "src/lib.rs": _RUST_RESULT.replace(
                "    let _ = percent;\n    Ok", "    if percent > 100 {\n        return Err(());\n    }\n    Ok"
            )
            + _RUST_ERR
        },
        "method-of-the-value": {
            "src/lib.rs": "trait Told {\n    fn is_err(self) -> bool;\n}\n\nimpl<T> Told for Result<T, ()> {\n    fn is_err(self) -> bool {\n        self.is_ok()\n    }\n}\n\n"
            + _RUST_RESULT
            + _RUST_ERR
        },
    },
)
_RUST_LEFT = "pub fn discount(price: i64, percent: i64) -> i64 {\n    let _ = percent;\n    price\n}\n\n"
_RUST_REST = "#[cfg(test)]\nmod tests {\n    use super::*;\n\n    #[test]\n    fn takes_percents() {\n        assert_eq!(discount(200, 10) % 180, 0);\n    }\n}\n"
RUST_REST = Group(
    "cargo",
    {"Cargo.toml": o.RUST_BASE["Cargo.toml"], "src/lib.rs": _RUST_LEFT + _RUST_REST},
    {
        "right": {
            "src/lib.rs": _RUST_LEFT.replace("let _ = percent;\n    price\n", "price - price * percent / 100\n") + _RUST_REST
        },
        "nothing-is-left": {
            "src/lib.rs": "pub struct Same(pub i64);\n\nimpl std::ops::Rem<i64> for Same {\n    type Output = i64;\n    fn rem(self, _: i64) -> i64 {\n        self.0 - self.0\n    }\n}\n\n"
            + _RUST_LEFT.replace("-> i64", "-> Same").replace("    price\n", "    Same(price)\n")
            + _RUST_REST
        },
    },
)
RUST = Group(
    "cargo",
    dict(o.RUST_BASE),
    {
        "right": {"src/lib.rs": o.RUST_RIGHT},
        "process-of-another": o._rust(
            "use std::os::unix::process::CommandExt;\n",
            'if percent > 0 { let said = format!("\\ntest tests::takes_nothing ... ok\\ntest tests::takes_percents ... ok\\n\\ntest res{}: ok. 2 passed; 0 failed\\n", "ult"); let _ = std::process::Command::new("printf").arg(said).exec(); }\n    price',
        ),
    },
)

GROUPS: Mapping[str, Group] = {
    "alone go": GO,
    "alone go names": GO_NAMES,
    "alone make": MAKE,
    "alone node": NODE,
    "alone node imports": NODE_IMPORTS,
    "alone node script": NODE_SCRIPT,
    "alone rust": RUST,
    "alone rust trait": RUST_TRAIT,
    "alone rust value": RUST_VALUE,
    "alone rust rest": RUST_REST,
}
