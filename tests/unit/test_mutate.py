from __future__ import annotations

import ast
import inspect
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fetch
import search
from mutate import Fault, faults, mutable
from scripted import SEATS, Player, Riddle

_GO = """package sum

var limit = 10

// If a == b, nothing is done.
func (s *Sum) Add(a, b int) bool {
	if s.name == "a == b" {
		return a < b && true
	}
	return a + 1 > b
}
"""
_JS = (
    "module.exports = function add(a, b) {\n    if (/a && b/.test('a && b')) { return a && b; }\n "
    "   return a - b;\n};\n"
)
_RUST = (
    "pub fn add(a: u8) -> bool {\n    a == 1\n}\n\n#[test]\n#[ignore]\nfn adds() {\n    assert!(1 "
    '== 1);\n}\n#[cfg(test)]\n// with alloc\n#[cfg(feature = "alloc")]\nmod tests {\n    fn f() { '
    "assert!(1 == 1); }\n}\n"
)


def _mutations_of(path: str, text: str) -> list[tuple[str, str, str]]:
    return [
        (fault.function, text[fault.start : fault.end].strip(), fault.new.strip())
        for fault in faults(path, text)
    ]


def test_every_python_fault_is_one_change_that_still_parses() -> None:
    text = inspect.getsource(search)
    all_faults = faults("src/all.py", text)
    assert len(all_faults) > 20
    for fault in all_faults:
        broken = fault.broken(text)
        assert ast.dump(ast.parse(broken)) != ast.dump(ast.parse(text)), fault
        assert fault.function


def test_faults_of_python_are_in_functions_and_described_by_kind() -> None:
    text = textwrap.dedent(
        '''
        LIMIT = 1 + 2


        def néw(a, b):
            """Text: a == 1."""
            return a != b and not True
        '''
    )
    described = [
        (fault.kind, fault.function, text[fault.start : fault.end])
        for fault in faults("a.py", text)
    ]
    assert set(described) == {
        ("return", "néw", "return a != b and not True"),
        ("and/or", "néw", "a != b and not True"),
        ("comparison", "néw", "a != b"),
        ("not", "néw", "not True"),
        ("constant", "néw", "True"),
    }


_MEMBERS = (
    "exports.a = {\n  make: function (x) {\n    if (x) { return x + 1; }\n  },\n  less(x, y) {\n  "
    "  return x < y;\n  },\n};\n"
)
_C = (
    "#define ONE(x) (x + 1)\nstatic int\nless(int a,\n     int b)\n{\n    return a < b; /* a < b "
    "*/\n}\n"
)


def test_functions_are_found_as_members_and_in_c() -> None:
    assert _mutations_of("a.js", _MEMBERS) == [
        ("make", "+", "-"),
        ("make", "1", "2"),
        ("less", "<", ">="),
    ]
    assert _mutations_of("a.c", _C) == [("less", "<", ">=")]


def test_comments_strings_patterns_and_code_outside_functions_are_not_mutated() -> None:
    assert _mutations_of("sum.go", _GO) == [
        ("Add", "==", "!="),
        ("Add", "<", ">="),
        ("Add", "&&", "||"),
        ("Add", "true", "false"),
        ("Add", "+", "-"),
        ("Add", "1", "2"),
        ("Add", ">", "<="),
    ]
    assert [(old, new) for _, old, new in _mutations_of("add.js", _JS)] == [
        ("&&", "||"),
        ("-", "+"),
    ]
    assert _mutations_of("src/lib.rs", _RUST) == [("add", "==", "!="), ("add", "1", "2")]


@pytest.mark.parametrize(
    "path", ["docs/conf.py", "setup.py", "benches/a.rs", "dist/a.min.js", "a.txt", "examples/x.go"]
)
def test_non_library_code_is_not_mutated(path: str) -> None:
    assert not mutable(path)


@given(
    st.text(alphabet="ab \n\t=<>!&|+-1/'\"`{}()#r\\:;,é", max_size=200),
    st.sampled_from(["a.py", "a.go", "a.rs", "a.js", "a.c"]),
)
def test_any_text_is_read_completely(text: str, path: str) -> None:
    for fault in faults(
        path, f"def f():\n    return 1\n{text}" if path == "a.py" else f"fn f() {{\n{text}"
    ):
        assert fault.start < fault.end


def _riddle(text: str, first: int, second: int) -> Riddle:
    all_faults = faults("src/sums.py", text)
    return Riddle(
        {"src/sums.py": text}, all_faults[first], all_faults[second], ("tests/test_sums.py",)
    )


def _apply_edits(text: str, actions: list[dict[str, object]]) -> str:
    for action in actions:
        args = action["args"]
        assert isinstance(args, dict)
        if action["tool"] == "files.edit":
            assert text.count(args["old"]) == 1
            text = text.replace(args["old"], args["new"])
    return text


_SUMS = (
    "def add(a, b):\n    return a + b\n\n\ndef less(a, b):\n    return a < b\n\n\ndef "
    "add_again(a, b):\n    return a + b\n"
)


@given(st.integers(0, 5), st.integers(0, 5))
def test_a_correct_seat_restores_the_release_and_a_wrong_one_does_not(
    first: int, second: int
) -> None:
    riddle = _riddle(_SUMS, first, second)
    assert _apply_edits(riddle.broken, riddle.right_actions()) == _SUMS
    if riddle.first.function != riddle.second.function:
        assert _apply_edits(riddle.broken, riddle.wrong_actions(0)) == riddle.second.broken(_SUMS)
    for number in (1, 2):
        assert _apply_edits(riddle.broken, riddle.wrong_actions(number)) == riddle.broken


@given(st.text(min_size=1, max_size=20))
def test_at_least_one_seat_is_right_unless_the_probability_is_zero(task_id: str) -> None:
    assert Player(0.5).right_seats(task_id)
    assert Player(0.5).right_seats(task_id) == Player(0.5).right_seats(task_id) <= frozenset(SEATS)
    assert not Player(0.0).right_seats(task_id)


def test_about_half_of_the_seats_are_right() -> None:
    counts = [len(Player(0.5).right_seats(str(number))) for number in range(400)]
    # 12/7: nobody is right in one of eight draws, which are repeated.
    assert 1.6 < sum(counts) / len(counts) < 1.85


def test_the_corpus_has_its_minimum_size_and_every_package_is_pinned() -> None:
    listed = fetch.projects()
    count = {
        name: sum(project.ecosystem == name for project in listed)
        for name in ("python", "go", "rust", "node")
    }
    assert len(listed) >= 30
    assert count["python"] >= 12
    assert min(count["go"], count["rust"], count["node"]) >= 6
    assert all(
        project.reason and package.version and len(package.hash) >= 43
        for project in listed
        for package in project.packages
    )
    assert len({project.name for project in listed}) == len(listed)


def test_a_fault_replaces_the_named_text() -> None:
    assert Fault("a.py", 0, 1, "b", "constant", "f").broken("ac") == "bc"
