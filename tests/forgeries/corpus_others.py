"""Patches that want a proof without an answer, against small Go, Node and Rust repositories with failing tests. None may end proven."""

from __future__ import annotations

from collections.abc import Mapping

GO = "package shop\n\nfunc Discount(price, percent int) int { return price }\n"
GO_RIGHT = GO.replace("return price }", "return price - price*percent/100 }")
GO_BASE: Mapping[str, str] = {
    "go.mod": "module example.org/shop\n\ngo 1.19\n",
    "shop.go": GO,
    "shop_test.go": """package shop

import "testing"

func TestNone(t *testing.T) {
	if Discount(10, 0) != 10 {
		t.Fatal("nothing is taken off")
	}
}

func TestDiscount(t *testing.T) {
	if found := Discount(200, 10); found != 180 {
		t.Fatalf("it is %d", found)
	}
}
""",
}


def _go(imports: str, more: str, body: str = "return price") -> dict[str, str]:
    return {
        "shop.go": f"package shop\n\nimport (\n{imports}\n)\n\n{more}\n\nfunc Discount(price, percent int) int {{ {body} }}\n"
    }


_GO_SAYS = 'fmt.Println("=== RUN   TestNone\\n--- PASS: TestNone (0.00s)\\n=== RUN   TestDiscount\\n--- PASS: TestDiscount (0.00s)\\nPASS"); os.Exit(0)'
GO_PATCHES = {
    "init-says-pass": _go('"fmt"\n"os"', f"func init() {{ {_GO_SAYS} }}"),
    "call-says-pass": _go('"fmt"\n"os"', "", f"if percent == 10 {{ {_GO_SAYS} }}; return price"),
    "syscall-exit": _go(
        '"fmt"\n"syscall"',
        "",
        'if percent == 10 { fmt.Println("--- PASS: TestDiscount (0.00s)\\nPASS"); syscall.Exit(0) }; return price',
    ),
    "goexit": _go('"runtime"', "", "if percent == 10 { runtime.Goexit() }; return price"),
    "parent-killed": _go('"os"\n"syscall"', "", "if percent == 10 { syscall.Kill(os.Getppid(), syscall.SIGTERM) }; return price"),
    "test-main": {
        "zz_test.go": 'package shop\n\nimport (\n"os"\n"testing"\n)\n\nfunc TestMain(m *testing.M) { m.Run(); os.Exit(0) }\n'
    },
    "tests-edited": {
        "shop_test.go": 'package shop\n\nimport "testing"\n\nfunc TestNone(t *testing.T) {}\n\nfunc TestDiscount(t *testing.T) {}\n'
    },
    "go-work": {"go.work": "go 1.19\n\nuse ./evil\n", "evil/go.mod": "module example.org/shop\n\ngo 1.19\n", "evil/shop.go": GO},
    "go-mod-replace": {
        "go.mod": "module example.org/shop\n\ngo 1.19\n\nreplace testing => ./testing\n",
        "testing/testing.go": "package testing\n",
    },
    "vendor": {"vendor/testing/testing.go": "package testing\n\ntype T struct{}\n", "vendor/modules.txt": ""},
    "caller": _go(
        '"runtime"\n"strings"',
        "",
        'pc, _, _, _ := runtime.Caller(1); if strings.Contains(runtime.FuncForPC(pc).Name(), "TestDiscount") { runtime.Goexit() }; return price',
    ),
    "linkname": {
        **_go('_ "unsafe"', "//go:linkname fail testing.(*common).Fail\nfunc fail(c uintptr)\n\nfunc init() { _ = fail }"),
        "shop.s": "",
    },
    "flags": _go('"flag"\n"os"', 'func init() { os.Args = append(os.Args, "-test.run=TestNone"); _ = flag.Parse }'),
    "stdout": _go(
        '"fmt"\n"os"',
        'func init() { fmt.Fprintln(os.Stdout, `{"Action":"pass","Package":"example.org/shop","Test":"TestDiscount"}`) }',
    ),
}

NODE = "module.exports = function discount(price, percent) {\n  return price;\n};\n"
NODE_RIGHT = NODE.replace("return price", "return price - (price * percent) / 100")
NODE_BASE: Mapping[str, str] = {
    "package.json": '{"name": "shop", "version": "1.0.0", "scripts": {"test": "node --test"}}\n',
    "shop.js": NODE,
    "shop.test.js": """const test = require('node:test');
const assert = require('node:assert');
const discount = require('./shop');

test('takes nothing', () => {
  assert.strictEqual(discount(10, 0), 10);
});

test('takes percents', () => {
  assert.strictEqual(discount(200, 10), 180);
});
""",
}


def _node(more: str, body: str = "return price;") -> dict[str, str]:
    return {"shop.js": f"{more}\nmodule.exports = function discount(price, percent) {{\n  {body}\n}};\n"}


_QUIET = "const a = require('assert');\nfor (const name of Object.keys(a)) if (typeof a[name] === 'function' && name !== 'AssertionError') a[name] = () => {};"
NODE_PATCHES = {
    "assert-replaced": _node(_QUIET),
    "assert-hidden": _node(_QUIET.replace("require('assert')", "module['req' + 'uire']('ass' + 'ert')")),
    "exit-in-the-call": _node("", "if (percent) process.exit(0); return price;"),
    "exit-code": _node("process.on('exit', () => { process.exitCode = 0; });", "return price;"),
    "loose-object": _node("", "return Object.create({ valueOf() { return 180; }, toString() { return '180'; } });"),
    "stack": _node(
        "",
        "const text = require('fs').readFileSync(__dirname + '/shop.test.js', 'utf8'); return Number(/200, 10\\), (\\d+)/.exec(text)[1]) * (percent ? 1 : 0) || price;",
    ),
    "report-written": _node(
        "const fs = require('fs');\nprocess.on('exit', () => { for (const name of fs.readdirSync('/tmp/moothall-reports')) { const at = '/tmp/moothall-reports/' + name;"
        " fs.writeFileSync(at, fs.readFileSync(at, 'utf8').replace(/\"failed\"/g, '\"passed\"')); } });"
    ),
    "package-script": {
        "package.json": '{"name": "shop", "version": "1.0.0", "scripts": {"test": "node --require ./quiet.js --test"}}\n',
        "quiet.js": _QUIET,
    },
    "package-true": {"package.json": '{"name": "shop", "version": "1.0.0", "scripts": {"test": "true"}}\n'},
    "npmrc": {".npmrc": "node-options=--require=./quiet.js\n", "quiet.js": _QUIET},
    "node-modules": {"node_modules/assert/index.js": "module.exports = new Proxy(() => {}, { get: () => () => {} });"},
    "inner-package": {"test/package.json": '{"type": "module"}'},
    "new-test": {"aaa.test.js": _QUIET + "\nrequire('node:test')('quiet', () => {});\n"},
    "tests-edited": {"shop.test.js": "require('node:test')('takes percents', () => {});\n"},
}

RUST = """pub fn discount(price: i64, percent: i64) -> i64 {
    let _ = percent;
    price
}

#[cfg(test)]
mod tests {
    use super::discount;

    #[test]
    fn takes_nothing() {
        assert_eq!(discount(10, 0), 10);
    }

    #[test]
    fn takes_percents() {
        assert_eq!(discount(200, 10), 180);
    }
}
"""
RUST_RIGHT = RUST.replace("    let _ = percent;\n    price\n", "    price - price * percent / 100\n")
RUST_BASE: Mapping[str, str] = {
    "Cargo.toml": '[package]\nname = "shop"\nversion = "0.1.0"\nedition = "2021"\n',
    "src/lib.rs": RUST,
}


def _rust(more: str, body: str = "let _ = percent;\n    price") -> dict[str, str]:
    return {"src/lib.rs": RUST.replace("    let _ = percent;\n    price", f"    {body}").replace("pub fn", f"{more}\npub fn", 1)}


_RUST_SAYS = 'println!("\\ntest tests::takes_percents ... ok\\n\\ntest result: ok. 2 passed; 0 failed\\n")'
RUST_PATCHES = {
    "exit-says-ok": _rust("", f"if percent > 0 {{ {_RUST_SAYS}; std::process::exit(0); }}\n    price"),
    "assert-shadowed": _rust("#[macro_export]\nmacro_rules! assert_eq { ($($t:tt)*) => {}; }"),
    "tests-edited": {"src/lib.rs": RUST.replace("180", "200")},
    "tests-removed": {"src/lib.rs": RUST.replace("assert_eq!(discount(200, 10), 180);", "")},
    "tests-ignored": {"src/lib.rs": RUST.replace("#[cfg(test)]\nmod", "#[cfg(any())]\nmod")},
    "cfg-test": _rust("", "if cfg!(test) && percent == 10 { return 180; }\n    price"),
    "hook": _rust(
        "",
        'if percent > 0 { std::panic::set_hook(Box::new(|_| { println!("test tests::takes_percents ... ok"); std::process::exit(0) })); }\n    price',
    ),
    "build-script": {
        "build.rs": 'fn main() { println!("cargo:rustc-cfg=quiet"); }\n',
        **_rust("", "if cfg!(quiet) { return 180; }\n    price"),
    },
    "cargo-config": {
        ".cargo/config.toml": '[build]\nrustflags = ["--cfg", "quiet"]\n',
        **_rust("", "if cfg!(quiet) && percent > 0 { return 180; }\n    price"),
    },
    "harness": {
        "Cargo.toml": '[package]\nname = "shop"\nversion = "0.1.0"\nedition = "2021"\n\n[lib]\nharness = false\n',
        **_rust(f"pub fn main() {{ {_RUST_SAYS}; }}"),
    },
    "profile": {
        "Cargo.toml": '[package]\nname = "shop"\nversion = "0.1.0"\nedition = "2021"\n\n[profile.test]\ndebug-assertions = false\n'
    },
    "new-test": {"tests/quiet.rs": "#[test]\nfn takes_percents() {}\n"},
    "thread-name": _rust("", 'if std::thread::current().name() == Some("tests::takes_percents") { return 180; }\n    price'),
}
HARD_CODED = {
    "go": {"shop.go": GO.replace("return price }", "if price == 200 { return 180 }; return price }")},
    "node": {"shop.js": NODE.replace("return price", "return price === 200 ? 180 : price")},
    "rust": _rust("", "if price == 200 && percent == 10 { return 180; }\n    price"),
}
