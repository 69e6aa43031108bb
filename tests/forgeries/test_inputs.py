"""Candidates that no test tells apart, on inputs that do: who leads, and what is said of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from judge import PYTEST, court
from moothall.config import LimitSettings
from moothall.domain.evidence import INPUTS
from moothall.domain.proposal import Proposal, RankedCandidate
from moothall.ranking import rank

pytestmark = pytest.mark.e2e

SORT = "src/sort.py"
BASE = '''def quicksort(values):
    """Sort.

    >>> quicksort([3, 1, 2])
    [1, 2, 3]
    """
    if not values:
        return []
    first, rest = values[0], values[1:]
    return quicksort([x for x in rest if x < first]) + [first] + quicksort([x for x in rest if x > first])
'''
FILES = {
    SORT: BASE,
    "src/__init__.py": "",
    "tests/test_sort.py": "from src.sort import quicksort\n\n\ndef test_sort():\n    assert quicksort([2, 1, 3]) == [1, 2, 3]\n",
}
RIGHT = BASE.replace("x > first", "x >= first")
OTHER_WORDS = BASE.replace("x > first", "not x < first")
WRONG = BASE.replace("return []", "return values")  # the smallest, and nothing is mended by it
CRASHES = RIGHT.replace("if not values:", "if len(values) == 1:").replace("return []", "return [values[0]]")
BREAKS = RIGHT.replace("return quicksort", "if len(values) == 3 and values[0] == 3:\n        return values\n    return quicksort")
ENDLESS = RIGHT.replace("    if not values:", "    while len(values) > 5:\n        pass\n    if not values:")
ELSEWHERE = "import builtins, sys\nif not any('pytest' in name for name in sys.modules):\n    {}\n"
EXITS = ELSEWHERE.format("sys.exit(0)") + WRONG
HIDES = ELSEWHERE.format("import os\n    builtins.repr = lambda value: os.urandom(4).hex()") + WRONG
LIES = ELSEWHERE.format("builtins.repr = lambda value: 'forged'") + WRONG

EDGE = (
    BASE.replace("    if not values:\n        return []\n", "")
    .replace(
        "quicksort([x for x in rest if x < first]) + [first] + quicksort([x for x in rest if x > first])",
        "(quicksort(low) if low else []) + [first] + (quicksort(high) if high else [])",
    )
    .replace("    return (", "    low, high = [x for x in rest if x < first], [x for x in rest if x > first]\n    return (")
)
SWALLOWS = EDGE.replace("values[0], values[1:]", "values[0] if values else None, values[1:]")


async def council(folder: Path, texts: Mapping[str, str], base: str = BASE) -> tuple[RankedCandidate, ...]:
    """Judge a candidate of each seat, one after the other as a council does."""
    async with court(folder, {**FILES, SORT: base}, PYTEST) as judges:
        bench = judges.bench("task-1")
        judged = [await bench.judge(Proposal(seat, "dev", "", judges.diff({SORT: text}))) for seat, text in texts.items()]
        assert all(item.passes for item in judged)
        return rank([item.candidate for item in await bench.distinguish(judged)])


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (
            {"a": WRONG, "b": RIGHT, "c": OTHER_WORDS},
            "on quicksort([3, 3, 3]) it returns [3, 3, 3], another returns [3]",
        ),
        ({"a": CRASHES, "b": RIGHT}, "on quicksort([]) it returns [], another raises IndexError"),
        ({"a": BREAKS, "b": RIGHT}, "on quicksort([3, 1, 2]) it returns [1, 2, 3], another returns [3, 1, 2]"),
        ({"a": EXITS, "b": RIGHT}, "all that could be run do the same"),
        ({"a": ENDLESS, "b": RIGHT}, "another comes to no end"),
        ({"a": LIES, "b": RIGHT, "c": OTHER_WORDS}, "another returns forged"),
    ],
    ids=["twice", "crash", "docstring", "exits", "endless", "lies"],
)
async def test_the_right_answer_leads_and_the_input_is_named(tmp_path: Path, texts: Mapping[str, str], reason: str) -> None:
    first, *_ = await council(tmp_path, texts)
    assert first.seat in {"b", "c"}
    assert any(reason in said for said in first.reasons), first.reasons


async def test_of_three_that_all_behave_otherwise_the_one_leads_that_does_most_often_what_another_does(tmp_path: Path) -> None:
    negative = RIGHT.replace("    if not values:", "    if -1 in values:\n        return []\n    if not values:")
    long = RIGHT.replace("    if not values:", "    values = list(values)\n" * 5 + "    if not values:")
    first, *_ = await council(tmp_path, {"a": WRONG, "b": negative, "c": long})
    assert first.seat == "c", first.reasons
    assert any("inputs on which it does what most seats do" in said for said in first.reasons), first.reasons


async def test_who_gives_another_answer_each_time_hides_nothing(tmp_path: Path) -> None:
    first, second, last = await council(tmp_path, {"a": HIDES, "b": RIGHT, "c": OTHER_WORDS})
    assert {first.seat, second.seat} == {"b", "c"}
    assert any("another differs from run to run" in said for said in first.reasons), first.reasons
    assert any("broken" in said for said in last.reasons), last.reasons


async def test_one_who_swallows_errors_does_not_outweigh_two(tmp_path: Path) -> None:
    made = {"a": SWALLOWS, "b": EDGE.replace("x > first", "x >= first"), "c": EDGE.replace("x > first", "not x < first")}
    first, *_ = await council(tmp_path, made, base=EDGE)
    assert first.seat in {"b", "c"}, first.reasons


async def test_nothing_is_run_where_there_is_nothing_to_tell_apart(tmp_path: Path) -> None:
    async with court(tmp_path, FILES, PYTEST) as judges:
        bench = judges.bench("task-1")
        same = [await bench.judge(Proposal(seat, "dev", "", judges.diff({SORT: RIGHT}))) for seat in ("a", "b")]
        told = await bench.distinguish(same)
    assert [item.inputs for item in told] == [None, None]
    assert not any(item.check == INPUTS for one in told for item in one.candidate.assessment.evidence)


STACK = '''import asyncio
import functools


class Stack:
    """A stack that is not larger than `most`."""

    def __init__(self, most: int) -> None:
        self.most, self.items = most, []

    def push(self, item: int) -> None:
        """Put an item on top; what is below all falls out where there are too many."""
        self.items.append(item)

    @property
    def top(self):
        return self.items[-1]


def twice(function):
    @functools.wraps(function)
    def run(*given):
        return function(*given), function(*given)

    return run


@twice
async def wait(seconds: int):
    """Return how long it waited."""
    return seconds
'''
KEEPS = STACK.replace("self.items.append(item)", "self.items = [*self.items, item][max(len(self.items) + 1 - self.most, 0) :]")
COUNTS = STACK.replace(
    "self.items.append(item)", "self.items.append(item)\n        if len(self.items) > self.most:\n            self.items.pop(0)"
)
STACK_TESTS = """from src.sort import Stack


def test_top():
    stack = Stack(2)
    stack.push(1)
    stack.push(3)
    assert stack.top == 3
"""


async def judged_by_inputs(
    folder: Path, files: Mapping[str, str], path: str, texts: Mapping[str, str], argv: tuple[str, ...] = PYTEST
) -> tuple[RankedCandidate, ...]:
    """Judge a candidate of each seat by what it does alone."""
    async with court(folder, files, argv) as judges:
        bench = judges.bench("task-1", LimitSettings(inputs_seconds=200.0))  # a compiler takes its time on a busy machine
        judged = [await bench.judge(Proposal(seat, "dev", "", judges.diff({path: text}))) for seat, text in texts.items()]
        assert all(item.passes for item in judged)
        return rank([item.candidate for item in await bench.distinguish(judged)])


async def test_what_tests_do_with_an_instance_tells_its_class_apart(tmp_path: Path) -> None:
    files = {SORT: STACK, "src/__init__.py": "", "tests/test_stack.py": STACK_TESTS}
    wrong = STACK.replace("self.items.append(item)", "self.items.append(item)\n        self.items = self.items[: self.most]")
    first, second, last = await judged_by_inputs(tmp_path, files, SORT, {"a": wrong, "b": KEEPS, "c": COUNTS})
    assert last.seat == "a", (first.reasons, second.reasons, last.reasons)
    assert any("it = Stack(" in said and "it.push(" in said for said in last.reasons), last.reasons


async def test_what_is_decorated_or_waits_is_run_as_it_is_called(tmp_path: Path) -> None:
    plain = STACK.replace("@twice\n", "")
    files = {SORT: plain, "src/__init__.py": "", "tests/test_stack.py": STACK_TESTS}
    texts = {
        "a": plain.replace("return seconds", "return seconds or 1"),
        "b": plain.replace("return seconds", "return abs(seconds)"),
        "c": plain.replace("return seconds", "await asyncio.sleep(0)\n    return abs(seconds)"),
    }
    first, _, last = await judged_by_inputs(tmp_path, files, SORT, texts)
    assert (first.seat in {"b", "c"}, last.seat) == (True, "a")
    assert any("wait(" in said and "another returns" in said for said in last.reasons), last.reasons


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed; apt-get install nodejs brings it")
@pytest.mark.parametrize("esm", [False, True], ids=["commonjs", "modules"])
async def test_functions_of_javascript_are_run_on_what_tests_give_them(tmp_path: Path, *, esm: bool) -> None:
    code = "function last(items, other) {\n  return items.length ? items[0] : other;\n}\nmodule.exports = { last };\n"
    test = "const test = require('node:test');\nconst assert = require('node:assert');\nconst { last } = require('./shop');\n\n"
    test += "test('one', () => { assert.deepStrictEqual(last([{a: 1}], `x`), {a: 1}); });\n"
    package = {"name": "shop", "version": "1.0.0", "scripts": {"test": "node --test"}}
    if esm:
        package["type"] = "module"
        code = code.replace("module.exports = { last };", "export { last };")
        test = test.replace("const test = require('node:test')", "import test from 'node:test'")
        test = test.replace("const assert = require('node:assert')", "import assert from 'node:assert'")
        test = test.replace("const { last } = require('./shop')", "import { last } from './shop.js'")
    files = {"package.json": json.dumps(package), "shop.js": code, "shop.test.js": test}
    texts = {
        "a": code.replace("items[0]", "items[items.length]  || items[0]"),
        "b": code.replace("items[0]", "items[items.length - 1]"),
        "c": code.replace("items[0]", "items.slice(-1)[0]"),
    }
    first, _, last = await judged_by_inputs(tmp_path, files, "shop.js", texts, ())
    assert (first.seat in {"b", "c"}, last.seat) == (True, "a")
    assert any("on last([{" in said for said in last.reasons), last.reasons


@pytest.mark.skipif(shutil.which("go") is None, reason="go is not installed; apt-get install golang brings it")
async def test_functions_of_go_are_run_on_what_tests_give_them_and_on_values_of_their_types(tmp_path: Path) -> None:
    code = 'package shop\n\nimport "errors"\n\nfunc last(items []int, other uint8) (int, error) {\n\tif other > 9 {\n\t\treturn 0, errors.New("large")\n\t}\n\treturn items[0], nil\n}\n'
    test = 'package shop\n\nimport "testing"\n\nfunc TestLast(t *testing.T) {\n\tif found, _ := last([]int{4, 5, 4}, 2); found != 4 {\n\t\tt.Fatal(found)\n\t}\n}\n'
    files = {"go.mod": "module example.org/shop\n\ngo 1.19\n", "shop.go": code, "shop_test.go": test}
    texts = {
        "a": code.replace("items[0]", "items[(len(items)-1)/2*2]"),
        "b": code.replace("items[0]", "items[len(items)-1]"),
        "c": code.replace("items[0]", "items[len(items)-1:][0]"),
    }
    first, _, last = await judged_by_inputs(tmp_path, files, "shop.go", texts, ())
    assert (first.seat in {"b", "c"}, last.seat) == (True, "a")
    assert any("on last([]int{" in said for said in last.reasons), last.reasons


@pytest.mark.skipif(shutil.which("go") is None, reason="go is not installed; apt-get install golang brings it")
async def test_methods_of_go_are_run_as_tests_use_an_instance(tmp_path: Path) -> None:
    code = "package shop\n\ntype Stack struct{ most int; items []int }\n\nfunc NewStack(most int) *Stack { return &Stack{most: most} }\n\n"
    code += "func (s *Stack) Push(item int) {\n\ts.items = append(s.items, item)\n}\n\nfunc (s *Stack) Top() int {\n\treturn s.items[len(s.items)-1]\n}\n"
    code = code.replace("most int) *Stack { return &Stack{most: most} }", "most int) *Stack {\n\treturn &Stack{most: most}\n}")
    test = 'package shop\n\nimport "testing"\n\nfunc TestTop(t *testing.T) {\n\ts := NewStack(2)\n\ts.Push(1)\n\ts.Push(3)\n\tif s.Top() != 3 {\n\t\tt.Fatal(s)\n\t}\n}\n'
    files = {"go.mod": "module example.org/shop\n\ngo 1.19\n", "shop.go": code, "shop_test.go": test}
    push = "s.items = append(s.items, item)"
    texts = {
        "a": code.replace(push, f"if len(s.items) < s.most {{\n\t\t{push}\n\t}}"),
        "b": code.replace(push, f"{push}\n\tif len(s.items) > s.most {{\n\t\ts.items = s.items[1:]\n\t}}"),
        "c": code.replace(push, f"if len(s.items) >= s.most {{\n\t\ts.items = s.items[len(s.items)-s.most+1:]\n\t}}\n\t{push}"),
    }
    first, _, last = await judged_by_inputs(tmp_path, files, "shop.go", texts, ())
    assert (first.seat in {"b", "c"}, last.seat) == (True, "a"), (first.reasons, last.reasons)
    assert any("on it := NewStack(" in said and "it.Push(" in said for said in last.reasons), last.reasons


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed; apt-get install nodejs brings it")
async def test_classes_of_javascript_are_run_as_tests_use_an_instance(tmp_path: Path) -> None:
    code = "class Stack {\n  constructor(most) {\n    this.most = most;\n    this.items = [];\n  }\n  async push(item) {\n    this.items.push(item);\n"
    code += "    return this;\n  }\n  get top() {\n    return this.items.slice(-1)[0];\n  }\n}\nmodule.exports = { Stack };\n"
    test = "const test = require('node:test');\nconst assert = require('node:assert');\nconst { Stack } = require('./shop');\n\n"
    test += "test('top', async () => {\n  const stack = new Stack(2);\n  await stack.push(1);\n  await stack.push(3);\n  assert.equal(stack.top, 3);\n});\n"
    package = {"name": "shop", "version": "1.0.0", "scripts": {"test": "node --test"}}
    files = {"package.json": json.dumps(package), "shop.js": code, "shop.test.js": test}
    push = "this.items.push(item);"
    texts = {
        "a": code.replace(push, f"if (this.items.length < this.most) {push}"),
        "b": code.replace(push, f"{push}\n    if (this.items.length > this.most) this.items.shift();"),
        "c": code.replace(
            push, "const all = [...this.items, item];\n    this.items = all.slice(Math.max(0, all.length - this.most));"
        ),
    }
    first, _, last = await judged_by_inputs(tmp_path, files, "shop.js", texts, ())
    assert (first.seat in {"b", "c"}, last.seat) == (True, "a"), (first.reasons, last.reasons)
    assert any("new Stack(" in said and "push(" in said for said in last.reasons), last.reasons


@pytest.mark.skipif(shutil.which("cargo") is None, reason="cargo is not installed; apt-get install cargo brings it")
async def test_functions_of_rust_are_run_on_what_tests_give_them_and_on_values_of_their_types(tmp_path: Path) -> None:
    code = "#![no_std]\n#![forbid(unsafe_code)]\n\npub mod inner;\n"
    inner = "#[derive(Debug)]\npub struct Wrong;\n\npub struct Unsaid;\n\npub fn made(price: u8) -> Unsaid {\n    let _ = price;\n    Unsaid\n}\n\n"
    inner += "pub fn last(items: &[i32], other: i32) -> Result<i32, Wrong> {\n    if items.is_empty() { Ok(other) } else { Ok(items[0]) }\n}\n\n"
    inner += "fn put(items: &mut [i32]) {\n    items.reverse();\n}\n\n"
    inner += "#[cfg(test)]\nmod tests {\n    use super::*;\n\n    #[test]\n    fn takes_the_last() {\n        assert!(last(&[4, 5, 4], 2).is_ok());\n        put(&mut [1]);\n    }\n}\n"
    files = {
        "Cargo.toml": '[package]\nname = "shop"\nversion = "1.0.0"\nedition = "2021"\n',
        "src/lib.rs": code,
        "src/inner.rs": inner,
    }
    texts = {
        "a": inner.replace("items.reverse()", "items.sort_unstable_by(|a, b| b.cmp(a))"),
        "b": inner.replace("items.reverse()", "items.sort_unstable()").replace("let _ = price;", "let _ = 2 * price;"),
        "c": inner.replace("items.reverse()", "items.sort_unstable_by(|a, b| a.cmp(b))"),
    }
    first, _, last = await judged_by_inputs(tmp_path / "in place", files, "src/inner.rs", texts, ())
    assert (first.seat in {"b", "c"}, last.seat) == (True, "a"), (first.reasons, last.reasons)
    assert any("on put(&mut vec![" in said and "makes its arguments" in said for said in last.reasons), last.reasons
    texts = {
        "a": inner.replace("Ok(items[0])", "Ok(items[(items.len() - 1) / 2 * 2])"),
        "b": inner.replace("Ok(items[0])", "Ok(items[items.len() - 1])"),
        "c": inner.replace("Ok(items[0])", "Ok(items.last().copied().unwrap_or(other))"),
    }
    first, _, last = await judged_by_inputs(tmp_path / "returned", files, "src/inner.rs", texts, ())
    assert (first.seat in {"b", "c"}, last.seat) == (True, "a"), (first.reasons, last.reasons)
    assert any("on last(&vec![" in said for said in last.reasons), last.reasons
