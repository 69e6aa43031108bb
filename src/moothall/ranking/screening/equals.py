"""Whether a patch says itself what its values are equal to, near to or hold. Pure.

Where no expectation of a test can be changed, nothing else than that may be what it holds by.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from moothall.ranking.syntax.diffs import FileDiff, file_diffs

_LINE = 160
_PYTHON = (
    r"__(?:eq|ne|lt|le|gt|ge|contains|bool|r?(?:sub|mod|truediv|floordiv|xor)|instancecheck|subclasscheck|subclasshook)__"
    r"|^\s*class\s+\w+\s*\((?:[^()]*,\s*)?(?:str|bytes|int|float|complex|list|tuple|dict|set|frozenset)\s*\)|\bInitVar\b|\b(?:compare|eq)\b[\"\x27]?\s*[=:]\s*False"
)
_SCRIPT = (
    r"Symbol\.hasInstance|asymmetricMatch|\bextends\s+(?:String|Number|Array|Boolean|Date|RegExp|Map|Set)\b|\bnew Proxy\b"
    r"|\b(?:includes|startsWith|endsWith|indexOf|match|search|some|every)\s*(?::\s*(?:function\b|\([^()\n]*\)\s*=>|\w+\s*=>)|\([^()\n]*\)\s*\{)"
)
_EQUALS = {
    **dict.fromkeys((".py", ".pyi"), re.compile(_PYTHON)),
    ".go": re.compile(r"\)\s+(?:Equal|Is|Compare|Cmp)\("),
    ".rs": re.compile(
        r"\bimpl\b(?:[^{]{0,2000}\b(?:Partial(?:Eq|Ord)|Sub)\b|[^{]{2000})|\bfn (?:eq|ne|partial_cmp|cmp|sub)\s*\("
    ),
    **dict.fromkeys((".js", ".mjs", ".cjs", ".jsx", ".ts", ".mts", ".cts", ".tsx"), re.compile(_SCRIPT)),
}
"""By ending, what a type has that says so."""
_RESULT = re.compile(
    r"(?:\bfn\s+(?P<name>\w+).*)?\)\s*->\s*(?P<kind>[^{]+?)\s*\{|^\s*(?:pub\s+)?type\s+(?P<alias>\w+)[^=]*=\s*(?P<of>[^;]+);"
)
"""What a function of Rust returns, or another name stands for."""


_METHOD = re.compile(r"^\s+def __\w+__\s*\(|\bfn (?:eq|ne|partial_cmp|cmp|sub)\s*\(|^func \([^()]*\) (?:Equal|Is|Compare|Cmp)\(")
"""The head of what is meant where a line within it is another."""


def says_what_is_equal(diff: str, own_tests: Iterable[str], base: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the first line that a diff adds by which a type of its own says what it is equal to, '' where none does; in Rust also one by
    which a function returns another type than before. `base`: the texts before, by which it is known what a line stands in.
    """
    tests = frozenset(own_tests)
    for part in (part for part in file_diffs(diff) if part.path.endswith(tuple(_EQUALS)) and part.path not in tests):
        equals = _EQUALS[part.path[part.path.rfind(".") :]]
        before = _results(part.removed) if part.path.endswith(".rs") else {}
        for number, line in part.added.items():
            another = any(before.get(name, {kind}) != {kind} for name, kinds in _results([line]).items() for kind in kinds)
            if another or equals.search(line):
                return f"{part.path}:{number}: {line.strip()[:_LINE]}"
        if part.new or part.path in base:
            for number, head in _heads(part, base.get(part.path, "")):
                if equals.search(head):
                    return f"{part.path}:{number}: {head.strip()[:_LINE]}"
    return ""


def _heads(part: FileDiff, before: str) -> Iterator[tuple[int, str]]:
    """Yield the heads of the methods in which lines are other ones."""
    added = part.added
    above: list[tuple[int, int, str]] = []  # what a line stands in: indent, number and text of each, outermost first
    for number, line in enumerate(part.apply(before).split("\n"), 1):
        if not line.strip():
            continue
        while above and above[-1][0] >= _indent(line):
            above.pop()
        if number in added:
            yield from ((at, head) for _, at, head in above if _METHOD.search(head))
        above.append((_indent(line), number, line))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _results(lines: Iterable[str]) -> dict[str, set[str]]:
    """What functions return and names stand for, by name."""
    found: dict[str, set[str]] = {}
    for match in filter(None, map(_RESULT.search, lines)):
        found.setdefault(match["name"] or match["alias"] or "", set()).add(match["kind"] or match["of"])
    return found
