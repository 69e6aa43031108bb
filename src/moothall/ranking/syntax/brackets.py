"""Where a bracket closes, in languages of which no parser is at hand on the trusted side. Pure."""

from __future__ import annotations

import re
from typing import Literal

_SKIPPED = {
    "rust": re.compile(r'//[^\n]*|/\*.*?\*/|r(#*)".*?"\1|"(?:\\.|[^"\\])*"|\'(?:\\.[^\']*|[^\'\\])\'|[{}]', re.DOTALL),
    "script": re.compile(
        r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`"
        r"|(?<=[(,=:\[!&|?{};\s])/(?![*/\s])(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n\[])+/|[{}]",
        re.DOTALL,
    ),
}


def closings(text: str, language: Literal["rust", "script"]) -> dict[int, int]:
    """Return by the place of each bracket, outside of strings and comments, the place behind the one that closes it."""
    found, opened = dict[int, int](), list[int]()
    for match in _SKIPPED[language].finditer(text):
        if match[0] == "{":
            opened.append(match.start())
        elif match[0] == "}" and opened:
            found[opened.pop()] = match.end()
    return found


def bracket_end(text: str, at: int, language: Literal["rust", "script"]) -> int:
    """Return the place behind the bracket that closes the one at `at`, outside of strings and comments; 0 where none does."""
    depth = 0
    for match in _SKIPPED[language].finditer(text, at):
        if match[0] in "{}":
            depth += 1 if match[0] == "{" else -1
            if not depth:
                return match.end()
    return 0
