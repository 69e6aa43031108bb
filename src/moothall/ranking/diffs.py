"""Git diffs parsed and applied, a change in its normal form, and the tests in a Rust source
file. Pure.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from moothall.domain.ids import digest

# Parsing and application of git diffs. Pure.


_START = re.compile(r"(?m)^diff --git ")
_NAME = re.compile(r'(?m)^\+\+\+ (?:"b/(?P<quoted>.*)"|b/(?P<name>.*?))\t?$')
_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


@dataclass(frozen=True, slots=True)
class FileDiff:
    """The part of a diff about one text file that exists after it.

    new: the file did not exist before.
    """

    path: str
    new: bool
    body: str

    @property
    def added(self) -> dict[int, str]:
        """The added lines by their line numbers after the change."""
        lines: dict[int, str] = {}
        number = 0
        for line in self.body.split("\n"):
            if hunk := _HUNK.match(line):
                number = int(hunk[3])
            elif number and line[:1] in {"+", " "}:
                if line[0] == "+":
                    lines[number] = line[1:]
                number += 1
        return lines

    @property
    def removed(self) -> tuple[str, ...]:
        """The removed lines."""
        body = self.body.partition("\n")[2]
        return tuple(line[1:] for line in body.split("\n") if line[:1] == "-")

    def apply(self, base: str) -> str:
        """Return the text of the file after the change.

        base: the text before. The result is undefined if the diff does not fit it.
        """
        lines, result, position = base.split("\n"), list[str](), 0
        in_hunk = False
        for line in self.body.split("\n"):
            if hunk := _HUNK.match(line):
                start = int(hunk[1]) - (0 if hunk[2] == "0" else 1)
                result += lines[position:start]
                position, in_hunk = start, True
            elif in_hunk and line[:1] == "+":
                result.append(line[1:])
            elif in_hunk and line[:1] == " ":
                result.append(line[1:])
                position += 1
            elif in_hunk and line[:1] == "-":
                position += 1
        return "\n".join([*result, *lines[position:]])


def filter_files(diff: str, keep: Callable[[FileDiff], bool]) -> str:
    """Return the parts of a diff about text files for which `keep` is true.

    Deleted, renamed and binary files are dropped.
    """
    starts = [match.start() for match in _START.finditer(diff)]
    parts = []
    for start, end in zip(starts, [*starts[1:], len(diff)], strict=False):
        part = diff[start:end]
        file_diff = next(file_diffs(part), None)
        if (
            file_diff is not None
            and "\nrename from " not in part.partition("\n@@ ")[0]
            and keep(file_diff)
        ):
            parts.append(part)
    return "".join(parts)


def file_diffs(diff: str) -> Iterator[FileDiff]:
    """Yield the part of a diff about each text file that exists after it."""
    starts = [match.start() for match in _START.finditer(diff)]
    for start, end in zip(starts, [*starts[1:], len(diff)], strict=False):
        part = diff[start:end]
        head, separator, body = part.partition("\n@@ ")
        name = _NAME.search(head + "\n")
        if separator and name:
            yield FileDiff(
                name["name"] or name["quoted"] or "", "\n--- /dev/null" in head, f"@@ {body}"
            )


# Normal form of a change: without comments, formatting and docstrings. Pure; the input is untrusted
# text from a model.


NormalChange = Mapping[str, tuple[str, str]]
"""By file its normalized code before and after the change."""
_PYTHON_SUFFIXES = (".py", ".pyi")
_TOKENIZED_SUFFIXES = (".go", ".rs", ".js", ".mjs", ".cjs", ".jsx", ".ts", ".mts", ".cts", ".tsx")
_TOKENS = re.compile(
    r"(?P<comment>//[^\n]*|/\*.*?\*/)|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`|\w+|[^\w\s]",
    re.DOTALL,
)
_TASK_ABOUT_WORDING = re.compile(
    r"\b(?:comment|docs?\b|docstring|document|readme|format|reformat|lint|style|spelling|typo|licen[cs]e|rename)",
    re.IGNORECASE,
)
_WITH_DOCSTRINGS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def existing_code_files(diff: str) -> tuple[str, ...]:
    """Return the existing code files that a diff changes, whose texts `normalize_change` needs."""
    return tuple(
        part.path
        for part in file_diffs(diff)
        if part.path.endswith((*_PYTHON_SUFFIXES, *_TOKENIZED_SUFFIXES)) and not part.new
    )


def normalize_change(
    diff: str, texts: Mapping[str, str], own_tests: Collection[str]
) -> NormalChange:
    """Return by file its normalized code before and after the change, without the author's own
    tests.

    Files that are not code, or cannot be parsed, are not normalized.

    texts: the files on the base.
    """
    return {
        part.path: _before_and_after(part, texts)
        for part in file_diffs(diff)
        if part.path not in own_tests
    }


def change_digest(change: NormalChange) -> str:
    """Return a digest that is equal for diffs with the same effect on the code."""
    return digest(*(f"{path}\0{after}" for path, (_, after) in sorted(change.items())))


def changes_only_wording(diff: str, change: NormalChange, task: str) -> bool:
    """True if a diff changes only wording or formatting, and the task asks for more.

    change: the normal form of the diff.
    """
    if len(_START.findall(diff)) != len(list(file_diffs(diff))) or _TASK_ABOUT_WORDING.search(task):
        return False
    return bool(change) and all(before == after for before, after in change.values())


def _before_and_after(part: FileDiff, texts: Mapping[str, str]) -> tuple[str, str]:
    before = texts.get(part.path, "")
    if part.new:
        return "", f"new {normalize_code(part.path, part.apply(before))}"
    if part.path not in texts:
        return "", part.body
    return normalize_code(part.path, before), normalize_code(part.path, part.apply(before))


def normalize_code(path: str, text: str) -> str:
    """Return a normalized text; the text itself if its language is unknown or it cannot be
    parsed.
    """
    if path.endswith(_PYTHON_SUFFIXES):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return ast.dump(_without_docstrings(ast.parse(text)))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return text
    if path.endswith(_TOKENIZED_SUFFIXES):
        return "\0".join(match[0] for match in _TOKENS.finditer(text) if match["comment"] is None)
    return text


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, _WITH_DOCSTRINGS) and node.body and _is_docstring(node.body[0]):
            node.body = node.body[1:]
    return tree


def _is_docstring(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


# Restoration of the base's tests in a Rust source file, which contains tests next to code. Pure.
#
# A test is a module, function, implementation or macro that is compiled only for tests:
# `#[cfg(…test…)]`, `#[test]`, `#[tokio::test]` and the like.


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
    base_items, items = list(_test_items(base)), list(_test_items(text))
    texts = {item.key: base[item.start : item.end] for item in base_items}
    if not texts or texts == {item.key: text[item.start : item.end] for item in items}:
        return text
    for item in reversed(items):
        text = text[: item.start] + texts.get(item.key, "") + text[item.end :]
    present = {item.key for item in items}
    missing = [texts[item.key] for item in base_items if item.outer and item.key not in present]
    return text.rstrip() + "\n\n" + "\n\n".join(missing) + "\n" if missing else text


def _test_items(text: str) -> Iterator[_Item]:
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
    end_positions, open_positions = dict[int, int](), list[int]()
    for match in _BRACES.finditer(text):
        if match[0] == "{":
            open_positions.append(match.start())
        elif match[0] == "}" and open_positions:
            end_positions[open_positions.pop()] = match.end()
    return end_positions


def _bracket_end(text: str, position: int) -> int:
    """Return the position of the bracket that closes the one at `position`, or -1."""
    depth = 0
    for match in _BRACKETS.finditer(text, position):
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return match.start()
    return -1
