"""Keys and passwords that a patch assembles from literals. Pure.

Certain findings are rejected; doubtful ones are shown to a person. Neither contains the value.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from moothall.domain.secrets import holds_secret, scrub
from moothall.ranking.syntax.diffs import FileDiff, file_diffs
from moothall.ranking.syntax.folding import decode_word, fold_strings

Redact = Callable[[str], str]
_LITERAL = r"\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|`(?:[^`\\]|\\.)*`"
_SEPARATOR = r"(?:\s|\\\n|//[^\n]*\n|#[^\n]*\n|/\*.{0,200}?\*/)*"
_CONCATENATION = re.compile(
    rf"(?:{_LITERAL})(?:{_SEPARATOR}(?:\+|\.\.?|<>|&|\|\||~|\+\+)?{_SEPARATOR}(?:{_LITERAL}))+",
    re.DOTALL,
)
_SINGLE_LITERAL = re.compile(_LITERAL, re.DOTALL)
_ESCAPE = re.compile(r"\\x([0-9a-fA-F]{2})|\\u\{?([0-9a-fA-F]{2,6})\}?|\\(.)", re.DOTALL)
_WORD = re.compile(r"[A-Za-z0-9+/_-]{16,4000}={0,2}")
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=:@-]{1,4000}")
_MAX_TEXT_CHARS = 1_000_000
_MAX_MATCHES = 2000
_MAX_FINDINGS = 20


@dataclass(frozen=True, slots=True)
class JoinedSecrets:
    """Findings, as `path:number`.

    certain: lines whose literals form a key or password.
    doubtful: lines whose literals may form one.
    """

    certain: tuple[str, ...] = ()
    doubtful: tuple[str, ...] = ()


def find_joined_secrets(
    diff: str, base: Mapping[str, str], tests: Iterable[str], redact: Redact = scrub
) -> JoinedSecrets:
    """Return the secrets that a diff assembles and that were not there before.

    base: the texts of changed files before the change. If one is missing, the lines in the diff are
    used.
    tests: test files, in which a known key shape is only doubtful, since tests show sample keys.
    redact: removes secrets, including the operator's own, from a text.

    A finding that needs more than concatenation is doubtful: an encoded or reversed word, and all
    new literals of a file joined.
    """
    test_files, certain, doubtful = frozenset(tests), list[str](), list[str]()

    def add_finding(path: str, number: int, text: str, *, is_certain: bool) -> None:
        is_operator_secret = holds_secret(text, redact) and not holds_secret(text, scrub)
        is_certain = is_operator_secret or (is_certain and path not in test_files)
        (certain if is_certain else doubtful).append(f"{path}:{number}")

    for part in file_diffs(diff):
        base_text, new_text = _base_and_new_text(part, base)
        base_strings = {text for text, _ in _concatenated_strings(part.path, base_text)}
        for text, number in _concatenated_strings(part.path, new_text):
            if text not in base_strings and holds_secret(text, redact):
                add_finding(part.path, number, text, is_certain=True)
        added = part.added
        for number, line in added.items():
            if line.strip() not in base_text:
                for text in _decode_words(line):
                    if holds_secret(text, redact):
                        add_finding(part.path, number, text, is_certain=False)
        literals = [
            _literal_value(match[0])
            for line in added.values()
            for match in _SINGLE_LITERAL.finditer(line)
        ]
        joined = "".join(literal for literal in literals if _TOKEN.fullmatch(literal))
        if holds_secret(joined, redact) and not any(
            holds_secret(literal, redact) for literal in literals
        ):
            add_finding(part.path, min(added, default=0), joined, is_certain=False)
    certain_lines = tuple(dict.fromkeys(certain))[:_MAX_FINDINGS]
    return JoinedSecrets(
        certain_lines,
        tuple(line for line in dict.fromkeys(doubtful) if line not in certain_lines)[
            :_MAX_FINDINGS
        ],
    )


def _base_and_new_text(part: FileDiff, base: Mapping[str, str]) -> tuple[str, str]:
    if part.new or part.path in base:
        before = base.get(part.path, "")
        return before[:_MAX_TEXT_CHARS], part.apply(before)[:_MAX_TEXT_CHARS]
    lines = part.body[:_MAX_TEXT_CHARS].split("\n")
    return tuple(
        "\n".join("" if line[:1] == "@" else line[1:] for line in lines if line[:1] != sign)
        for sign in "+-"
    )  # type: ignore[return-value]  # always two


def _concatenated_strings(path: str, text: str) -> Iterator[tuple[str, int]]:
    """Yield the strings that a file forms by concatenating literals, with their lines."""
    strings = fold_strings(text) if path.endswith((".py", ".pyi")) else {}
    yield from strings.items()
    if not strings:
        for match in islice(_CONCATENATION.finditer(text), _MAX_MATCHES):
            yield (
                "".join(
                    _literal_value(literal[0]) for literal in _SINGLE_LITERAL.finditer(match[0])
                ),
                text.count("\n", 0, match.start()) + 1,
            )


def _decode_words(line: str) -> Iterator[str]:
    for match in islice(_WORD.finditer(line), _MAX_MATCHES):
        yield from decode_word(match[0])


def _literal_value(literal: str) -> str:
    """Return the text of a literal without its quotes."""

    def replace_escape(match: re.Match[str]) -> str:
        code = match[1] or match[2]
        return (
            match[3] if not code else chr(int(code, 16)) if int(code, 16) <= sys.maxunicode else ""
        )

    return _ESCAPE.sub(replace_escape, literal[1:-1])
