"""Rewritten tests are run here: the same meaning stays green, another end and other expectations turn red."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moothall.ranking.rewriting.rewrite import Kind, places, rewrite

TESTS = '''
import contextlib
import unittest

import pytest


def twice(x):
    return 2 * x


def test_plain():
    """Says something."""
    assert twice(2) == 4


def test_one_line(): assert twice(1) == 2


def test_returns():
    if twice(1) == 2:
        return
    assert False


def test_ends_in_a_block():
    for number in (1, 2):
        assert twice(number) == number + number


@pytest.mark.parametrize("number, expected", [(1, 2), (2, 4)])
def test_given(number, expected):
    assert twice(number) == expected


@pytest.mark.parametrize("value", ["a", "b"])
def test_both_sides(value):
    assert value == value


def test_raises():
    with pytest.raises(ZeroDivisionError, match="zero"):
        1 / 0


def test_many():
    found = {"a": [1, (2.5, None)], "b": "text"}
    assert found == {"a": [1, (2.5, None)], "b": "text"}, "a message"
    assert isinstance(found, dict) and \\
        len(found) == 2


class TestCase(unittest.TestCase):
    def test_equal(self):
        self.assertEqual(twice(3), 6)
        self.assertTrue(True)

    def test_in(self):
        self.assertIn(2, [twice(1)])

    def test_raised(self):
        with self.assertRaises(KeyError):
            {}["ä"]


class TestInherits(TestCase):
    pass
'''
FUNCTIONS = [*re.findall(r"(?m)^def (test_\w+)", TESTS)]
METHODS = ["test_equal", "test_in", "test_raised"]
TARGETS = frozenset({(name,) for name in FUNCTIONS} | {("TestCase", name) for name in METHODS})


def run(tmp_path: Path, text: str) -> dict[str, str]:
    (tmp_path / "test_it.py").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "test_it.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    found = re.findall(r"(?m)^(PASSED|FAILED) test_it\.py::(\S+)", done.stdout)
    assert found, done.stdout
    return {case: result for result, case in found}


@pytest.mark.e2e
@pytest.mark.parametrize("seed", ["one", "two", "three"])
def test_pythons_tests_follow_what_is_made_of_them(tmp_path: Path, seed: str) -> None:
    before = run(tmp_path, TESTS)
    assert set(before.values()) == {"PASSED"}
    neutral, done = rewrite("tests/test_it.py", TESTS, TARGETS, "neutral", seed)
    assert (done, neutral != TESTS) == (TARGETS, True)
    assert run(tmp_path, neutral) == before
    end, done = rewrite("tests/test_it.py", TESTS, TARGETS, "end", seed)
    assert done == TARGETS
    assert run(tmp_path, end) == dict.fromkeys(before, "FAILED")
    assert re.sub(r"\d", "", end) == re.sub(r"\d", "", neutral), "they differ by a number alone"
    expect, done = rewrite("tests/test_it.py", TESTS, TARGETS, "expect", seed)
    assert TARGETS - done == {("test_returns",), ("test_ends_in_a_block",)}
    after = run(tmp_path, expect)
    red = {case for case in before if (*case.split("[", maxsplit=1)[0].split("::"),) in done or "Inherits" in case}
    assert after == {case: "FAILED" if case in red else "PASSED" for case in before}


def test_what_cannot_be_put_in_other_words_is_left() -> None:
    for text in (
        "def test_x(:\n",
        "def test_x():\n    yield 1\n",
        "def other():\n    pass\n",
        "def test_x():\n    raise KeyError\n",
    ):
        assert rewrite("test_a.py", text, frozenset({("test_x",)}), "end", "seed") == (text, frozenset())


@pytest.mark.parametrize(
    "more",
    [
        "if sys.version_info > (3, 8):\n    from .others import test_x",
        "if sys.platform:\n    def test_x():\n        pass",
        "test_x = marked(test_x)",
        "try:\n    import others as test_x\nexcept ImportError:\n    pass",
    ],
)
def test_a_name_that_is_given_to_another_test_is_left(more: str) -> None:
    text = "def test_x():\n    assert f() == 1\n\n\n"
    assert rewrite("tests/test_a.py", text + more, {("test_x",)}, "end", "seed") == (text + more, frozenset())
    assert rewrite("tests/test_a.py", f"def test_x():\n    pass\n\n\n{text}", {("test_x",)}, "end", "seed")[1] == {("test_x",)}


TWO = """import unittest


class Base:
    def test_a(self):
        assert one() == 1


class TestA(Base):
    pass


class TestA(unittest.TestCase):
    def test_b(self):
        assert two() == 2


class Above(Base):
    def test_a(self):
        assert three() == 3


class Beside:
    def test_a(self):
        assert four() == 4


class TestC(Above, Beside):
    pass


class TestD(Base, Beside):
    pass


class TestE(unittest.TestCase):
    async def test_a(self):
        assert five() == 5

    def test_b(self):
        yield
        assert six() == 6

    @waited
    async def test_c(self):
        assert seven() == 7
"""


@pytest.mark.parametrize(
    ("names", "changed"),
    [
        (("TestA", "test_a"), ""),  # the second class of that name has no such test
        (("TestA", "test_b"), "two"),
        (("TestC", "test_a"), "three"),
        (("TestD", "test_a"), "one"),
        (("TestE", "test_a"), ""),  # made, and never run
        (("TestE", "test_b"), ""),
        (("TestE", "test_c"), "seven"),
    ],
)
def test_of_several_that_have_a_name_the_one_that_is_run_is_changed(names: tuple[str, ...], changed: str) -> None:
    made, done = rewrite("test_a.py", TWO, frozenset({names}), "expect", "seed")
    other = [line for line, before in zip(made.split("\n"), TWO.split("\n"), strict=False) if line != before]
    assert (len(other), bool(done)) == ((1, True) if changed else (0, False))
    assert all(f"{changed}()" in line for line in other)


def test_a_test_of_go_that_a_text_holds_as_well_is_left() -> None:
    text = OTHERS["a_test.go"][0]
    assert rewrite("a_test.go", f"{text}\nvar a = `\n{text}`\n", frozenset({("TestSum",)}), "end", "seed")[1] == frozenset()


def test_an_object_that_equals_all_is_not_asked_for() -> None:
    text = "from unittest.mock import ANY\n\n\ndef test_x():\n    assert f() == [1, ANY]\n"
    assert rewrite("test_a.py", text, frozenset({("test_x",)}), "expect", "seed") == (text, frozenset())


FILES = ["tests/test_a.py", "pkg/sub/a_test.go", "a_test.go", "src/lib.rs", "src/inner.rs", "test/a.test.js"]


@pytest.mark.parametrize(
    ("case", "found"),
    [
        ("tests/test_a.py::TestA::test_x[a::b]", [("tests/test_a.py", ("TestA", "test_x"), "")]),
        ("test_a.TestA.test_x", [("tests/test_a.py", ("TestA", "test_x"), "")]),
        ("example.org/m/pkg/sub::TestX/inner", [("pkg/sub/a_test.go", ("TestX",), "example.org/m/pkg/sub::TestX")]),
        ("example.org/m::TestX", [("a_test.go", ("TestX",), "example.org/m::TestX")]),
        ("m src/lib.rs::tests::sums", [("src/lib.rs", ("sums",), "")]),
        ("m src/lib.rs::inner::tests::sums", [("src/inner.rs", ("sums",), "")]),
        ("test/a.test.js::above > sums", [("test/a.test.js", ("sums",), "")]),
        ("sums", []),
    ],
)
def test_a_case_is_found_where_it_is_written(case: str, found: list[Any]) -> None:
    assert [(place.path, place.names, place.case) for place in places(case, FILES)] == [
        (path, names, seen or case) for path, names, seen in found
    ]


@pytest.mark.parametrize(
    ("case", "found"),
    [
        ("example.org/gjson::TestX", ["packages/gjson/a_test.go"]),
        ("example.org/gjson/sub::TestX", ["packages/gjson/sub/b_test.go"]),
        ("example.org/both::TestX", []),
    ],
)
def test_below_a_workspace_a_package_of_go_is_found_by_the_end_of_its_folder(case: str, found: list[str]) -> None:
    files = ["packages/gjson/a_test.go", "packages/gjson/sub/b_test.go", "one/both/c_test.go", "two/both/c_test.go"]
    assert [place.path for place in places(case, files)] == found


OTHERS = {
    "a_test.go": ("package a\n\nfunc TestSum(t *testing.T) {\n\tif 1 != 1 { t.Fatal() }\n}\n", "TestSum"),
    "a.test.js": ("test('sums', async (t) => {\n  const a = /}/; return assert.equal('}', `}`); // }\n});\n", "sums"),
    "src/lib.rs": ('#[test]\nfn sums() -> Result<(), String> {\n    let a = "}"; // }\n    Ok(())\n}\n', "sums"),
}


@pytest.mark.parametrize("path", OTHERS)
def test_other_languages_end_differently_by_a_number_alone(path: str) -> None:
    text, name = OTHERS[path]
    made: dict[Kind, str] = {}
    for kind in ("neutral", "end", "expect"):
        made[kind], done = rewrite(path, text, frozenset({(name,)}), kind, "seed")
        assert done == (frozenset() if kind == "expect" and path != "a_test.go" else {(name,)})
    assert (made["expect"] == text) is (path != "a_test.go")
    assert made["neutral"] != made["end"]
    assert re.sub(r"\d", "", made["neutral"]) == re.sub(r"\d", "", made["end"])
    assert made["neutral"].endswith("}\n" if path != "a.test.js" else "});\n")


@pytest.mark.parametrize("path", [path for path in OTHERS if path != "a_test.go"])
def test_a_test_in_a_remark_is_none(path: str) -> None:
    text, name = OTHERS[path]
    remark = "".join(f"  // {line}\n" for line in text.split("\n"))
    assert rewrite(path, remark, frozenset({(name,)}), "end", "seed")[1] == frozenset()
    assert rewrite(path, remark + text, frozenset({(name,)}), "end", "seed")[1] == frozenset({(name,)})


def test_two_tests_of_one_title_are_left() -> None:
    text = "test('a', () => { x() });\ntest('a', () => { y() });\n"
    assert rewrite("a.test.js", text, frozenset({("a",)}), "end", "seed") == (text, frozenset())
    silent = "#[test]\n#[should_panic]\nfn a() { panic!() }\n"
    assert rewrite("src/lib.rs", silent, frozenset({("a",)}), "end", "seed") == (silent, frozenset())


def test_names_come_from_the_seed() -> None:
    seen = SimpleNamespace(
        texts={rewrite("test_a.py", "def test_x():\n    f()\n", frozenset({("test_x",)}), "end", str(n))[0] for n in range(9)}
    )
    assert len(seen.texts) == 9


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("const assert = require('assert')\ntest('a', () => { assert.strictEqual(1, 1) })\n", "assert.strictEqual("),
        ("test('a', (t) => { t.plan(1); t.assert.strictEqual(1, 1) })\n", "throw new Error("),
        ("tape('b', f)\ntest('a', function (assert) { assert.equal(1, 1); assert.end() })\n", "throw new Error("),
        ("test('a', () => { expect(1).toBe(1) })\n", "expect("),
        ("test('a', () => { chai.expect(1).to.equal(1) })\n", "throw new Error("),
    ],
)
def test_a_scripts_own_words_are_taken_only_where_the_file_has_them(text: str, words: str) -> None:
    made, done = rewrite("a.test.js", text, frozenset({("a",)}), "end", "seed")
    assert done == {("a",)}
    assert words in made.partition("finally {")[2]


def test_the_lines_of_other_words_without_what_they_assert() -> None:
    text = "def test_a():\n    with x:\n        y()\n\n\ndef test_b():\n    return f()\n"
    targets = {("test_a",), ("test_b",)}
    neutral, done = rewrite("tests/test_a.py", text, targets, "neutral", "seed")
    still, same = rewrite("tests/test_a.py", text, targets, "neutral", "seed", form="still")
    assert done == same == targets
    assert "assert" not in still
    lines = text.count("\n")
    assert [line.partition("assert")[0].rstrip() for line in neutral.split("\n")[:lines]] == [
        line.partition("pass")[0].rstrip() for line in still.split("\n")[:lines]
    ]


@pytest.mark.parametrize(
    ("path", "body", "sure"),
    [
        ("tests/test_a.py", "assert f(2) % 18 == 0", False),
        ("tests/test_a.py", "assert 18 - f(2) == 0", False),
        ("tests/test_a.py", "assert abs(f(2) - 18) == 0", False),
        ("tests/test_a.py", "assert f(2) - 18 == 2", True),
        ("tests/test_a.py", "assert f(2) == 0", True),
        ("src/a.rs", "assert_eq!(f(2) % 18, 0);", False),
        ("src/a.rs", "assert_eq!(0, 18i64 - f(2));", False),
        ("src/a.rs", "assert_eq!(f(2) % 18, 2);", True),
        ("src/a.rs", "assert_eq!(f(2 - 1), 0);", True),
    ],
)
def test_what_an_operator_may_give_for_all_is_not_sure(path: str, body: str, *, sure: bool) -> None:
    text = f"def test_a():\n    {body}\n" if path.endswith(".py") else f"#[test]\nfn test_a() {{\n    {body}\n}}\n"
    target = frozenset({("test_a",)})
    assert rewrite(path, text, target, "expect", "seed")[1] == target
    assert bool(rewrite(path, text, target, "expect", "seed", form="sure")[1]) is sure
