"""Keys and passwords that a patch brings in parts: what its literals come to when they are joined.
Pure.

What certainly comes to one is told apart from what may: the first is refused, the second is shown
to a person. Neither tells the value.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from moothall.domain.secrets import holds_secret, scrub
from moothall.ranking.syntax.diffs import FileDiff, file_diffs
from moothall.ranking.syntax.folding import decodings, fold_strings

Clean = Callable[[str], str]
_LITERAL = r"\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|`(?:[^`\\]|\\.)*`"
_BETWEEN = r"(?:\s|\\\n|//[^\n]*\n|#[^\n]*\n|/\*.{0,200}?\*/)*"
_SUM = re.compile(
    rf"(?:{_LITERAL})(?:{_BETWEEN}(?:\+|\.\.?|<>|&|\|\||~|\+\+)?{_BETWEEN}(?:{_LITERAL}))+",
    re.DOTALL,
)
_ONE = re.compile(_LITERAL, re.DOTALL)
_ESCAPE = re.compile(r"\\x([0-9a-fA-F]{2})|\\u\{?([0-9a-fA-F]{2,6})\}?|\\(.)", re.DOTALL)
_WORD = re.compile(r"[A-Za-z0-9+/_-]{16,4000}={0,2}")
_SHORT = re.compile(r"[A-Za-z0-9._~+/=:@-]{1,4000}")
_TEXT, _WORDS, _SHOWN = 1_000_000, 2000, 20


@dataclass(frozen=True, slots=True)
class JoinedSecrets:
    """Lines, as `path:number`, whose literals come to a key or password, and those that may."""

    certain: tuple[str, ...] = ()
    doubtful: tuple[str, ...] = ()


def joined_secrets(
    diff: str, base: Mapping[str, str], tests: Iterable[str], clean: Clean = scrub
) -> JoinedSecrets:
    """Return what a diff brings that was not there before. `base` are the texts of changed files
    before: of one that is not given, what the diff shows of it is read. `clean` takes secrets out
    of a text, the operator's own among them.

    In `tests` a key of a known shape that is made of parts is doubtful only: they show what looks
    like one. So is what takes more than
    joining: an encoded or reversed word, and the literals of a file's new lines one after the
    other, whatever stands between.
    """
    own, certain, doubtful = frozenset(tests), list[str](), list[str]()

    def note(path: str, number: int, text: str, *, sure: bool) -> None:
        known = holds_secret(text, clean) and not holds_secret(
            text, scrub
        )  # a value of the operator's
        (certain if known or (sure and path not in own) else doubtful).append(f"{path}:{number}")

    for part in file_diffs(diff):
        before, after = _texts(part, base)
        there = {text for text, _ in _sums(part.path, before)}
        for text, number in _sums(part.path, after):
            if text not in there and holds_secret(text, clean):
                note(part.path, number, text, sure=True)
        added = part.added
        for number, line in added.items():
            if line.strip() not in before:
                for text in _decode_words(line):
                    if holds_secret(text, clean):
                        note(part.path, number, text, sure=False)
        pieces = [_value(match[0]) for line in added.values() for match in _ONE.finditer(line)]
        together = "".join(piece for piece in pieces if _SHORT.fullmatch(piece))
        if holds_secret(together, clean) and not any(
            holds_secret(piece, clean) for piece in pieces
        ):
            note(part.path, min(added, default=0), together, sure=False)
    sure = tuple(dict.fromkeys(certain))[:_SHOWN]
    return JoinedSecrets(
        sure, tuple(line for line in dict.fromkeys(doubtful) if line not in sure)[:_SHOWN]
    )


def _texts(part: FileDiff, base: Mapping[str, str]) -> tuple[str, str]:
    if part.new or part.path in base:
        before = base.get(part.path, "")
        return before[:_TEXT], part.apply(before)[:_TEXT]
    lines = part.body[:_TEXT].split("\n")
    return tuple(
        "\n".join("" if line[:1] == "@" else line[1:] for line in lines if line[:1] != sign)
        for sign in "+-"
    )  # type: ignore[return-value]  # two


def _sums(path: str, text: str) -> Iterator[tuple[str, int]]:
    """Yield what the literals of a file come to where they are joined, with its line."""
    found = fold_strings(text) if path.endswith((".py", ".pyi")) else {}
    yield from found.items()
    if not found:
        for match in islice(_SUM.finditer(text), _WORDS):
            yield (
                "".join(_value(one[0]) for one in _ONE.finditer(match[0])),
                text.count("\n", 0, match.start()) + 1,
            )


def _decode_words(line: str) -> Iterator[str]:
    for match in islice(_WORD.finditer(line), _WORDS):
        yield from decodings(match[0])


def _value(literal: str) -> str:
    """Return what stands between the quotes."""

    def one(match: re.Match[str]) -> str:
        code = match[1] or match[2]
        return (
            match[3] if not code else chr(int(code, 16)) if int(code, 16) <= sys.maxunicode else ""
        )

    return _ESCAPE.sub(one, literal[1:-1])
