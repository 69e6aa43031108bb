from __future__ import annotations

import json

import pytest

from moothall.repositories.git_objects import Change
from moothall.repositories.pristine_files import (
    base_controlled_files,
    is_patchable,
    restore_base_parts,
)
from moothall.repositories.profile import PROTECTED

BASE = (
    "shop/__init__.py",
    "shop/price.py",
    "tests/test_price.py",
    "package.json",
    "setup.js",
    "src/build.rs",
    "check.sh",
)
PACKAGE = json.dumps(
    {"scripts": {"test": "mocha --require ./setup.js", "start": "node shop/price.py"}}
)


def part(path: str) -> bool:
    controlled = base_controlled_files(BASE, PROTECTED, [("sh", "./check.sh")], PACKAGE, {})
    return is_patchable(path, controlled, BASE, PROTECTED)


@pytest.mark.parametrize(
    "path",
    [
        "pytest.toml",
        ".pytest.toml",
        "tests/pyproject.toml",
        "sub/setup.cfg",
        "x-1.dist-info/entry_points.txt",
        "pytest.py",
        "sitecustomize/__init__.py",
        "tests/__init__.py",
        "tests/shop/price.py",
        "tests/test_new.py",
        "shop/conftest.py",
        "_pytest/python.py",
        "moothall_pytest.py",
        "go.work",
        "zz_test.go",
        ".cargo/config.toml",
        "build.rs",
        "vendor/x/x.go",
        "inner/package.json",
        ".mocharc.yml",
        "node_modules/chai/index.js",
        "a.test.js",
        "shop/__pycache__/price.pyc",
        "build/rules.mk",
        "justfile",
        "hatch.toml",
        ".borp.yaml",
        "bunfig.toml",
        "setup.js",
        "check.sh",
        "tests/test_price.py",
        "tests",
        "tests/test_price.py/x",
        "Makefile",
        ".moothall-instead/tests/test_price.py",
    ],
)
def test_files_that_control_tests_are_not_patchable(path: str) -> None:
    assert not part(path)


@pytest.mark.parametrize(
    "path",
    [
        "shop/price.py",
        "tasks.py",
        "shop/tasks.py",
        "shop/new.py",
        "pytest_helpers.py",
        "src/build.rs",
        "package.json",
        "lib/a.go",
    ],
)
def test_code_is_patchable(path: str) -> None:
    assert part(path)


@pytest.mark.parametrize(
    ("package", "controlled"),
    [
        ({"scripts": {"test": "node check.js"}}, {"check.js"}),
        ({"scripts": {"test": "mocha --require=./check.js"}}, {"check.js"}),
        ({"scripts": {"test": "eslint index.js lib/a.js && tape 'check.js'"}}, {"check.js"}),
        (
            {
                "scripts": {
                    "pretest": "standard index.js",
                    "test": "nyc --include index.js tape check.js",
                }
            },
            {"check.js"},
        ),
        ({"scripts": {"start": "node check.js"}}, set()),
        (
            {
                "scripts": {
                    "test": "npm run unit && x",
                    "unit": "node check.js",
                    "build": "node index.js",
                }
            },
            {"check.js"},
        ),
        (
            {"scripts": {"test": "run-s unit", "preunit": "node check.js", "unit": "yarn test"}},
            {"check.js"},
        ),
        ({"nyc": {"include": ["index.js"], "require": ["./check.js"]}}, {"check.js"}),
        (
            {
                "jest": {
                    "setupFiles": ["<rootDir>/check.js"],
                    "collectCoverageFrom": ["lib/a.js"],
                    "moduleNameMapper": {"^x$": "index.js"},
                }
            },
            {"check.js"},
        ),
    ],
)
def test_scripts_that_run_a_packages_tests_are_restored_but_not_the_code_under_test(
    package: dict[str, object], controlled: set[str]
) -> None:
    base = ("index.js", "lib/a.js", "check.js", "package.json")
    assert (
        base_controlled_files(base, PROTECTED, [("npm", "test")], json.dumps(package), {})
        == controlled
    )


@pytest.mark.parametrize(
    "command",
    [
        ("python", "-m", "doctest", "shop/price.py"),
        ("pytest", "--doctest-modules", "shop/price.py"),
        ("ruff", "check", "shop/price.py"),
    ],
)
def test_code_passed_to_a_linter_or_doctest_stays_patchable(command: tuple[str, ...]) -> None:
    assert "shop/price.py" not in base_controlled_files(BASE, PROTECTED, [command], "", {})


def test_a_base_may_have_a_package_named_like_a_runner() -> None:
    assert is_patchable("pytest/new.py", frozenset(), ["pytest/__init__.py"], PROTECTED)


def test_the_test_settings_of_a_package_json_are_restored_from_the_base() -> None:
    base = {"name": "a", "scripts": {"test": "mocha"}, "type": "module"}
    changed = {
        "name": "chai",
        "exports": "./b.js",
        "scripts": {"test": "true"},
        "mocha": {"require": "./evil.js"},
    }
    judged = restore_base_parts(
        Change("package.json", "100644", json.dumps(changed).encode()), json.dumps(base).encode()
    )
    assert json.loads(judged.content or b"") == {
        "name": "a",
        "exports": "./b.js",
        "scripts": {"test": "mocha"},
        "type": "module",
    }
    broken = restore_base_parts(Change("package.json", "100644", b"{"), b'{"name": "a"}')
    assert broken.content == b'{"name": "a"}'


TESTS = (
    "#[cfg(test)]\nmod tests {\n    #[test]\n    fn sums() { assert_eq!(super::sum(\"}\", '{'), "
    "5); } // }\n}\n"
)


def test_the_tests_in_a_rust_file_are_restored_from_the_base() -> None:
    base = f"pub fn sum() -> u8 {{ 1 }}\n{TESTS}"
    forged = f"pub fn sum() -> u8 {{ 2 }}\n{TESTS.replace('5', '4')}// end\n"
    judged = restore_base_parts(Change("src/lib.rs", "100644", forged.encode()), base.encode())
    assert judged.content == f"pub fn sum() -> u8 {{ 2 }}\n{TESTS}// end\n".encode()
    restored = restore_base_parts(
        Change("src/lib.rs", "100644", b"pub fn sum() -> u8 { 2 }\n"), base.encode()
    )
    assert restored.content == f"pub fn sum() -> u8 {{ 2 }}\n\n{TESTS}".encode()
    same_tests = restore_base_parts(
        Change("src/lib.rs", "100644", base.replace("1", "3").encode()), base.encode()
    )
    assert same_tests.content == base.replace("1", "3").encode()


def test_a_root_file_tasks_py_is_code_unless_a_check_runs_it() -> None:
    assert base_controlled_files(("tasks.py", "a.py"), (), [("pytest",)], "", {}) == frozenset()
    assert base_controlled_files(
        ("tasks.py", "a.py"), (), [("python", "-m", "invoke", "test")], "", {}
    ) == {"tasks.py"}


def test_a_pathological_makefile_is_read_quickly() -> None:
    recipes = (
        "test:\n\t" + "test" * 100_000 + "!\n" + "bash -x " * 50_000 + "\n" + "a=b " * 50_000 + "\n"
    )
    assert (
        base_controlled_files(("run.sh",), (), [("make", "test")], "", {"Makefile": recipes})
        == frozenset()
    )


def test_scripts_run_by_a_makefile_are_restored_from_the_base() -> None:
    base = (
        "run.sh",
        "ci/all-tests",
        "tools/check.py",
        "lib/price.py",
        "install.sh",
        "own.sh",
        "Makefile",
    )
    recipes = (
        "test:\n\t@./run.sh -v\n\tci/all-tests && python3 tools/check.py\n\tX=1 bash "
        "$(TOP)/own.sh\n\tshellcheck install.sh lib/price.py\n"
    )
    controlled = base_controlled_files(base, (), [("make", "test")], "", {"Makefile": recipes})
    assert controlled == {"run.sh", "ci/all-tests", "tools/check.py", "own.sh", "Makefile"}


def test_an_import_alias_of_the_base_keeps_its_target() -> None:
    change = Change(
        "package.json",
        "100644",
        json.dumps({"imports": {"#check": "./near.js", "#new": "./new.js"}}).encode(),
    )
    restored = restore_base_parts(
        change, json.dumps({"imports": {"#check": "./test/check.js"}}).encode()
    )
    assert restored.content is not None
    assert json.loads(restored.content)["imports"] == {
        "#check": "./test/check.js",
        "#new": "./new.js",
    }
