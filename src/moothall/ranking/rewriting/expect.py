"""Tests of Go, Rust and JavaScript that want another value than they did: of calls and comparisons that cannot be passed over. Pure.

Changed is a whole number or a plain text that something is compared with in the outermost block of a test, or in each round of a loop over a
table, with nothing before it that could leave the test early: an honest answer that is green with the one value is red with the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from moothall.ranking.rewriting.tables import expected_cells
from moothall.ranking.syntax.statements import arguments, is_outermost

_LITERAL = re.compile(
    r'\s*(?:(?P<number>-?(?:0|[1-9][0-9]{0,8}))(?P<kind>[iu](?:8|16|32|64|128|size))?|(?P<quote>["\'])(?P<text>(?:(?!(?P=quote))[^\\\n{}])*)(?P=quote))\s*'
)
_EARLY = re.compile(r"\breturn\b|\b[sS]kip\w*\b|\bgoto\b|\bexit\b|\bExit\b|\bplan\b")
_CALLS = {
    ".rs": re.compile(r"\bassert_eq!\s*\("),
    ".go": re.compile(r"\b(?:assert|require)\.(?:Equal|EqualValues)\("),
    "": re.compile(r"(?<![.\w])assert\.(?:strictEqual|equal|deepStrictEqual|deepEqual)\(|(?<![.\w])expect\("),
}
_MATCHER = re.compile(r"\s*\.(?:toBe|toEqual|toStrictEqual|to\.equal|to\.eql|to\.be)\(")
_IF = re.compile(
    r"\bif (?:[^;{}\n]+; *)?[^;{}\n&|]+ != (?P<literal>-?[0-9]+|\"[^\"\\\n]*\") *\{\s*\w+\.(?:Fatalf?|Errorf?|Fail|FailNow)\("
)


def expect_other(ending: str, body: str, word: str, number: int, *, sure: bool = False) -> str:
    """Return the body of a test with other expectations, '' where none can be changed. `ending` is the file's: .go, .rs, else a script's.
    `sure`: not where 0 or 1 is expected of an operator, which may give that for all.
    """
    ending = ending if ending in _CALLS else ""
    early = _EARLY.search(body)
    until = early.start() if early else len(body)
    found = {*_literals(ending, body, until, sure=sure), *expected_cells(ending, body, until, _LITERAL)}
    places = sorted((place for place in found if _LITERAL.fullmatch(body, *place)), reverse=True)
    text = body
    for start, end in places:
        text = text[:start] + _other(text[start:end], word, number) + text[end:]
    return text if places else ""


def _other(literal: str, word: str, number: int) -> str:
    found = _LITERAL.fullmatch(literal)
    if found is None:
        raise AssertionError("only literals are changed")
    if found["number"]:
        return literal.replace(found["number"], str(int(found["number"]) + number), 1)
    return literal.replace(f"{found['quote']}{found['text']}", f"{found['quote']}{found['text']}{word}", 1)


def _is_rest(body: str, wanted: Sequence[tuple[int, int]]) -> bool:
    said = [body[slice(*each)].strip() for each in wanted]
    return any(re.fullmatch(r"[01](?:[iu]\w+)?", each) for each in said) and any(
        re.search(r"[-%^/]\s*[\d._]+(?:[iu]\w+)?$|^[\d._]+(?:[iu]\w+)?\s*[-%^/]", each) for each in said
    )


def _literals(ending: str, body: str, until: int, *, sure: bool) -> Iterator[tuple[int, int]]:
    for match in _CALLS[ending].finditer(body, 0, until):
        if not is_outermost(ending, body, match.start()):
            continue
        given = list(arguments(ending, body, match.end() - 1))
        after = given[-1][1] + 1 if given else 0
        if "expect" in match[0]:
            matcher = _MATCHER.match(body, after)
            given = list(arguments(ending, body, matcher.end() - 1)) if matcher else []
            wanted = given[:1] if len(given) == 1 else []
        elif ending == ".go":
            wanted = given[1:3] if len(given) >= 3 else []  # noqa: PLR2004 - t, the expected and the actual
        else:
            wanted = given[:2] if len(given) >= 2 else []  # noqa: PLR2004 - two that are compared; a message may follow
        if sure and _is_rest(body, wanted):
            continue
        plain = [(start, end) for start, end in wanted if _LITERAL.fullmatch(body, start, end)]
        yield from plain[-1:] if len(plain) < len(wanted) or "expect" in match[0] else ()
    if ending == ".go":
        for match in _IF.finditer(body, 0, until):
            if is_outermost(ending, body, match.start()):
                yield match.span("literal")
