"""Whether a patch says itself what its values are equal to, near to or hold. Pure.

Where no expectation of a test can be changed, nothing else than that may be what it holds by.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from moothall.ranking.patched import file_diffs

_LINE = 160
_CODE = (".py", ".pyi", ".go", ".rs", ".js", ".mjs", ".cjs", ".jsx", ".ts", ".mts", ".cts", ".tsx")
_EQUALS = re.compile(
    r"__(?:eq|ne|lt|le|gt|ge|contains|bool|sub|rsub|instancecheck|subclasscheck|subclasshook)__|Symbol\.hasInstance"
    r"|^\s*class\s+\w+\s*\((?:[^()]*,\s*)?(?:str|bytes|int|float|complex|list|tuple|dict|set|frozenset)\s*\)|\bimpl\b[^{]*\b(?:Partial(?:Eq|Ord)|Sub)\b|\bfn (?:eq|ne|partial_cmp|cmp|sub)\s*\("
    r"|\)\s+(?:Equal|Is|Compare|Cmp)\(|asymmetricMatch|\bcompare=False"
    r"|\bextends\s+(?:String|Number|Array|Boolean|Date|RegExp|Map|Set)\b|\bnew Proxy\b"
    r"|\b(?:includes|startsWith|endsWith|indexOf|match|search|some|every)\s*(?::\s*(?:function\b|\([^()\n]*\)\s*=>|\w+\s*=>)|\([^()\n]*\)\s*\{)"
)
_RESULT = re.compile(
    r"(?:\bfn\s+(?P<name>\w+).*)?\)\s*->\s*(?P<kind>[^{]+?)\s*\{|^\s*(?:pub\s+)?type\s+(?P<alias>\w+)[^=]*=\s*(?P<of>[^;]+);"
)
"""What a function of Rust returns, or another name stands for."""


def says_what_is_equal(diff: str, own_tests: Iterable[str]) -> str:
    """Return the first line that a diff adds by which a type of its own says what it is equal to, '' where none does; in Rust also one by
    which a function returns another type than before.
    """
    tests = frozenset(own_tests)
    for part in (part for part in file_diffs(diff) if part.path.endswith(_CODE)):
        before = _results(part.removed) if part.path.endswith(".rs") else {}
        for number, line in part.added.items():
            another = any(before.get(name, {kind}) != {kind} for name, kinds in _results([line]).items() for kind in kinds)
            if part.path not in tests and (another or _EQUALS.search(line)):
                return f"{part.path}:{number}: {line.strip()[:_LINE]}"
    return ""


def _results(lines: Iterable[str]) -> dict[str, set[str]]:
    """What functions return and names stand for, by name."""
    found: dict[str, set[str]] = {}
    for match in filter(None, map(_RESULT.search, lines)):
        found.setdefault(match["name"] or match["alias"] or "", set()).add(match["kind"] or match["of"])
    return found
