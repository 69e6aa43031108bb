"""The tests in a Rust file, which lie beside its code: those of the base, whatever a change made of
them. Pure.

A test is a module, function, implementation or macro for tests alone: `#[cfg(…test…)]`, `#[test]`,
`#[tokio::test]` and the like.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_ITEM = re.compile(
    r"(?P<marks>(?:#\[(?:[^\[\]]|\[[^\[\]]{0,300}\]){0,500}\]\s{0,200}(?://[^\n]*\n\s{0,200}){0,20}){1,20})"
    r"(?:pub(?:\([^)]{0,100}\))?\s+)?(?:(?:async|unsafe|const)\s+){0,3}(?P<kind>mod|fn|impl|macro_rules!)(?P<name>[^({;]{0,300})"
)
_TEST = re.compile(
    r"#\[(?:cfg\(\s*(?:all\(\s*(?:[^\]()\"]|\"[^\"]*\"|\bnot\([^()]*\)){0,300}?)?\btest\b\s*[,)]|(?:\w+::)*test(?:_case)?\b|rstest\b|quickcheck\b)"
)
_BRACES = re.compile(
    r'//[^\n]*|/\*.*?\*/|r(#*)".*?"\1|"(?:\\.|[^"\\])*"|\'(?:\\.[^\']*|[^\'\\])\'|[{}]', re.DOTALL
)
_BRACKETS = re.compile(
    r'//[^\n]*|/\*.*?(?:\*/|\Z)|"(?:\\.|[^"\\])*"|`(?:\\.|[^`\\])*`|\'(?:\\.[^\'\n]{0,8}|[^\'\\\n])\'|[(){}\[\]]',
    re.DOTALL,
)
"""Braces, or all brackets, with the comments and strings in which they do not count."""
_BODY = re.compile(r"\[[^\[\]{}]{0,300}\]|[{;]")
"""A body, or the end without one, but for the length of an array."""


@dataclass(frozen=True, slots=True)
class _Item:
    """What is for tests alone: what it is called, the how manyth of that name it is, and where it
    stands; `outer`: in no bracket.
    """

    key: tuple[str, int]
    start: int
    end: int
    outer: bool


def with_tests_of(now: str, base: str) -> str:
    """Return a file with its tests as they are in `base`: what is new of them is gone, what is gone
    is back at the end of the file.

    A file without tests on the base is left as it is.
    """
    before, after = list(_items(base)), list(_items(now))
    texts = {item.key: base[item.start : item.end] for item in before}
    if not texts or texts == {item.key: now[item.start : item.end] for item in after}:
        return now
    for item in reversed(after):
        now = now[: item.start] + texts.get(item.key, "") + now[item.end :]
    known = {item.key for item in after}
    lost = [texts[item.key] for item in before if item.outer and item.key not in known]
    return now.rstrip() + "\n\n" + "\n\n".join(lost) + "\n" if lost else now


def _items(text: str) -> Iterator[_Item]:
    """Yield what is for tests alone, none within another."""
    at, counts, ends = 0, dict[str, int](), _closings(text)
    while match := _ITEM.search(text, at):
        if (
            "//" in text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
        ):  # documentation that shows one
            at = text.find("\n", match.start()) + 1 or len(text)
            continue
        if not _TEST.search(match["marks"]) or not (end := _end(text, match.end(), ends)):
            at = match.end()
            continue
        name = f"{match['kind']} {' '.join(match['name'].split())}"
        counts[name] = counts.get(name, 0) + 1
        line = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
        yield _Item((name, counts[name]), match.start(), end, outer=not line)
        at = end


def _end(text: str, at: int, ends: Mapping[int, int]) -> int:
    """Return where an item ends whose name ends at `at`: behind its body, or its semicolon; 0 where
    it does not.
    """
    if text[at : at + 1] == "(":
        at = _bracket_end(text, at)
        if at < 0:
            return 0
    found = next((match for match in _BODY.finditer(text, at) if match[0] in "{;"), None)
    if found is None:
        return 0
    return found.end() if found[0] == ";" else ends.get(found.start(), 0)


def _closings(text: str) -> dict[int, int]:
    """Return by the place of each opening brace the place behind the one that closes it."""
    found, opened = dict[int, int](), list[int]()
    for match in _BRACES.finditer(text):
        if match[0] == "{":
            opened.append(match.start())
        elif match[0] == "}" and opened:
            found[opened.pop()] = match.end()
    return found


def _bracket_end(text: str, at: int) -> int:
    """Return where the bracket that opens at `at` closes, -1 if it does not."""
    depth = 0
    for match in _BRACKETS.finditer(text, at):
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return match.start()
    return -1
