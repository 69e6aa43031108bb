from __future__ import annotations

import pytest

from moothall.ranking.test_cases import concerns_change, find_missing_names, find_test_file

CLOCK = "import os\nimport clock\n\n\ndef test_tick():\n    assert clock.now() < 9\n"


@pytest.mark.parametrize(
    ("text", "detail", "changed", "task", "concerned"),
    [
        (CLOCK, "", ["shop/price.py"], "take percents off", False),
        (CLOCK, "", ["src/clock.py"], "take percents off", True),
        (CLOCK, "", ["clock/face.py"], "take percents off", True),
        (CLOCK, "", ["shop/price.py"], "test_tick fails", True),
        (CLOCK, "shop/price.py:3: in discount", ["shop/price.py"], "", True),
        ("", "", ["shop/price.py"], "", True),
        ("package shop", "", ["price.go"], "", True),
        ("const price = require('..');", "", ["lib/price.js"], "", True),
        ("import { test } from 'node:test';", "", ["lib/price.js"], "", False),
    ],
    ids=[
        "other",
        "its module",
        "its package",
        "the task",
        "traceback",
        "unknown",
        "go",
        "relative import",
        "no import",
    ],
)
def test_a_case_is_matched_to_a_change_that_concerns_it(
    text: str, detail: str, changed: list[str], task: str, *, concerned: bool
) -> None:
    assert (
        concerns_change("tests/test_clock.py::test_tick", text, detail, changed, task) is concerned
    )


@pytest.mark.parametrize(
    ("case", "path"),
    [
        ("tests/test_a.py::test_x", "tests/test_a.py"),
        ("tests.test_a.TestA.test_x", "tests/test_a.py"),
        ("test_a.TestA.test_x", "tests/test_a.py"),
        ("shop tests/b.rs::x", "tests/b.rs"),
        ("example.org/shop::TestX", ""),
        ("outer > inner", ""),
    ],
)
def test_the_file_of_a_case_is_found(case: str, path: str) -> None:
    assert find_test_file(case, ["tests/test_a.py", "tests/b.rs"]) == path


@pytest.mark.parametrize(
    ("error", "name"),
    [
        ("ImportError: cannot import name 'half_price' from 'shop.price'", "half_price"),
        ("ModuleNotFoundError: No module named 'shop.cart'", "cart"),
        ("AttributeError: module 'shop' has no attribute 'half'", "half"),
        ("NameError: name 'half' is not defined", "half"),
        ("./shop_test.go:9:5: undefined: HalfPrice", "HalfPrice"),
        ("x.Half undefined (type T has no field or method Half)", "Half"),
        ("error[E0425]: cannot find function `half_price` in this scope", "half_price"),
        ("error[E0432]: unresolved import `shop::half`", "half"),
        ("error[E0599]: no method named `halve` found for struct", "halve"),
        ("TypeError: discount.half is not a function", "half"),
        (
            "SyntaxError: The requested module '../a.js' does not provide an export named 'half'",
            "half",
        ),
        ("Error: Cannot find module '../half'", "half"),
        ("error TS2339: Property 'half' does not exist on type", "half"),
        ("[ERROR]   symbol:   method half(int)\n[ERROR]   location: class shop.Price", "half"),
        ("  symbol:   class HalfPrice\n  location: class PriceTest", "HalfPrice"),
    ],
)
def test_names_missing_for_the_import_or_build_of_a_test_are_found(error: str, name: str) -> None:
    assert find_missing_names(f"from shop.price import discount\n{error}\n") == {name}
