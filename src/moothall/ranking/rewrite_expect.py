"""Tests of Go, Rust and JavaScript that want another value than they did: of calls and comparisons that cannot be passed over. Pure.

Changed is a whole number or a plain text that something is compared with in the outermost block of a test, with nothing before it that
could leave the test early: an honest answer that is green with the one value is red with the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_SKIPPED = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\])*"|`(?:\\.|[^`\\])*`|\'(?:\\.[^\'\n]{0,8}|[^\'\\\n])\'|[(){}\[\],]', re.DOTALL
)
_SCRIPT = re.compile(_SKIPPED.pattern.replace(r"\'(?:\\.[^\'\n]{0,8}|[^\'\\\n])\'", r"'(?:\\.|[^'\\\n])*'"), re.DOTALL)
_LITERAL = re.compile(
    r'\s*(?:(?P<number>-?(?:0|[1-9][0-9]{0,8}))(?P<kind>[iu](?:8|16|32|64|128|size))?|(?P<quote>["\'])(?P<text>[^"\'\\\n{}]*)(?P=quote))\s*'
)
_EARLY = re.compile(r"\breturn\b|\b[sS]kip\w*\b|\bgoto\b|\bexit\b|\bExit\b|\bplan\b")
_CONTROL = re.compile(r"\s*(?:\}?\s*else|if|for|while|do|with)\b")
_COMMENT = re.compile(r"\n[ \t]*//[^\n]*$")
_CALLS = {
    ".rs": re.compile(r"\bassert_eq!\s*\("),
    ".go": re.compile(r"\b(?:assert|require)\.(?:Equal|EqualValues)\("),
    "": re.compile(r"(?<![.\w])assert\.(?:strictEqual|equal|deepStrictEqual|deepEqual)\(|(?<![.\w])expect\("),
}
_MATCHER = re.compile(r"\s*\.(?:toBe|toEqual|toStrictEqual|to\.equal|to\.eql|to\.be)\(")
_IF = re.compile(
    r"\bif (?:[^;{}\n]+; *)?[^;{}\n&|]+ != (?P<literal>-?[0-9]+|\"[^\"\\\n]*\") *\{\s*\w+\.(?:Fatalf?|Errorf?|Fail|FailNow)\("
)


def expect_other(ending: str, body: str, word: str, number: int) -> str:
    """Return the body of a test with other expectations, '' where none can be changed. `ending` is the file's: .go, .rs, else a script's."""
    ending = ending if ending in _CALLS else ""
    early = _EARLY.search(body)
    places = sorted(set(_literals(ending, body, early.start() if early else len(body))), reverse=True)
    text = body
    for start, end in places:
        text = text[:start] + _other(text[start:end], word, number) + text[end:]
    return text if places else ""


def _other(literal: str, word: str, number: int) -> str:
    found = _LITERAL.fullmatch(literal)
    if found is None:
        return literal
    if found["number"]:
        return literal.replace(found["number"], str(int(found["number"]) + number), 1)
    return literal.replace(f"{found['quote']}{found['text']}", f"{found['quote']}{found['text']}{word}", 1)


def _literals(ending: str, body: str, until: int) -> Iterator[tuple[int, int]]:
    for match in _CALLS[ending].finditer(body, 0, until):
        if not _outermost(ending, body, match.start()):
            continue
        given = list(_arguments(ending, body, match.end() - 1))
        after = given[-1][1] + 1 if given else 0
        if "expect" in match[0]:
            matcher = _MATCHER.match(body, after)
            given = list(_arguments(ending, body, matcher.end() - 1)) if matcher else []
            wanted = given[:1] if len(given) == 1 else []
        elif ending == ".go":
            wanted = given[1:3] if len(given) >= 3 else []  # noqa: PLR2004 - t, the expected and the actual
        else:
            wanted = given[:2] if len(given) >= 2 else []  # noqa: PLR2004 - two that are compared; a message may follow
        plain = [(start, end) for start, end in wanted if _LITERAL.fullmatch(body, start, end)]
        yield from plain[-1:] if len(plain) < len(wanted) or "expect" in match[0] else ()
    if ending == ".go":
        for match in _IF.finditer(body, 0, until):
            if _outermost(ending, body, match.start()):
                yield match.span("literal")


def _outermost(ending: str, body: str, at: int) -> bool:
    """Whether a statement begins there, in no block and no bracket."""
    depth = 0
    for match in _skipped(ending).finditer(body):
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


def _arguments(ending: str, body: str, at: int) -> Iterator[tuple[int, int]]:
    """Yield where each argument of the call whose bracket opens at `at` stands; none where it does not close."""
    depth, start, found = 0, at + 1, list[tuple[int, int]]()
    for match in _skipped(ending).finditer(body, at):
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


def _skipped(ending: str) -> re.Pattern[str]:
    return _SKIPPED if ending else _SCRIPT
