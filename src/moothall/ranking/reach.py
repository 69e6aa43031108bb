"""Code that a patch adds and that reaches for what judges it: the runner, frames, objects of others, the process's end. Pure.

None of it is wrong by itself, and no list of names is complete. What is found makes an answer unproven: a person should look.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence

from moothall.ranking.patched import FileDiff, file_diffs

_SHOWN, _LINE = 20, 160
_MODULES = frozenset(
    {"gc", "ctypes", "_ctypes", "cffi", "atexit", "builtins", "faulthandler", "bdb", "site", "runpy", "marshal"}
) | {
    *(
        "pytest",
        "_pytest",
        "py",
        "pluggy",
        "unittest",
        "nose",
        "doctest",
        "mock",
        "sitecustomize",
        "usercustomize",
        "_frozen_importlib",
    ),
}
_ATTRIBUTES = frozenset(
    {"_getframe", "_current_frames", "_getframemodulename", "currentframe", "getouterframes", "getinnerframes"}
) | {
    *("f_back", "f_locals", "f_globals", "f_builtins", "f_code", "f_trace", "tb_frame", "gi_frame", "cr_frame", "ag_frame"),
    *(
        "__code__",
        "__globals__",
        "__closure__",
        "__subclasses__",
        "__builtins__",
        "co_consts",
        "co_code",
        "co_names",
        "co_filename",
    ),
    *("settrace", "setprofile", "walk_stack", "extract_stack", "format_stack", "print_stack", "meta_path", "path_hooks"),
    *("path_importer_cache", "addaudithook", "unraisablehook", "get_objects", "get_referrers", "get_referents", "_exit", "abort"),
    *("fork", "forkpty", "register_at_fork", "killpg", "runtest", "orig_argv", "_mock_self", "displayhook", "excepthook"),
}
_CALLS = frozenset({"exec", "eval", "compile", "__import__", "globals", "breakpoint"})
_OF_SYS = frozenset({"modules", "exit", "monitoring", "path"})
_OF_INSPECT = frozenset({"stack", "trace"})
_EXITS = frozenset({"exit", "quit", "SystemExit"})
_WORDS = re.compile(r"pytest|moothall|unittest|conftest|\btest_\w+|/proc/self|_CURRENT_TEST", re.IGNORECASE)
_MAIN = re.compile(r"main|cli|command|exit|quit", re.IGNORECASE)

_PATTERNS: Mapping[str, re.Pattern[str]] = {
    ".go": re.compile(
        r'\bos\.Exit\b|\bsyscall\.|\bruntime\.(?:Goexit|Caller|Callers|Stack)\b|\bdebug\.Stack\b|"testing|\btesting\.|flag\.Lookup'
        r'|go:linkname|"unsafe"|"plugin"|import "C"|=== (?:RUN|PASS|CONT)|--- (?:PASS|FAIL)|"PASS|\bos\.Args\b|\bos\.(?:Stdout|NewFile)\b'
        r"|/proc/self|MOOTHALL"
    ),
    ".js": re.compile(
        r"\bprocess\.(?:exit|reallyExit|kill|abort|exitCode|binding|dlopen|_\w+|argv|execArgv|mainModule|on(?:ce)?\b)|\brequire\.(?:cache|main)\b"
        r"|\b_load\b|Module\.prototype|(?:require|from|import)\s*\(?\s*['\"](?:node:)?(?:test|assert|mocha|jest|vitest|chai|ava|tape|inspector|module|vm|fs|child_process|worker_threads)\b"
        r"|prepareStackTrace|captureStackTrace|\.stack\b|AssertionError|\bglobalThis\b|\bglobal\.|\beval\s*\(|new Function\b|\bFunction\s*\("
        r"|(?:Object|Function|Array|Promise|Error|String|Number)\.prototype\b.*=|(?:stdout|stderr)\.write\s*=|console\.\w+\s*="
        r"|NODE_TEST_CONTEXT|JEST_|MOCHA|MOOTHALL|npm_lifecycle|TAP version|\bnot ok\b|Symbol\.toPrimitive|valueOf"
    ),
    ".rs": re.compile(
        r"\bprocess::(?:exit|abort)\b|\benv::args\b|\bcatch_unwind\b|\bset_hook\b|\bno_mangle\b|extern\s+\"C\"|\blibc::|\basm!|\bctor\b|\bbacktrace\b"
        r"|thread::current|test result|macro_rules!\s*(?:assert\w*|panic|debug_assert\w*)|\bcfg!\s*\([^)]*\btest\b|#!?\[cfg(?:_attr)?\([^\]]*\btest\b"
        r"|link_section|/proc/self|MOOTHALL|set_output_capture"
    ),
}
_ENDINGS = {".go": ".go", ".rs": ".rs"} | dict.fromkeys((".js", ".mjs", ".cjs", ".jsx", ".ts", ".mts", ".cts", ".tsx"), ".js")
_WORD = re.compile(r"\w+")
_RUST_TESTS = re.compile(r"\s*(?:#\[[^\]]*\]\s*)*(?:pub(?:\([^)]*\))?\s+)?mod\b")


def reaches(diff: str, base: Mapping[str, str], own_tests: Iterable[str]) -> tuple[str, ...]:
    """Return the lines, as `path:number: text`, that a diff adds outside of its author's tests and that a person should look at.

    `base` are the texts of the changed files before, where there were any.
    """
    tests = frozenset(own_tests)
    found: list[str] = []
    for part in file_diffs(diff):
        if part.path in tests:
            continue
        added = part.added
        numbers = sorted(set(_python(part, base, added) if part.path.endswith((".py", ".pyi")) else _others(part, added)))
        found += [f"{part.path}:{number}: {added[number].strip()[:_LINE]}" for number in numbers if number in added]
    return tuple(found[:_SHOWN])


def _python(part: FileDiff, base: Mapping[str, str], added: Mapping[int, str]) -> Iterator[int]:
    text = part.applied(base.get(part.path, ""))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        yield from (number for number, line in added.items() if _WORDS.search(line) or any(word in line for word in _ATTRIBUTES))
        return
    yield from _Reading(tree).found()


class _Reading:
    """One module: the names that modules have in it, and the nodes that reach too far."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._modules: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                self._modules |= {item.asname or item.name.partition(".")[0]: item.name for item in node.names}

    def found(self) -> Iterator[int]:
        docs = {id(body[0].value) for body in _bodies(self._tree) if body and isinstance(body[0], ast.Expr)}
        ends = set(self._of_main())
        for node in ast.walk(self._tree):
            if self._reaches(node) and id(node) not in docs and not (id(node) in ends and self._is_exit(node)):
                yield from range(getattr(node, "lineno", 0), getattr(node, "lineno", 0) + 1)

    def _of_main(self) -> Iterator[int]:
        """What a program's own beginning holds: it may end the process."""
        for node in ast.walk(self._tree):
            named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _MAIN.search(node.name)
            guarded = isinstance(node, ast.If) and "__main__" in ast.dump(node.test)
            if named or guarded:
                yield from map(id, ast.walk(node))

    def _is_exit(self, node: ast.AST) -> bool:
        return (isinstance(node, ast.Name) and node.id in _EXITS) or (isinstance(node, ast.Attribute) and node.attr == "exit")

    def _reaches(self, node: ast.AST) -> bool:  # noqa: PLR0911 - one question a kind of node
        match node:
            case ast.Import(names=names):
                return any(name.name.partition(".")[0] in _MODULES or "moothall" in name.name for name in names)
            case ast.ImportFrom(module=module, names=names, level=0):
                taken = {name.name for name in names}
                of_sys = module == "sys" and bool(taken & _OF_SYS)
                of_inspect = module == "inspect" and bool(taken & _OF_INSPECT)
                return (module or "").partition(".")[0] in _MODULES or bool(taken & _ATTRIBUTES) or of_sys or of_inspect
            case ast.Attribute(attr=attr, value=value):
                last = value.id if isinstance(value, ast.Name) else value.attr if isinstance(value, ast.Attribute) else ""
                owner = self._modules.get(last, last)
                if isinstance(node.ctx, ast.Store | ast.Del) and last in self._modules:
                    return True
                return (
                    attr in _ATTRIBUTES
                    or (attr in _OF_SYS and owner == "sys")
                    or (attr in _OF_INSPECT and owner == "inspect")
                    or (attr in {"import_module", "reload"} and owner == "importlib")
                    or (attr == "__dict__" and last in self._modules)
                )
            case ast.Name(id=name):
                return name in _EXITS or name in _CALLS or name == "__builtins__"
            case ast.Call(func=ast.Name(id="setattr" | "delattr" | "getattr" | "vars"), args=[ast.Name(id=name), *_]):
                return name in self._modules
            case ast.Call(func=ast.Name(id="getattr" | "setattr"), args=[_, attribute, *_]):
                return not isinstance(attribute, ast.Constant | ast.Name)
            case ast.FunctionDef(name="__eq__", body=body):
                return (
                    isinstance(body[-1], ast.Return) and isinstance(body[-1].value, ast.Constant) and body[-1].value.value is True
                )
            case ast.Constant(value=str(text)):
                return bool(_WORDS.search(text)) or text in _ATTRIBUTES
        return False


def _bodies(tree: ast.Module) -> Iterator[Sequence[ast.stmt]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.body


def _others(part: FileDiff, added: Mapping[int, str]) -> Iterator[int]:
    name = part.path.rpartition("/")[2]
    pattern = _PATTERNS.get(_ENDINGS.get(f".{name.rpartition('.')[2]}", ""))
    if pattern is None:
        return
    before = {_reach(line, pattern) for line in part.removed}
    for number, line in added.items():
        if line.lstrip().startswith(("//", "*", "/*")) or _reach(line, pattern) in before:
            continue
        if pattern.search(line) and not (line.strip() == "#[cfg(test)]" and _RUST_TESTS.match(added.get(number + 1, ""))):
            yield number


def _reach(line: str, pattern: re.Pattern[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What a line reaches for and its words: where both were there before, only an operator was changed."""
    return tuple(match[0] for match in pattern.finditer(line)), tuple(_WORD.findall(line))
