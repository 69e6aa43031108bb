"""Tests of Go, Rust and JavaScript that want another value than they did: of calls and comparisons that cannot be passed over. Pure.

Changed is a whole number or a plain text that something is compared with in the outermost block of a test, or in each round of a loop over a
table, with nothing before it that could leave the test early: an honest answer that is green with the one value is red with the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from moothall.ranking.rewriting.tables import GO_FAILS, SMALL, expected_cells
from moothall.ranking.syntax.statements import arguments, is_outermost

_LITERAL = re.compile(
    r'\s*(?:(?P<number>-?(?:[0-9]{1,5}\.[0-9]+|0|[1-9][0-9]{0,8}))(?P<kind>[iu](?:8|16|32|64|128|size))?|(?P<quote>["\'])(?P<text>(?:(?!(?P=quote))[^\\\n{}])*)(?P=quote))\s*'
)
_LARGEST = (127, 255, 32_767, 65_535)
"""Of the types of small numbers: a larger one could not be built."""
_HOLDER = re.compile(r"\b(?:assert|require) :?= (?P<made>(?:assert|require)\.New\()?")
"""How an object is made that has the test in it, and is not given it again: testify's is known."""
_EARLY = re.compile(r"\breturn\b|\b[sS]kip\w*\b|\bgoto\b|\bexit\b|\bExit\b|\bplan\b")
_CALLS = {
    ".rs": re.compile(r"\bassert_eq!\s*\("),
    ".go": re.compile(r"\b(?:assert|require)\.(?:Equal|EqualValues)\("),
    "": re.compile(r"(?<![.\w])(?:t\.)?assert\.(?:strictEqual|equal|deepStrictEqual|deepEqual)\(|(?<![.\w])expect\("),
}
_MATCHER = re.compile(r"\s*\.(?:toBe|toEqual|toStrictEqual|to\.be|to(?:\.be|\.deep){0,2}\.(?:equal|equals|eql|eqls|eq))\(")
_LEAF = r'(?P<leaf>-?(?:[0-9]{1,5}\.[0-9]+|[0-9]{1,9})\b|"[^"\\\n{}]*"|\'[^\'\\\n{}]\')'
_PARTS = {
    ".rs": re.compile(
        rf"{_LEAF}|[\s\[\](),&]|vec!|(?:Some|Ok|Err|None|true|false)\b|String::from|\.(?:to_string|to_owned|into)\(\)"
    ),
    ".go": re.compile(
        rf"(?:\w+|\"[^\"\\\n]*\")(?=:)|{_LEAF}|[\s\[\]{{}},:]|(?:map|string|bool|u?int(?:8|16|32|64)?|float(?:32|64)|byte|rune|any|interface|true|false|nil)\b"
    ),
    "": re.compile(
        rf"(?:[\w$]+|\"[^\"\\\n]*\"|'[^'\\\n]*')(?=\s*:)|{_LEAF[:-1]}|'[^'\\\n{{}}]*')|[\s\[\]{{}},:]|(?:true|false|null)\b"
    ),
}
"""Of what an expected list, table or the like is made where it is literals alone; its keys are none of its leaves."""
_IFS = {
    ".go": re.compile(
        rf"\bif (?:[^;{{}}\n]{{1,500}}; {{0,9}})?[^;{{}}\n&|]{{1,500}} != (?P<literal>-?[0-9]+|\"[^\"\\\n]*\") {{0,9}}\{{\s*{GO_FAILS}"
        rf"|\bif (?:[^;\n]{{1,500}}; {{0,9}})?math\.Abs\([^;\n&|]{{1,500}}?\s?-\s?(?P<near>[0-9.]+)\) >=? {SMALL} {{0,9}}\{{\s*{GO_FAILS}"
    ),
    ".rs": re.compile(rf"\bif \([^;{{}}\n|]{{1,500}} - (?P<near>[0-9.]+)\)\.abs\(\) >=? {SMALL} {{0,9}}\{{\s*panic!"),
    "": re.compile(
        rf"\bif \(Math\.abs\([^;{{}}\n&|]{{1,500}} - (?P<near>[0-9.]+)\) >=? {SMALL}\) {{0,9}}\{{?\s*(?:throw\b|assert\.fail\()"
        rf"|(?<![.\w])assert(?:\.ok)?\(!\(Math\.abs\([^;{{}}\n&|]{{1,500}} - (?P<denied>[0-9.]+)\) >=? {SMALL}\)"
    ),
}
"""What fails where something is not what is expected: a value that is no number is not farther from one than from another."""


def expect_other(ending: str, body: str, word: str, number: int, form: str = "") -> str:
    """Return the body of a test with other expectations, '' where none can be changed. `ending` is the file's: .go, .rs, else a script's.
    In the form `sure` not where 0 or 1 is expected of an operator, which may give that for all.
    """
    ending = ending if ending in _CALLS else ""
    early = _EARLY.search(body)
    until = early.start() if early else len(body)
    found = {*_literals(ending, body, until, sure=form == "sure"), *expected_cells(ending, body, until, _LITERAL)}
    places = sorted((place for place in found if _is_literal(ending, body, *place)), reverse=True)
    text = body
    for start, end in places:
        text = text[:start] + _other(ending, text[start:end], word, number, turned=not form) + text[end:]
    return text if places else ""


def _other(ending: str, literal: str, word: str, number: int, *, turned: bool) -> str:
    """Return another value; of a text one that is as long and has the same letters, where it is to be `turned`. What Go and Rust have in
    single quotes is one character.
    """
    found = _LITERAL.fullmatch(literal)
    if found is None:
        raise AssertionError("only literals are changed")
    if said := found["number"]:
        if "." in said:
            return literal.replace(said, str(float(said) + number), 1)
        value = int(said)
        too_large = any(value <= most < value + number for most in _LARGEST)
        return literal.replace(said, str(value - number if too_large else value + number), 1)
    quote, said = found["quote"], found["text"]
    if quote == "'" and ending:
        return literal.replace(f"'{said}'", f"'{'k' if said == 'j' else 'j'}'", 1)
    other = said[::-1] if turned and said != said[::-1] else said + word
    return literal.replace(quote + said, quote + other, 1)


def _of_testify(body: str, given: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the expected and the actual; none where what it is told of may be another than the test."""
    if holder := _HOLDER.search(body):
        return given[:2] if holder["made"] else []
    test = body[slice(*given[0])].strip() if given else ""
    own = test.isidentifier() and not re.search(rf"\b{test}\b *:?=", body)
    return given[1:3] if own and len(given) >= 3 else []  # noqa: PLR2004 - t, the expected and the actual


def _is_rest(body: str, wanted: Sequence[tuple[int, int]]) -> bool:
    said = [body[slice(*each)].strip() for each in wanted]
    return any(re.fullmatch(r"[01](?:[iu]\w+)?", each) for each in said) and any(
        re.search(r"[-%^/]\s*[\d._]+(?:[iu]\w+)?$|^[\d._]+(?:[iu]\w+)?\s*[-%^/]", each) for each in said
    )


def _is_literal(ending: str, body: str, start: int, end: int) -> bool:
    found = _LITERAL.fullmatch(body, start, end)
    return found is not None and not (ending and found["quote"] == "'" and len(found["text"]) != 1)


def _literal_of(ending: str, body: str, start: int, end: int) -> tuple[int, int] | None:
    """Return where the literal stands that an argument is, or the first within it; None where it is anything but literals."""
    if _is_literal(ending, body, start, end):
        return start, end
    at, leaf = start, None
    while at < end:
        part = _PARTS[ending].match(body, at, end)
        if part is None:
            return None
        leaf = leaf or (part.span() if part["leaf"] else None)
        at = part.end()
    return leaf


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
            wanted = _of_testify(body, given)
        else:
            wanted = given[:2] if len(given) >= 2 else []  # noqa: PLR2004 - two that are compared; a message may follow
        if sure and _is_rest(body, wanted):
            continue
        plain = [place for given in wanted if (place := _literal_of(ending, body, *given)) is not None]
        yield from plain[-1:] if len(plain) < len(wanted) or "expect" in match[0] else ()
    for match in _IFS[ending].finditer(body, 0, until):
        if is_outermost(ending, body, match.start()):
            yield next(match.span(name) for name, said in match.groupdict().items() if said)
