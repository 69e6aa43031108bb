"""Statements of Go, Rust and JavaScript, of which no parser is at hand on the trusted side. Pure.

`ending` is .go, .rs, or empty for a script; `at` is where a bracket opens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_SKIPPED = re.compile(
    r'//[^\n]*|/\*.*?(?:\*/|\Z)|"(?:\\.|[^"\\])*"|`(?:\\.|[^`\\])*`|\'(?:\\.[^\'\n]{0,8}|[^\'\\\n])\'|[(){}\[\],]', re.DOTALL
)
_SCRIPT = re.compile(_SKIPPED.pattern.replace(r"\'(?:\\.[^\'\n]{0,8}|[^\'\\\n])\'", r"'(?:\\.|[^'\\\n])*'"), re.DOTALL)
_CONTROL = re.compile(r"\s*(?:\}?\s*else|if|for|while|do|with)\b")
_COMMENT = re.compile(r"\n[ \t]*//[^\n]*$")


def is_outermost(ending: str, body: str, at: int) -> bool:
    """Whether a statement begins there, in no block and no bracket."""
    depth = 0
    for match in _read(ending).finditer(body):
        if match.start() >= at:
            break
        if match.end() > at:
            return False  # in a text or a comment
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(match[0], 0)
    return depth == 0 and _is_start(ending, body[:at])


def _is_start(ending: str, before: str) -> bool:
    """Whether a statement of its own begins after `before`, that no attribute and no condition without brackets governs."""
    line_end = "\n" in before[len(before.rstrip()) :]
    before = before.rstrip()
    while comment := _COMMENT.search(before):
        before, line_end = before[: comment.start()].rstrip(), True
    if not before or before[-1] in ";{}" or (ending == ".go" and line_end):
        return True
    last = before.rpartition("\n")[2]
    whole = before[-1] in ")'\"`" and last.count("(") == last.count(")") and not _CONTROL.match(last)
    return ending == "" and line_end and whole


def arguments(ending: str, body: str, at: int) -> Iterator[tuple[int, int]]:
    """Yield where each argument of the call whose bracket opens at `at` stands; none where it does not close."""
    depth, start, found = 0, at + 1, list[tuple[int, int]]()
    for match in _read(ending).finditer(body, at):
        if match[0] in {"(", "[", "{"}:
            depth += 1
        elif match[0] in {")", "]", "}"}:
            depth -= 1
        if depth == 1 and match[0] == ",":
            found.append((start, match.start()))
            start = match.end()
        elif depth == 0:
            if body[start : match.start()].strip():
                found.append((start, match.start()))
            yield from found
            return


def block(ending: str, body: str, at: int) -> tuple[int, int] | None:
    """Return what stands within the bracket that opens at `at`; None where it does not close."""
    if at < 0 or body[at : at + 1] not in {"(", "[", "{"}:
        return None
    depth = 0
    for match in _read(ending).finditer(body, at):
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return at + 1, match.start()
    return None


def block_end(ending: str, body: str, at: int) -> int:
    """Return where the block ends that `at` stands in, behind all where none does."""
    depth = 0
    for match in _read(ending).finditer(body, at):
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(match[0], 0)
        if depth < 0:
            return match.start()
    return len(body)


def _read(ending: str) -> re.Pattern[str]:
    return _SKIPPED if ending else _SCRIPT
