"""Suspicious lines of a patch, which a person or a reviewer should look at, found by a table of
patterns.

The result decides nothing. Code in the process of the tests can evade any pattern; see
docs/evidence.md.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from itertools import islice

from moothall.ranking.syntax.diffs import file_diffs

_PYTHON = (".py", ".pyi")
_SCRIPT = (".js", ".mjs", ".cjs", ".jsx", ".ts", ".mts", ".cts", ".tsx")
_MAX_MATCHES = 20
_MAX_LINE_CHARS = 2000
TABLE: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (
        _PYTHON,
        r"\b(?:pytest|_pytest|unittest|hypothesis|nose2?)\b(?=.*\bimport\b)|\bimport\b.*\b(?:pytest|unittest)\b",
        "imports a test runner",
    ),
    (_PYTHON, r"\bPYTEST_|\bsys\.argv\b|\bMOOTHALL_", "reads how it is run"),
    (
        _PYTHON,
        r"\bsys\.(?:modules|settrace|setprofile|_getframe|meta_path|path_hooks)\b|\binspect\.(?:stack|currentframe)\b",
        "reaches the interpreter's state",
    ),
    (
        _PYTHON,
        r"\b(?:f_back|f_locals|f_globals|tb_frame|gi_frame|__traceback__)\b",
        "walks the stack",
    ),
    (
        _PYTHON,
        r"\b(?:os\._exit|sys\.exit|atexit\.register|os\.kill|os\.abort)\b|\bfaulthandler\b",
        "ends the process or acts at its end",
    ),
    (
        _PYTHON,
        (
            r"\bdef "
            r"__(?:eq|ne|hash|bool|instancecheck|subclasscheck|class_getitem)__\b|\b__class__\s*="
        ),
        "changes what is equal or of which type",
    ),
    (
        _PYTHON,
        r"\b(?:builtins|__builtins__)\b|\bsetattr\(\s*\w+\s*,\s*['\"]__",
        "replaces builtins or special methods",
    ),
    (
        _PYTHON,
        r"\b(?:exec|eval|compile|__import__)\s*\(|\bimportlib\b|\bctypes\b|\bgc\.get_",
        "runs code that cannot be read here",
    ),
    (_PYTHON, r"\bunittest\.mock\b|\bmonkeypatch\b|\bpatch\(", "replaces parts of a program"),
    (
        _SCRIPT,
        r"\brequire\s*\(\s*['\"](?:node:)?(?:test|assert|module|vm|worker_threads|inspector)['\"]|\bfrom\s+['\"](?:node:)?(?:test|vm|module|inspector)['\"]",
        "loads a part of the test runner",
    ),
    (
        _SCRIPT,
        r"\bprocess\.(?:exit|argv|kill|abort|emit|on)\b|\bprocess\.env\.(?:NODE_ENV|JEST|VITEST|MOCHA|npm_)",
        "ends the process or reads how it is run",
    ),
    (
        _SCRIPT,
        r"\b(?:globalThis|global)\s*\.\s*\w+\s*=|\b(?:Object|Array|String|Promise|Error)\.prototype\b",
        "changes globals or built-in types",
    ),
    (
        _SCRIPT,
        r"\b(?:jest|vi|vitest|mocha|sinon)\b|(?<![\w$.])(?:describe|it|test|expect)(?:\.(?:each|only|skip|todo|concurrent))?\s*\(",
        "names a test runner",
    ),
    (
        _SCRIPT,
        (
            r"\beval\s*\(|\bnew "
            r"Function\b|\bSymbol\.(?:toPrimitive|hasInstance)\b|\bvalueOf\b|\bnew "
            r"Proxy\b"
        ),
        "hides what a value is, or runs text",
    ),
    (
        (".go",),
        r"^\s*(?:_\s+)?\"(?:testing|os/exec|unsafe|runtime/debug|plugin)\"|\bimport\s+\"(?:testing|unsafe)\"",
        "imports a package of tests or of the runtime",
    ),
    (
        (".go",),
        (
            r"\bos\.(?:Exit|Args)\b|\bruntime\.(?:Caller|Callers|Goexit)\b|\bfunc "
            r"init\(\)|\b//go:(?:linkname|embed)"
        ),
        "acts on the process, its caller or its build",
    ),
    (
        (".rs",),
        r"\bstd::process::(?:exit|abort)\b|\bstd::env::args\b|\bunsafe\b|\bcfg!?\(\s*(?:not\()?test\b|#\[cfg\(test\)\]",
        "acts on the process, or differs under test",
    ),
    (
        (".rs",),
        r"\bimpl(?:<[^>]*>)?\s+(?:\w+::)*PartialEq\b|\bstd::panic::(?:set_hook|catch_unwind)\b",
        "changes what is equal, or catches panics",
    ),
    (
        (),
        r"['\"][^'\"]*(?:test_|_test|\.spec\.|\.test\.|/tests?/|conftest|junit|\.snap\b)[^'\"]*['\"]",
        "names a file of the tests",
    ),
    (
        (),
        r"\b(?:expected|golden|fixture)s?\b.*['\"][^'\"]+\.(?:json|ya?ml|txt|golden|snap)['\"]",
        "names expected results",
    ),
)
"""File endings (none for every file), a pattern, and its possible meaning."""
_PATTERNS = tuple((endings, re.compile(pattern), why) for endings, pattern, why in TABLE)
_COMMENT = re.compile(r"^\s*(?:#(?!\[)|//(?!go:)|\*|/\*)")


def find_suspicious_lines(diff: str, own_tests: Collection[str]) -> tuple[str, ...]:
    """Return up to 20 added lines of code that match the table, as "path:line: why".

    Tests of the author are skipped.
    """
    return tuple(islice(_matches(diff, own_tests), _MAX_MATCHES))


def _matches(diff: str, own_tests: Collection[str]) -> Iterator[str]:
    for part in file_diffs(diff):
        if part.path in own_tests:
            continue
        for number, line in part.added.items():
            text = line[:_MAX_LINE_CHARS]
            if _COMMENT.match(text):
                continue
            for endings, pattern, why in _PATTERNS:
                if (not endings or part.path.endswith(endings)) and pattern.search(text):
                    yield f"{part.path}:{number}: {why}"
                    break
