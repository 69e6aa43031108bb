"""Tests in other words, for a counter-proof. Pure.

`neutral` means the same, `end` runs the body and then fails, `expect` wants other values than the test does. The first two have
the same shape and differ by a number alone, so that telling them apart takes running them. Names and numbers come from a seed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal

from moothall.domain.ids import digest
from moothall.ranking.rewriting.every import assert_opposite
from moothall.ranking.rewriting.expect import expect_other
from moothall.ranking.rewriting.python import FURTHER, rewrite_python
from moothall.ranking.syntax.brackets import bracket_end
from moothall.ranking.syntax.statements import arguments

Kind = Literal["neutral", "end", "expect"]
Form = Literal["", "again", "plain", "sure", "still", "every", "near"]
"""How other expectations are written: `again` with other values yet, `plain` with such as are equal to nothing, and only where `==` is asked,
`sure` with other values only, and nowhere the opposite of what is asserted, which is red whatever is equal to what. `still`
has the lines of `neutral`, and asserts nothing more (Python alone). `every` wants another value wherever one is wanted, also in functions that
the test hands over, in branches and in loops: who is green then is asked nothing. `near` (Python alone) asks whether what is equal to
what is expected is equal to what is near to that, too: it stays green where it is not.
"""
FORMS: tuple[Form, Form] = ("again", "plain")
KINDS: tuple[Kind, ...] = ("neutral", "end", "expect")
_REMARK = re.compile(r"[ \t]*(?://|\*)")
_LONGEST = 20_000  # characters of a body: a seat may have written it, and finding what it expects takes the square of that
_PARAMETERS = re.compile(r"\[.*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class CasePlace:
    """Where a case is written: a file, and the names that lead to it there. `case` is what a rewriting is seen by."""

    path: str
    names: tuple[str, ...]
    case: str


def places(case: str, files: Sequence[str]) -> Iterator[CasePlace]:
    """Yield where a case may be written, by what its runner calls it."""
    head, mark, rest = case.partition("::")
    if not mark:
        yield from _dotted_places(case, files)
    elif head.endswith(".py"):
        names = tuple(_PARAMETERS.sub("", rest).split("::"))
        yield from (CasePlace(path, names, case) for path in files if path == head or path.endswith(f"/{head}"))
    elif " " in head and (path := head.rpartition(" ")[2]).endswith(".rs"):
        yield from _rust_files(head, path, rest, case, files)
    elif re.search(r"\.[cm]?[jt]sx?$", head):
        yield from (
            CasePlace(path, (rest.rpartition(" > ")[2],), case) for path in files if path == head or path.endswith(f"/{head}")
        )
    else:
        name = rest.partition("/")[0]
        yield from (CasePlace(path, (name,), f"{head}::{name}") for path in _go_files(head, files))


def _go_files(package: str, files: Sequence[str]) -> Sequence[str]:
    """Return the test files of a package: its folder is the end of its name, below a go.work perhaps within another."""
    parts = package.split("/")
    tests = [path for path in files if path.endswith("_test.go")]
    for folder in ("/".join(parts[at:]) for at in range(len(parts) + 1)):
        if inside := [path for path in tests if path.rpartition("/")[0] == folder]:
            return inside
    for end in ("/".join(parts[at:]) for at in range(len(parts))):
        inside = [path for path in tests if path.rpartition("/")[0].endswith(f"/{end}")]
        if len({path.rpartition("/")[0] for path in inside}) == 1:
            return inside
    return ()


def _dotted_places(case: str, files: Sequence[str]) -> Iterator[CasePlace]:
    parts = case.split(".")
    for at in range(len(parts) - 1, 0, -1):
        end = "/".join(parts[:at]) + ".py"
        for path in files:
            if path == end or path.endswith(f"/{end}"):
                yield CasePlace(path, tuple(parts[at:]), case)


def _rust_files(head: str, path: str, rest: str, case: str, files: Sequence[str]) -> Iterator[CasePlace]:
    names = rest.partition(" #")[0].split("::")
    folder = path.rpartition("/")[0]
    modules = ["/".join([folder, *names[:at]]) for at in range(1, len(names))]
    wanted = [path, *(f"{module}{end}" for module in modules for end in (".rs", "/mod.rs"))]
    # In the innermost of these files: another test of that name may stand in those above.
    yield from [CasePlace(each, (names[-1],), case) for each in wanted if each in files and head][-1:]


def holds(place: CasePlace, text: str) -> bool:
    """Whether a file seems to have the test that is looked for there."""
    name = place.names[-1]
    said = {".py": f"def {name}(", ".go": f"func {name}("}.get(place.path[place.path.rfind(".") :], name)
    return said in text


def rewrite(
    path: str, text: str, targets: AbstractSet[tuple[str, ...]], kind: Kind, seed: str, *, form: Form = ""
) -> tuple[str, frozenset[tuple[str, ...]]]:
    """Return the text of a test file with the tests `targets` in other words, and those that could be."""
    word, short = _words(seed)
    number = len(word) + (0 if kind == "neutral" else 1 + len(short) % 3)
    if path.endswith(".py"):
        return rewrite_python(text, targets, kind, word=word, name=f"_{short}", number=number, form=form)
    if form == "near":
        return text, frozenset()
    number += FURTHER if form else 0
    done: set[tuple[str, ...]] = set()
    ending = path[path.rfind(".") :]
    write = {".go": _go, ".rs": _rust}.get(ending, _script)
    for target in sorted(targets):
        if kind == "expect":
            start, end = _body(ending, text, target[-1])
            body = text[start:end]
            if len(body) > _LONGEST:
                continue
            other = assert_opposite(ending, body) if form == "every" else expect_other(ending, body, word, number, form)
            made = text[:start] + other + text[end:] if other else ""
        else:
            made = write(text, target[-1], word, f"{short}Length" if write is not _rust else f"{short}_length", number)
        if made:
            text = made
            done.add(target)
    return text, frozenset(done)


def _words(seed: str) -> tuple[str, str]:
    letters = [chr(ord("a") + int(char, 16)) for char in digest("rewrite", seed)]
    size = 4 + ord(letters[0]) % 9
    return "".join(letters[1 : 1 + size]), "".join(letters[20 : 25 + ord(letters[19]) % 4])


def _body(ending: str, text: str, test: str) -> tuple[int, int]:
    """Return where the body of a test stands, within its brackets; nowhere where there is none, or more than one."""
    if ending not in {".go", ".rs"}:
        return _script_body(text, test)
    found = (_find_rust if ending == ".rs" else _find_go)(text, test)
    end = bracket_end(text, found[0].end() - 1, "rust" if ending == ".rs" else "script") if len(found) == 1 else 0
    return (found[0].end(), end - 1) if end else (0, 0)


def _find_go(text: str, test: str) -> list[re.Match[str]]:
    return list(re.finditer(rf"(?m)^func {re.escape(test)}\((\w+) \*testing\.T\) *\{{", text))


def _go(text: str, test: str, word: str, name: str, number: int) -> str:
    found = _find_go(text, test)
    if len(found) != 1 or found[0][1] == "_":
        return ""
    at = found[0].end()
    more = f' {name} := len("{word}"); defer func() {{ if {name} != {number} {{ {found[0][1]}.Errorf("it is %d", {name}) }} }}();'
    return text[:at] + more + text[at:]


def _find_rust(text: str, test: str) -> list[re.Match[str]]:
    pattern = rf"(?P<marks>(?:#\[[^\]]*\]\s*)+)(?:pub(?:\([^)]*\))? +)?fn +{re.escape(test)} *\( *\) *(?P<result>->[^{{;]*)?\{{"
    found = _in_code(text, pattern)
    if (
        len(found) != 1
        or not re.search(r"#\[test\]", found[0]["marks"])
        or "should_panic" in found[0]["marks"]
        or "impl " in (found[0]["result"] or "")
    ):
        return []
    return found


def _rust(text: str, test: str, word: str, name: str, number: int) -> str:
    found = _find_rust(text, test)
    if not found:
        return ""
    start, end = found[0].end(), bracket_end(text, found[0].end() - 1, "rust")
    if not end:
        return ""
    result = f"{(found[0]['result'] or '').strip()} "
    body = text[start : end - 1]
    made = f' let {name} = (|| {result}{{{body}}})(); assert_eq!("{word}".len(), {number}); {name} '
    return text[:start] + made + text[end - 1 :]


def _spell_check(text: str, name: str, number: int) -> str:
    """How a script says that a number is another, in the words of its own tests: a patch may have replaced these."""
    # Not `t.assert`, which a plan counts, and only where the file has the name.
    if re.search(r"(?<![.\w])assert\.(?:strictEqual|equal)\(", text) and re.search(
        r"(?:const|let|var|import)\s[^;\n]*\bassert\b", text
    ):
        return f"assert.{'strictEqual' if 'assert.strictEqual(' in text else 'equal'}({name}, {number})"
    if re.search(r"(?<![.\w])expect\([^\n]*\)\.toBe\(", text):
        return f"expect({name}).toBe({number})"
    if re.search(r"(?<![.\w])expect\([^\n]*\)\.to\.equal\(", text):
        return f"expect({name}).to.equal({number})"
    return f'if ({name} !== {number}) throw new Error("it is " + {name})'


def _script_body(text: str, title: str) -> tuple[int, int]:
    """Return where the body of a test of Node's runner, mocha, jest or vitest stands: in brackets, or one expression behind an arrow."""
    call = (
        rf"\b(?:test|it|specify)\s*\(\s*(?P<quote>['\"`]){re.escape(title)}(?P=quote)\s*,\s*(?:\{{[^{{}}]*\}}\s*,\s*)?"
        r"(?:async\b\s*)?(?:function\b\s*\w*\s*)?(?:\([^()]*\)|\w+)\s*(?:(?:=>)?\s*(?P<block>\{)|=>\s*(?!\{))"
    )
    found = _in_code(text, call)
    if len(found) != 1:
        return 0, 0
    start = found[0].end()
    if found[0]["block"]:
        end = bracket_end(text, start - 1, "script")
        return (start, end - 1) if end else (0, 0)
    given = arguments("", text, text.index("(", found[0].start()))
    return next(((start, end) for begin, end in given if begin <= start < end), (0, 0))


def _in_code(text: str, pattern: str) -> list[re.Match[str]]:
    """Return what is found, but for what stands in a line that is a remark."""
    found = re.finditer(pattern, text)
    return [match for match in found if not _REMARK.match(text, text.rfind("\n", 0, match.start()) + 1)]


def _script(text: str, title: str, word: str, name: str, number: int) -> str:
    start, end = _script_body(text, title)
    if not start:
        return ""
    block = text[:start].endswith("{")
    head = f' const {name} = "{word}".length; try {{' + ("" if block else " return ")
    tail = f"\n}} finally {{ {_spell_check(text, name, number)}; }} "
    made = head + text[start:end] + tail
    return text[:start] + (made if block else f"{{{made}}}") + text[end:]
