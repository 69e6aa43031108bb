from __future__ import annotations

import pytest

from moothall.ranking.relevance import concerns_change, find_test_file

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
    ids=["other", "its module", "its package", "the task", "traceback", "unknown", "go", "relative import", "no import"],
)
def test_a_case_concerns_a_change(text: str, detail: str, changed: list[str], task: str, *, concerned: bool) -> None:
    assert concerns_change("tests/test_clock.py::test_tick", text, detail, changed, task) is concerned


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
def test_the_file_of_a_case(case: str, path: str) -> None:
    assert find_test_file(case, ["tests/test_a.py", "tests/b.rs"]) == path
