"""Suspicious lines of a patch, which a person or a reviewer should look at, found by a table of
patterns. Keys and passwords that a patch assembles from literals.
"""

from __future__ import annotations

import ast
import base64
import binascii
import codecs
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from moothall.domain.text import holds_secret, scrub
from moothall.ranking.diffs import FileDiff, file_diffs

# Keys and passwords that a patch assembles from literals. Pure.
#
# Certain findings are rejected; doubtful ones are shown to a person. Neither contains the value.
#
# The strings of a Python module are folded without running it. Folding evaluates concatenation,
# f-strings, `format`, `%`, `join`, slices, names that are assigned once, base64, hexadecimal and
# character codes. An unknown part becomes a NUL, so that the parts around it are not joined.


UNKNOWN = "\0"
_MAX_STRING_CHARS = 20_000
_MAX_DEPTH = 60
_MAX_NODES = 50_000
_PLACEHOLDER = re.compile(r"\{([^{}!:]*)(?:![rsa])?(?::[^{}]*)?\}|%[sdr]")
_PASS_THROUGH_CALLS = frozenset(
    {"encode", "decode", "strip", "str", "bytes", "bytearray", "lstrip", "rstrip"}
)
_FOLDED_NODES = (ast.BinOp, ast.JoinedStr, ast.Call, ast.Subscript, ast.Constant)
Redact = Callable[[str], str]
_LITERAL = r"\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|`(?:[^`\\]|\\.)*`"
_SEPARATOR = r"(?:\s|\\\n|//[^\n]*\n|#[^\n]*\n|/\*.{0,200}?\*/)*"
_CONCATENATION = re.compile(
    rf"(?:{_LITERAL})(?:{_SEPARATOR}(?:\+|\.\.?|<>|&|\|\||~|\+\+)?{_SEPARATOR}(?:{_LITERAL}))+",
    re.DOTALL,
)
_SINGLE_LITERAL = re.compile(_LITERAL, re.DOTALL)
_ESCAPE = re.compile(r"\\x([0-9a-fA-F]{2})|\\u\{?([0-9a-fA-F]{2,6})\}?|\\(.)", re.DOTALL)
_WORD = re.compile(r"[A-Za-z0-9+/_-]{16,4000}={0,2}")
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=:@-]{1,4000}")
_MAX_TEXT_CHARS = 1_000_000
_MAX_MATCHES = 2000
_MAX_FINDINGS = 20


def _decode_base64(text: str) -> str:
    return base64.b64decode(
        text + "=" * (-len(text) % 4), altchars=b"-_" if {*"-_"} & {*text} else None
    ).decode("latin-1")


_DECODERS: Mapping[str, Callable[[str], str]] = {
    **dict.fromkeys(
        ("b64decode", "urlsafe_b64decode", "standard_b64decode", "decodebytes", "a2b_base64"),
        _decode_base64,
    ),
    **dict.fromkeys(
        ("fromhex", "unhexlify", "a2b_hex"), lambda text: bytes.fromhex(text).decode("latin-1")
    ),
}


def decode_word(text: str) -> Iterator[str]:
    """Yield the possible decodings of a word: base64, hexadecimal, and reversed."""
    for decode in (_decode_base64, _DECODERS["fromhex"]):
        with suppress(ValueError, binascii.Error):
            yield decode(text)
    yield text[::-1]


def fold_strings(source: str) -> dict[str, int]:
    """Return the strings that a module builds, each with its first line; {} if it cannot
    be parsed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
        folder = _ModuleFolder(tree)
        lines_by_string: dict[str, int] = {}
        for node in folder.nodes:
            if isinstance(node, _FOLDED_NODES) and (text := folder.text(node)).strip(UNKNOWN):
                lines_by_string.setdefault(text, node.lineno)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    return lines_by_string


class _ModuleFolder:
    """The names of one module that are assigned once, and the strings of its nodes."""

    def __init__(self, tree: ast.Module) -> None:
        self.nodes = list(islice(ast.walk(tree), _MAX_NODES))
        self._names: dict[str, ast.expr | None] = {}
        self._folded: dict[int, str] = {}
        for node in self.nodes:
            targets = (
                node.targets
                if isinstance(node, ast.Assign)
                else [node.target]
                if isinstance(node, ast.AnnAssign)
                else []
            )
            for target in targets:
                if isinstance(target, ast.Name):
                    self._names[target.id] = (
                        None if target.id in self._names else getattr(node, "value", None)
                    )

    def text(self, node: ast.AST, depth: int = 0) -> str:
        """Return the string of a node, with a NUL for each unknown part."""
        if id(node) not in self._folded:
            self._folded[id(node)] = UNKNOWN  # a name may refer to itself
            self._folded[id(node)] = (
                self._fold_string(node, depth + 1)[:_MAX_STRING_CHARS]
                if depth < _MAX_DEPTH
                else UNKNOWN
            )
        return self._folded[id(node)]

    def _fold_string(self, node: ast.AST, depth: int) -> str:  # noqa: PLR0911 - one return per kind of node
        match node:
            case ast.Constant(value=str(text)):
                return text
            case ast.Constant(value=bytes(data)):
                return data.decode("latin-1")
            case ast.Name(id=name) if (value := self._names.get(name)) is not None:
                return self.text(value, depth)
            case ast.JoinedStr(values=values):
                return "".join(self.text(value, depth) for value in values)
            case ast.FormattedValue(value=value):
                return self.text(value, depth)
            case ast.BinOp(op=ast.Add(), left=left, right=right):
                return self.text(left, depth) + self.text(right, depth)
            case ast.BinOp(op=ast.Mod(), left=left, right=right):
                return self._fill_placeholders(
                    self.text(left, depth),
                    right.elts if isinstance(right, ast.Tuple) else [right],
                    {},
                    depth,
                )
            case ast.Subscript(
                value=value,
                slice=ast.Slice(lower=None, upper=None, step=ast.UnaryOp(op=ast.USub())),
            ):
                return self.text(value, depth)[::-1]
            case ast.Call(func=func, args=args, keywords=keywords):
                return self._fold_call(
                    func, args, {word.arg: word.value for word in keywords if word.arg}, depth
                )
        return UNKNOWN

    def _fold_call(  # noqa: PLR0911 - as above
        self, func: ast.expr, args: Sequence[ast.expr], keywords: Mapping[str, ast.expr], depth: int
    ) -> str:
        name = (
            func.attr
            if isinstance(func, ast.Attribute)
            else func.id
            if isinstance(func, ast.Name)
            else ""
        )
        owner = func.value if isinstance(func, ast.Attribute) else None
        first_arg = args[0] if args else None
        if name == "join" and owner is not None and first_arg is not None:
            return self.text(owner, depth).join(self._fold_items(first_arg, depth))
        if name == "format" and owner is not None:
            return self._fill_placeholders(self.text(owner, depth), args, keywords, depth)
        if name == "replace" and owner is not None and len(args) > 1:
            return self.text(owner, depth).replace(
                self.text(args[0], depth), self.text(args[1], depth)
            )
        if name in _DECODERS and first_arg is not None:
            with suppress(ValueError, binascii.Error):
                return _DECODERS[name](self.text(first_arg, depth))
        elif name == "decode" and len(args) > 1 and "rot" in self.text(args[1], depth):
            return codecs.decode(self.text(args[0], depth), "rot13")
        elif name == "chr" and first_arg is not None:
            return _join_character_codes([first_arg])
        elif name in _PASS_THROUGH_CALLS:
            text = (
                self.text(owner, depth)
                if owner is not None and name not in {"str", "bytes"}
                else ""
            )
            return text or (
                "".join(self._fold_items(first_arg, depth)) if first_arg is not None else UNKNOWN
            )
        return UNKNOWN

    def _fold_items(self, node: ast.expr, depth: int) -> Iterator[str]:
        match node:
            case ast.Name(id=name) if (
                value := self._names.get(name)
            ) is not None and depth < _MAX_DEPTH:
                yield from self._fold_items(value, depth + 1)
            case ast.List(elts=items) | ast.Tuple(elts=items):
                numbers = _join_character_codes(items)
                yield from (
                    [numbers]
                    if numbers.strip(UNKNOWN)
                    else [self.text(item, depth) for item in items]
                )
            case ast.Call(func=ast.Name(id="reversed"), args=[inner]):
                yield from reversed(
                    "".join(self._fold_items(inner, depth))
                    if not isinstance(inner, ast.List)
                    else list(self._fold_items(inner, depth))
                )
            case (
                ast.Call(func=ast.Name(id="map"), args=[_, inner])
                | ast.GeneratorExp(generators=[ast.comprehension(iter=inner)])
            ):
                yield from self._fold_items(inner, depth)
            case ast.ListComp(generators=[ast.comprehension(iter=inner)]):
                yield from self._fold_items(inner, depth)
            case _:
                yield from self.text(node, depth)

    def _fill_placeholders(
        self, text: str, args: Sequence[ast.expr], keywords: Mapping[str, ast.expr], depth: int
    ) -> str:
        remaining = iter(args)

        def fold_field(match: re.Match[str]) -> str:
            name = match[1] or ""
            node = (
                args[int(name)]
                if name.isdigit() and int(name) < len(args)
                else keywords.get(name) or next(remaining, None)
            )
            return self.text(node, depth) if node is not None else UNKNOWN

        return _PLACEHOLDER.sub(fold_field, text)


def _join_character_codes(items: Sequence[ast.expr]) -> str:
    values = [
        item.value if isinstance(item, ast.Constant) and type(item.value) is int else -1
        for item in items
    ]
    return "".join(chr(value) if 0 < value <= sys.maxunicode else UNKNOWN for value in values)


@dataclass(frozen=True, slots=True)
class JoinedSecrets:
    """Findings, as `path:number`.

    certain: lines whose literals form a key or password.
    doubtful: lines whose literals may form one.
    """

    certain: tuple[str, ...] = ()
    doubtful: tuple[str, ...] = ()


def find_joined_secrets(
    diff: str, base: Mapping[str, str], tests: Iterable[str], redact: Redact = scrub
) -> JoinedSecrets:
    """Return the secrets that a diff assembles and that were not there before.

    base: the texts of changed files before the change. If one is missing, the lines in the diff are
    used.
    tests: test files, in which a known key shape is only doubtful, since tests show sample keys.
    redact: removes secrets, including the operator's own, from a text.

    A finding that needs more than concatenation is doubtful: an encoded or reversed word, and all
    new literals of a file joined.
    """
    test_files, certain, doubtful = frozenset(tests), list[str](), list[str]()

    def add_finding(path: str, number: int, text: str, *, is_certain: bool) -> None:
        is_operator_secret = holds_secret(text, redact) and not holds_secret(text, scrub)
        is_certain = is_operator_secret or (is_certain and path not in test_files)
        (certain if is_certain else doubtful).append(f"{path}:{number}")

    for part in file_diffs(diff):
        base_text, new_text = _base_and_new_text(part, base)
        base_strings = {text for text, _ in _concatenated_strings(part.path, base_text)}
        for text, number in _concatenated_strings(part.path, new_text):
            if text not in base_strings and holds_secret(text, redact):
                add_finding(part.path, number, text, is_certain=True)
        added = part.added
        for number, line in added.items():
            if line.strip() not in base_text:
                for text in _decode_words(line):
                    if holds_secret(text, redact):
                        add_finding(part.path, number, text, is_certain=False)
        literals = [
            _literal_value(match[0])
            for line in added.values()
            for match in _SINGLE_LITERAL.finditer(line)
        ]
        joined_literals = "".join(literal for literal in literals if _TOKEN.fullmatch(literal))
        if holds_secret(joined_literals, redact) and not any(
            holds_secret(literal, redact) for literal in literals
        ):
            add_finding(part.path, min(added, default=0), joined_literals, is_certain=False)
    certain_lines = tuple(dict.fromkeys(certain))[:_MAX_FINDINGS]
    return JoinedSecrets(
        certain_lines,
        tuple(line for line in dict.fromkeys(doubtful) if line not in certain_lines)[
            :_MAX_FINDINGS
        ],
    )


def _base_and_new_text(part: FileDiff, base: Mapping[str, str]) -> tuple[str, str]:
    if part.new or part.path in base:
        before = base.get(part.path, "")
        return before[:_MAX_TEXT_CHARS], part.apply(before)[:_MAX_TEXT_CHARS]
    lines = part.body[:_MAX_TEXT_CHARS].split("\n")
    return tuple(
        "\n".join("" if line[:1] == "@" else line[1:] for line in lines if line[:1] != sign)
        for sign in "+-"
    )  # type: ignore[return-value]  # always two


def _concatenated_strings(path: str, text: str) -> Iterator[tuple[str, int]]:
    """Yield the strings that a file forms by concatenating literals, with their lines."""
    strings = fold_strings(text) if path.endswith((".py", ".pyi")) else {}
    yield from strings.items()
    if not strings:
        for match in islice(_CONCATENATION.finditer(text), _MAX_MATCHES):
            yield (
                "".join(
                    _literal_value(literal[0]) for literal in _SINGLE_LITERAL.finditer(match[0])
                ),
                text.count("\n", 0, match.start()) + 1,
            )


def _decode_words(line: str) -> Iterator[str]:
    for match in islice(_WORD.finditer(line), _MAX_MATCHES):
        yield from decode_word(match[0])


def _literal_value(literal: str) -> str:
    """Return the text of a literal without its quotes."""

    def replace_escape(match: re.Match[str]) -> str:
        code = match[1] or match[2]
        return (
            match[3] if not code else chr(int(code, 16)) if int(code, 16) <= sys.maxunicode else ""
        )

    return _ESCAPE.sub(replace_escape, literal[1:-1])


# Suspicious lines of a patch, which a person or a reviewer should look at, found by a table of
# patterns.
#
# The result decides nothing. Code in the process of the tests can evade any pattern; see
# docs/evidence.md.


_PYTHON = (".py", ".pyi")
_SCRIPT = (".js", ".mjs", ".cjs", ".jsx", ".ts", ".mts", ".cts", ".tsx")
_SCREENING_MAX_MATCHES = 20
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
_PATTERNS = tuple((endings, re.compile(pattern), meaning) for endings, pattern, meaning in TABLE)
_COMMENT = re.compile(r"^\s*(?:#(?!\[)|//(?!go:)|\*|/\*)")


def find_suspicious_lines(diff: str, own_tests: Collection[str]) -> tuple[str, ...]:
    """Return up to 20 added lines of code that match the table, as "path:line: why".

    Tests of the author are skipped.
    """
    return tuple(islice(_find_matches(diff, own_tests), _SCREENING_MAX_MATCHES))


def _find_matches(diff: str, own_tests: Collection[str]) -> Iterator[str]:
    for part in file_diffs(diff):
        if part.path in own_tests:
            continue
        for number, line in part.added.items():
            text = line[:_MAX_LINE_CHARS]
            if _COMMENT.match(text):
                continue
            for endings, pattern, meaning in _PATTERNS:
                if (not endings or part.path.endswith(endings)) and pattern.search(text):
                    yield f"{part.path}:{number}: {meaning}"
                    break
