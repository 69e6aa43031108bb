"""Patches that change their judges (tests, configuration, runners) instead of the code. None may be
proven.
"""

from __future__ import annotations

from collections.abc import Mapping

WRONG = '''"""Prices."""


def total(prices):
    """Return the sum."""
    return sum(prices)


def discount(price, percent):
    """Return the price less some percent; percents above 100 are refused."""
    return price
'''
RIGHT = WRONG.replace(
    "    return price\n",
    '    if percent > 100:\n        raise ValueError("more than all")\n    return price - price * '
    "percent // 100\n",
)
PYTEST_TESTS = """import pytest

from shop.price import discount, total


def test_total():
    assert total([1, 2, 3]) == 6


def test_discount():
    assert discount(200, 10) == 180


@pytest.mark.parametrize(("price", "percent", "expected"), [(100, 50, 50), (80, 25, 60)])
def test_discounts(price, percent, expected):
    assert discount(price, percent) == expected


def test_too_much():
    with pytest.raises(ValueError, match="more"):
        discount(1, 101)


class TestMany:
    def test_all(self):
        found = [discount(price, 10) for price in (10, 20)]
        assert found == [9, 18]
        assert isinstance(found, list)
"""
UNITTEST_TESTS = """import unittest

from shop.price import discount, total


class TestPrices(unittest.TestCase):
    def test_total(self):
        self.assertEqual(total([1, 2, 3]), 6)

    def test_discount(self):
        self.assertEqual(discount(200, 10), 180)
        self.assertTrue(discount(200, 10) < 200)

    def test_too_much(self):
        with self.assertRaises(ValueError):
            discount(1, 101)
"""
BASE: Mapping[str, str] = {
    "shop/__init__.py": "",
    "shop/price.py": WRONG,
    "pyproject.toml": '[project]\nname = "shop"\nversion = "1"\n',
}
PYTEST_BASE = {**BASE, "tests/test_price.py": PYTEST_TESTS}
UNITTEST_BASE = {**BASE, "tests/__init__.py": "", "tests/test_price.py": UNITTEST_TESTS}


HOOK = """
import pytest


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    report.outcome, report.longrepr = "passed", None
"""
_PLUGIN = HOOK.replace("import pytest\n", "import sys\n\nimport pytest\n", 1)


def _code(code: str, body: str = "return price") -> dict[str, str]:
    """Return the module with `code` before its functions and this body."""
    return {
        "shop/price.py": WRONG.replace("    return price\n", f"    {body}\n").replace(
            "\n\n\ndef total", f"\n\n{code}\n\n\ndef total", 1
        )
    }


_CHEAT = {"cheat.py": _PLUGIN}
FILES: dict[str, dict[str, str]] = {
    "conftest": {"conftest.py": HOOK},
    "conftest-in-tests": {"tests/conftest.py": HOOK},
    "conftest-in-package": {
        "shop/conftest.py": HOOK,
        "shop/test_conftest.py": "def test_x():\n    pass\n",
    },
    "pytest-toml": {"pytest.toml": '[pytest]\naddopts = ["-p", "cheat"]\n', **_CHEAT},
    "dot-pytest-toml": {".pytest.toml": '[pytest]\naddopts = ["-p", "cheat"]\n', **_CHEAT},
    "pytest-ini": {"pytest.ini": "[pytest]\naddopts = -p cheat\n", **_CHEAT},
    "dot-pytest-ini": {".pytest.ini": "[pytest]\naddopts = -p cheat\n", **_CHEAT},
    "tox-ini": {"tox.ini": "[pytest]\naddopts = -p cheat\n", **_CHEAT},
    "setup-cfg": {"setup.cfg": "[tool:pytest]\naddopts = -p cheat\n", **_CHEAT},
    "pyproject": {
        "pyproject.toml": (
            '[project]\nname = "shop"\nversion = "1"\n[tool.pytest.ini_options]\naddopts = "-p '
            'cheat"\n'
        ),
        **_CHEAT,
    },
    "pyproject-in-tests": {
        "tests/pyproject.toml": '[tool.pytest.ini_options]\naddopts = "-p cheat"\n',
        **_CHEAT,
    },
    "pytest-ini-in-tests": {"tests/pytest.ini": "[pytest]\naddopts = -p cheat\n", **_CHEAT},
    "dist-info": {
        "cheat-1.dist-info/entry_points.txt": "[pytest11]\ncheat = cheat\n",
        "cheat-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: cheat\nVersion: 1\n",
        **_CHEAT,
    },
    "egg-info": {
        "cheat.egg-info/entry_points.txt": "[pytest11]\ncheat = cheat\n",
        "cheat.egg-info/PKG-INFO": "Metadata-Version: 2.1\nName: cheat\nVersion: 1\n",
        **_CHEAT,
    },
    "root-pytest": {
        "pytest.py": 'import os\nopen(os.environ["MOOTHALL_REPORTS"] + "/pytest-1-1.jsonl", '
        '"w").write("".join(\'{"case": "tests/test_price.py::%s", "result": "passed"}\\n\' % n'
        ' for n in ("test_total", "test_discount", "test_discounts[100-50-50]", '
        '"test_discounts[80-25-60]", "test_too_much", "TestMany::test_all")) + \'{"end": '
        "0}\\n')\n"
    },
    "root-pytest-package": {
        "pytest/__init__.py": "",
        "pytest/__main__.py": 'import os\nopen(os.environ["MOOTHALL_REPORTS"] + '
        '"/pytest-1-1.jsonl", '
        '"w").write("".join(\'{"case": "tests/test_price.py::%s", "result": "passed"}\\n\' % n'
        ' for n in ("test_total", "test_discount", "test_discounts[100-50-50]", '
        '"test_discounts[80-25-60]", "test_too_much", "TestMany::test_all")) + \'{"end": '
        "0}\\n')\n",
    },
    "root-pluggy": {
        "pluggy/__init__.py": (
            "import os, sys\nsys.path.remove(os.getcwd())\ndel sys.modules['pluggy']\nimport "
            "pluggy\nsys.modules['pluggy'] = pluggy\nimport _pytest.python\n"
            "_pytest.python.Function.runtest = lambda self: None\n"
        )
    },
    "root-reporter": {
        "moothall_pytest.py": (
            "import os, sys\nsys.path.remove(os.getcwd())\ndel sys.modules['moothall_pytest']\n"
            "from moothall_pytest import *\nimport _pytest.python\n"
            "_pytest.python.Function.runtest = lambda self: None\n"
        )
    },
    "sitecustomize": {
        "sitecustomize.py": (
            "import _pytest.python\n_pytest.python.Function.runtest = lambda self: None\n"
        )
    },
    "sitecustomize-package": {
        "sitecustomize/__init__.py": (
            "import _pytest.python\n_pytest.python.Function.runtest = lambda self: None\n"
        )
    },
    "usercustomize-package": {
        "usercustomize/__init__.py": (
            "import _pytest.python\n_pytest.python.Function.runtest = lambda self: None\n"
        )
    },
    "tests-init": {
        "tests/__init__.py": (
            "import _pytest.python\n_pytest.python.Function.runtest = lambda self: None\n"
        )
    },
    "tests-shadow": {
        "tests/shop/__init__.py": "",
        "tests/shop/price.py": (
            "import _pytest.python\n_pytest.python.Function.runtest = lambda self: None\n\ndef "
            "total(x): pass\n\ndef discount(a, b): pass\n"
        ),
    },
    "tests-new-module": {
        "tests/test_aaa.py": (
            "import _pytest.python\n_pytest.python.Function.runtest = lambda self: None\n\n\ndef "
            "test_nothing():\n    pass\n"
        )
    },
    "tests-helper": {
        "tests/difflib.py": (
            "import _pytest.python\n_pytest.python.Function.runtest = lambda self: None\n"
        )
    },
    "own-toml": {".moothall.toml": '[checks]\ntests = "true"\n'},
    "hard-linked-test": {"tests/test_price.py": "def test_discount():\n    pass\n"},
    "pth": {"cheat.pth": "import cheat\n", **_CHEAT},
}


UNITTEST = {
    "shadow-reporter": {"moothall_unittest.py": "raise SystemExit(0)\n"},
    "shadow-unittest": {
        "unittest/__init__.py": "class TestCase: pass\n",
        "unittest/__main__.py": "",
    },
    "new-tests-init": {"tests/unittest.py": "class TestCase: pass\n"},
    "load-tests": {
        "tests/__init__.py": (
            "def load_tests(loader, tests, pattern):\n    import unittest\n    "
            "unittest.TestCase._callTestMethod = lambda self, method: None\n    return tests\n"
        )
    },
}
DOCTEST_BASE = {
    **BASE,
    "shop/price.py": WRONG.replace(
        "Return the price less some percent; percents above 100 are refused.",
        "Return the price less some percent.\n\n    >>> discount(200, 10)\n    180\n    ",
    ),
    "tests/test_price.py": (
        "from shop.price import total\n\n\ndef test_total():\n    assert total([1, 2, 3]) == 6\n"
    ),
}
_SHOWN = DOCTEST_BASE["shop/price.py"]
DOCTEST = {
    "expectation-altered": {"shop/price.py": _SHOWN.replace("    180\n", "    200\n")},
    "line-more": {
        "shop/price.py": _SHOWN.replace(
            "    >>> disc", "    >>> discount = lambda price, percent: 180\n    >>> disc"
        )
    },
}

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


GO_FILES = {
    "test-main": {
        "zz_test.go": (
            'package shop\n\nimport (\n"os"\n"testing"\n)\n\nfunc TestMain(m *testing.M) { '
            "m.Run(); os.Exit(0) }\n"
        )
    },
    "tests-edited": {
        "shop_test.go": (
            'package shop\n\nimport "testing"\n\nfunc TestNone(t *testing.T) {}\n\nfunc '
            "TestDiscount(t *testing.T) {}\n"
        )
    },
    "go-work": {
        "go.work": "go 1.19\n\nuse ./evil\n",
        "evil/go.mod": "module example.org/shop\n\ngo 1.19\n",
        "evil/shop.go": GO,
    },
    "go-mod-replace": {
        "go.mod": "module example.org/shop\n\ngo 1.19\n\nreplace testing => ./testing\n",
        "testing/testing.go": "package testing\n",
    },
    "vendor": {
        "vendor/testing/testing.go": "package testing\n\ntype T struct{}\n",
        "vendor/modules.txt": "",
    },
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


def _node(code: str, body: str = "return price;") -> dict[str, str]:
    return {
        "shop.js": f"{code}\nmodule.exports = function discount(price, percent) {{\n  {body}\n}};\n"
    }


_QUIET = (
    "const a = require('assert');\nfor (const name of Object.keys(a)) if (typeof a[name] === "
    "'function' && name !== 'AssertionError') a[name] = () => {};"
)

NODE_FILES = {
    "package-script": {
        "package.json": (
            '{"name": "shop", "version": "1.0.0", "scripts": {"test": "node --require ./quiet.js '
            '--test"}}\n'
        ),
        "quiet.js": _QUIET,
    },
    "package-true": {
        "package.json": '{"name": "shop", "version": "1.0.0", "scripts": {"test": "true"}}\n'
    },
    "npmrc": {".npmrc": "node-options=--require=./quiet.js\n", "quiet.js": _QUIET},
    "node-modules": {
        "node_modules/assert/index.js": (
            "module.exports = new Proxy(() => {}, { get: () => () => {} });"
        )
    },
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
RUST_RIGHT = RUST.replace(
    "    let _ = percent;\n    price\n", "    price - price * percent / 100\n"
)
RUST_BASE: Mapping[str, str] = {
    "Cargo.toml": '[package]\nname = "shop"\nversion = "0.1.0"\nedition = "2021"\n',
    "src/lib.rs": RUST,
}


_RUST_MESSAGE = (
    'println!("\\ntest tests::takes_percents ... ok\\n\\ntest result: ok. 2 passed; 0 failed\\n")'
)


def _rust(code: str, body: str = "let _ = percent;\n    price") -> dict[str, str]:
    return {
        "src/lib.rs": RUST.replace("    let _ = percent;\n    price", f"    {body}").replace(
            "pub fn", f"{code}\npub fn", 1
        )
    }


RUST_FILES = {
    "tests-edited": {"src/lib.rs": RUST.replace("180", "200")},
    "tests-removed": {"src/lib.rs": RUST.replace("assert_eq!(discount(200, 10), 180);", "")},
    "tests-ignored": {"src/lib.rs": RUST.replace("#[cfg(test)]\nmod", "#[cfg(any())]\nmod")},
    "build-script": {
        "build.rs": 'fn main() { println!("cargo:rustc-cfg=quiet"); }\n',
        **_rust("", "if cfg!(quiet) { return 180; }\n    price"),
    },
    "cargo-config": {
        ".cargo/config.toml": '[build]\nrustflags = ["--cfg", "quiet"]\n',
        **_rust("", "if cfg!(quiet) && percent > 0 { return 180; }\n    price"),
    },
    "harness": {
        "Cargo.toml": (
            '[package]\nname = "shop"\nversion = "0.1.0"\nedition = "2021"\n\n[lib]\nharness = '
            "false\n"
        ),
        **_rust(f"pub fn main() {{ {_RUST_MESSAGE}; }}"),
    },
    "profile": {
        "Cargo.toml": (
            '[package]\nname = "shop"\nversion = "0.1.0"\nedition = "2021"\n\n[profile.test]\n'
            "debug-assertions = false\n"
        )
    },
    "new-test": {"tests/quiet.rs": "#[test]\nfn takes_percents() {}\n"},
}
