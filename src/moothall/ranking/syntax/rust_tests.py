"""Restoration of the base's tests in a Rust source file, which contains tests next to code. Pure.

A test is a module, function, implementation or macro that is compiled only for tests:
`#[cfg(…test…)]`, `#[test]`, `#[tokio::test]` and the like.
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
"""Braces, or all brackets, and the comments and strings in which they do not count."""
_BODY_START = re.compile(r"\[[^\[\]{}]{0,300}\]|[{;]")
"""The start of a body or a semicolon; array lengths are skipped."""


@dataclass(frozen=True, slots=True)
class _Item:
    """An item that is compiled only for tests.

    key: its name, and its number among items with this name.
    outer: it is at the top level.
    """

    key: tuple[str, int]
    start: int
    end: int
    outer: bool


def restore_base_tests(text: str, base: str) -> str:
    """Return a file with its tests replaced by those of `base`. New tests are removed; missing ones
    are appended.

    A file without tests on the base is returned unchanged.
    """
    base_items, items = list(_items(base)), list(_items(text))
    texts = {item.key: base[item.start : item.end] for item in base_items}
    if not texts or texts == {item.key: text[item.start : item.end] for item in items}:
        return text
    for item in reversed(items):
        text = text[: item.start] + texts.get(item.key, "") + text[item.end :]
    present = {item.key for item in items}
    missing = [texts[item.key] for item in base_items if item.outer and item.key not in present]
    return text.rstrip() + "\n\n" + "\n\n".join(missing) + "\n" if missing else text


def _items(text: str) -> Iterator[_Item]:
    """Yield the outermost items that are compiled only for tests."""
    position, counts, brace_ends = 0, dict[str, int](), _match_braces(text)
    while match := _ITEM.search(text, position):
        line = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
        if "//" in line:  # an example in documentation
            position = text.find("\n", match.start()) + 1 or len(text)
            continue
        if not _TEST.search(match["marks"]) or not (
            end := _item_end(text, match.end(), brace_ends)
        ):
            position = match.end()
            continue
        name = f"{match['kind']} {' '.join(match['name'].split())}"
        counts[name] = counts.get(name, 0) + 1
        yield _Item((name, counts[name]), match.start(), end, outer=not line)
        position = end


def _item_end(text: str, position: int, brace_ends: Mapping[int, int]) -> int:
    """Return the end of an item, after its body or semicolon; 0 if it has none.

    position: the end of its name.
    """
    if text[position : position + 1] == "(":
        position = _bracket_end(text, position)
        if position < 0:
            return 0
    body = next((match for match in _BODY_START.finditer(text, position) if match[0] in "{;"), None)
    if body is None:
        return 0
    return body.end() if body[0] == ";" else brace_ends.get(body.start(), 0)


def _match_braces(text: str) -> dict[int, int]:
    """Return by the position of each opening brace the position after its closing brace."""
    ends, opened = dict[int, int](), list[int]()
    for match in _BRACES.finditer(text):
        if match[0] == "{":
            opened.append(match.start())
        elif match[0] == "}" and opened:
            ends[opened.pop()] = match.end()
    return ends


def _bracket_end(text: str, position: int) -> int:
    """Return the position of the bracket that closes the one at `position`, or -1."""
    depth = 0
    for match in _BRACKETS.finditer(text, position):
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return match.start()
    return -1
