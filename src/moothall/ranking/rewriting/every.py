"""Tests of Go, Rust and JavaScript that assert the opposite of all that they do, wherever it stands: in what they hand over, in branches and
loops, too. Who is green then is asked nothing. Pure.
"""

from __future__ import annotations

import re

from moothall.ranking.rewriting.tables import GO_FAILS
from moothall.ranking.syntax.statements import arguments

_OPPOSITE = {
    "strictEqual": "notStrictEqual",
    "equal": "notEqual",
    "deepStrictEqual": "notDeepStrictEqual",
    "deepEqual": "notDeepEqual",
    "match": "doesNotMatch",
    "throws": "doesNotThrow",
    "rejects": "doesNotReject",
    "Equal": "NotEqual",
    "eq": "ne",
    "ne": "eq",
}
_NAMED = {
    ".go": re.compile(r"\b(?P<before>(?:assert|require)\.)(?P<name>Equal)(?=\()"),
    ".rs": re.compile(r"\b(?P<before>assert_)(?P<name>eq|ne)(?=!\s*\()"),
    "": re.compile(
        r"(?<![.\w])(?P<before>assert\.)(?P<name>strictEqual|equal|deepStrictEqual|deepEqual|match|throws|rejects)(?=\()"
    ),
}
_TRUE = {
    ".go": re.compile(r"(?!)"),
    ".rs": re.compile(r"\bassert!\s*(?=\()"),
    "": re.compile(
        r"(?<![.\w])assert(?:\.ok)?(?=\()|(?<![.\w])if (?=\([^{}\n]{0,500}\) {0,9}\{?\s{0,99}(?:throw\b|assert\.fail\())"
    ),
}
_FAILS = {
    ".go": re.compile(
        rf"\bif (?:[^;\n]{{1,500}}; {{0,9}})?(?P<asked>[^;\n]{{1,500}}?) {{0,9}}\{{(?:\s{{0,99}}if (?P<which>[^;{{}}\n]{{1,500}}?) {{0,9}}\{{)?\s{{0,99}}{GO_FAILS}"
    ),
    ".rs": re.compile(r"\bif (?!let\b)(?P<asked>[^;{}\n]{1,500}?) {0,9}\{\s{0,99}panic!"),
    "": re.compile(r"(?!)"),
}
_ELSE_FAILS = re.compile(rf"\)\s{{0,99}}\}} else {{0,9}}\{{\s{{0,99}}{GO_FAILS}")
_EXPECT = re.compile(r"(?<![.\w])expect(?=\()")


def assert_opposite(ending: str, body: str) -> str:
    """Return the body of a test that asserts the opposite, '' where it asserts nothing that is known."""
    ending = ending if ending in _NAMED else ""
    edits: list[tuple[int, int, str]] = [(*m.span("name"), _OPPOSITE[m["name"]]) for m in _NAMED[ending].finditer(body)]
    spans = [span for match in _FAILS[ending].finditer(body) if (span := _asked(ending, body, match)) is not None]
    for match in _TRUE[ending].finditer(body):
        spans += [at for at in list(arguments(ending, body, match.end()))[:1] if body[slice(*at)].strip() != "false"]
    for start, end in spans:
        edits += [(start, start, "!("), (end, end, ")")]
    for match in _EXPECT.finditer(body) if not ending else ():
        given = list(arguments(ending, body, match.end()))
        at = given[-1][1] + 1 if given else 0
        if body[at : at + 1] == ".":
            edits.append((at, at + 5, ".") if body.startswith(".not.", at) else (at, at, ".not"))
    for start, end, text in sorted(edits, reverse=True):
        body = body[:start] + text + body[end:]
    return body if edits else ""


def _asked(ending: str, body: str, match: re.Match[str]) -> tuple[int, int] | None:
    """Return where that stands which says whether a test fails here, None where it says in which words alone: what is behind `else` fails too."""
    if ending != ".go":
        return match.span("asked")
    given = list(arguments(ending, body, match.end() - 1))
    either = _ELSE_FAILS.match(body, given[-1][1] if given else match.end())
    if match["which"]:
        return match.span("asked" if either else "which")
    return None if either else match.span("asked")
