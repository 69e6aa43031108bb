"""Whether a test that was red before, and still is, has to do with a change: then the change is wrong, else it may stay red. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

_VARYING = re.compile(r"0x[0-9a-f]+|\d+")
_WORD = re.compile(r"\w+")
_COMMON = frozenset({"index", "main", "lib", "mod", "test", "tests", "init", "__init__", "src", "spec", "util", "conftest"})
_ABOUT_TESTS = re.compile(
    r"\b(?:tests?|specs?|suite|checks?)\b[^.\n]{0,60}\b(?:fail\w*|pass\w*|red|green|broken|breaks?)\b"
    r"|\b(?:fail\w*|red|broken)\b[^.\n]{0,40}\b(?:tests?|specs?|suite|checks?)\b",
    re.IGNORECASE,
)
_SHORTEST = 3
_READ = 20_000


def concerns(case: str, before: str, after: str, changed: Sequence[str], task: str = "") -> bool:
    """Whether a case that stayed red concerns a change of the files `changed`: it says something else than `before`, or names
    one of the files, or its own name or place has the name of one; or the task names it, or speaks of tests that fail.
    """
    if _ABOUT_TESTS.search(task[:_READ]):
        return True
    before, after = before[:_READ], after[:_READ]
    if before and after and _VARYING.sub("", before) != _VARYING.sub("", after):
        return True
    said = frozenset(_WORD.findall(f"{case}\n{before}\n{after}"))
    words = {word for name in _WORD.findall(case) for word in (name, _bare(name))}
    for path in changed:
        name = path.rpartition("/")[2]
        stem = name.partition(".")[0]
        if (
            name in before
            or name in after
            or (len(stem) >= _SHORTEST and stem not in _COMMON and (stem in words or _bare(stem) in said))
        ):
            return True
    last = re.split(r"::| > |[./]", case.partition("[")[0])[-1]
    asked = set(_WORD.findall(task))
    return last in asked or (len(_bare(last)) > _SHORTEST and _bare(last) in asked)


def _bare(name: str) -> str:
    """A test's name without what says that it is one."""
    return re.sub(r"^(?:test_?|Test|Example|Fuzz)|_?[tT]ests?$", "", name) or name
