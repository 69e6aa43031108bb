"""Code that a patch adds and that reaches for what judges it: the runner, frames, objects of others, the process's end. Pure.

None of it is wrong by itself, and no list of names is complete. What is found makes an answer unproven: a person should look.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from moothall.ranking.screening.others import go_changes, puts_on_others, roots, rust_changes, script_changes
from moothall.ranking.screening.reach_lines import PATTERNS
from moothall.ranking.screening.veiled import veils
from moothall.ranking.syntax.diffs import FileDiff, file_diffs
from moothall.ranking.syntax.folding import UNKNOWN, fold_strings

_SHOWN, _LINE = 20, 160
_MODULES = frozenset(
    {"gc", "ctypes", "_ctypes", "cffi", "atexit", "builtins", "faulthandler", "bdb", "site", "runpy", "marshal"}
    | {*("code", "codeop", "pydoc", "pdb", "cProfile", "profile", "zipimport", "imp", "trace", "dis")}
    | {*("test", "hypothesis", "testtools", "freezegun", "hamcrest", "assertpy")}
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
    *(
        "settrace",
        "setprofile",
        "settrace_all_threads",
        "setprofile_all_threads",
        "walk_stack",
        "extract_stack",
        "format_stack",
        "print_stack",
        "meta_path",
        "path_hooks",
    ),
    *("path_importer_cache", "addaudithook", "unraisablehook", "get_objects", "get_referrers", "get_referents", "_exit", "abort"),
    *(
        "walk_tb",
        "findCaller",
        "funcName",
        "getclosurevars",
        "getcoroutinelocals",
        "getgeneratorlocals",
        "_bootstrap",
        "_gcd_import",
    ),
    *("execl", "execle", "execlp", "execlpe", "execv", "execve", "execvp", "execvpe"),
    *("fork", "forkpty", "register_at_fork", "killpg", "runtest", "orig_argv", "_mock_self", "displayhook", "excepthook"),
}
_RUNNERS = frozenset({"unittest", "pytest", "_pytest", "doctest"})
"""What another module may have at hand."""
_CALLS = frozenset({"exec", "eval", "compile", "__import__", "globals", "breakpoint"})
_INNER = frozenset({"sys", "gc", "ctypes", "builtins", "inspect", "importlib"})
"""Modules that are taken out of another one only where this is not to be seen."""
_HIDDEN = frozenset({"sys", "gc", "ctypes", "builtins"})
"""Of these, those whose names nothing else has."""
_LOADS: Mapping[str, frozenset[str]] = {
    "importlib": frozenset({"import_module", "reload"}),
    "importlib.metadata": frozenset({"EntryPoint"}),
    "metadata": frozenset({"EntryPoint"}),
    "pickle": frozenset({"loads", "load", "Unpickler"}),
    "pkgutil": frozenset({"resolve_name"}),
}
"""By module what brings in anything by its name."""
_OF_SYS = frozenset({"modules", "exit", "monitoring", "path"})
_SIGNALS: Mapping[str, frozenset[str]] = {"os": frozenset({"kill"}), "signal": frozenset({"raise_signal", "pthread_kill"})}
"""What ends a process from within."""
_OF_INSPECT = frozenset({"stack", "trace"})
_DOCUMENTS = frozenset({"__doc__", "__test__"})
"""What is put there is run as an example."""
_ASKS = frozenset({"hasattr", "isinstance", "getattr"})
"""What asks something of a module, and puts nothing there."""
_EXITS = frozenset({"exit", "quit", "SystemExit"})
_WORDS = re.compile(
    r"pytest|moothall|unittest|conftest|\btest_\w+|/proc/self|_CURRENT_TEST|__import__|\b(?:exec|eval)\(", re.IGNORECASE
)
_PATH = re.compile(r"[\w.\[\]]+")
_FIELD = re.compile(r"\{([\w.\[\]]+)")
"""What a format string takes out of what it is given: `{0.__globals__}`."""
_TESTS = re.compile(r"(?:^|\.)(?:test_\w+|\w+_test|tests|conftest)(?:\.|$)")
"""Modules of tests, by name; what is taken out of another module is one only where a file says so."""
_MAIN = re.compile(r"main|cli|command|exit|quit", re.IGNORECASE)

_BINARY = re.compile(
    r"(?m)^diff --git a/.* b/(?P<path>.*\.(?:so|pyd|pyc|node|syso|a|o|s|S|dll|dylib|wasm|pth|zip|whl|egg))\"?\n(?!deleted)"
)
"""What runs, or is linked in, without being read here."""
_ENDINGS = {".go": ".go", ".rs": ".rs"} | dict.fromkeys((".js", ".mjs", ".cjs", ".jsx", ".ts", ".mts", ".cts", ".tsx"), ".js")
_WORD = re.compile(r"\w+")
_COMMENTS = ("//", "*", "/*")
_REMARKS, _JOINS = re.compile(r"/\*.*?\*/|(?<![:'\"`])//[^\n]*", re.DOTALL), re.compile(r"(?<!\s)\s*(\?\.|\.|!|::)\s*")
_PLUS, _CODES = re.compile(r"(['\"`])\s*\+\s*\1"), re.compile(r"\\(?:x([2-7][0-9a-fA-F])|u00([2-7][0-9a-fA-F]))")
_RUST_CFG = re.compile(r"#\[cfg\((?:test|all\(test,[^\]]*\))\)\]")
_RUST_TESTS = re.compile(r"\s*(?:#\[[^\]]*\]\s*)*(?:pub(?:\([^)]*\))?\s+)?mod\b")


def reaches(diff: str, base: Mapping[str, str], own_tests: Iterable[str], files: Collection[str] = ()) -> tuple[str, ...]:
    """Return the lines, as `path:number: text`, that a diff adds outside of its author's tests and that a person should look at.

    `base` are the texts of the changed files before, where there were any; `files` all that were there.
    """
    tests, tree = frozenset(own_tests), _Tree(roots(files), frozenset(map(_module, files)))
    found = [f"{match['path']}:1: it runs without being read" for match in _BINARY.finditer(diff) if match["path"] not in tests]
    for part in file_diffs(diff):
        if part.path in tests:
            continue
        added = part.added
        numbers = sorted(
            set(_python(part, base, added, tree) if part.path.endswith((".py", ".pyi")) else _others(part, base, added))
        )
        found += [f"{part.path}:{number}: {added[number].strip()[:_LINE]}" for number in numbers if number in added]
    return tuple(found[:_SHOWN])


@dataclass(frozen=True, slots=True)
class _Tree:
    """What is there of Python: packages and modules at the top, and modules by their last name."""

    own: AbstractSet[str]
    modules: AbstractSet[str]


def _module(path: str) -> str:
    folder, _, name = path.rpartition("/")
    return folder.rpartition("/")[2] if name == "__init__.py" else name.removesuffix(".py")


def _python(part: FileDiff, base: Mapping[str, str], added: Mapping[int, str], around: _Tree) -> Iterator[int]:
    text = part.apply(base.get(part.path, ""))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        yield from (number for number, line in added.items() if _WORDS.search(line) or any(word in line for word in _ATTRIBUTES))
        return
    yield from _Reading(tree, around.modules).find_lines()
    yield from puts_on_others(tree, around.own)
    yield from veils(text, tree)
    plain = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    yield from (number for said, number in fold_strings(text).items() if said not in plain and _names(said.strip(UNKNOWN)))


class _Reading:
    """One module: the names that modules have in it, and the nodes that reach too far."""

    def __init__(self, tree: ast.Module, known: AbstractSet[str]) -> None:
        self._tree, self._known = tree, known
        self._modules: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                self._modules |= {item.asname or item.name.partition(".")[0]: item.name for item in node.names}
            elif isinstance(node, ast.ImportFrom):
                self._modules |= {item.asname or item.name: item.name for item in node.names if item.name in _INNER}

        self._handed = self._find_escapes() if any(map(_puts, ast.walk(tree))) else frozenset[int]()

    def _find_escapes(self) -> frozenset[int]:
        """Where a module itself is given to something else: an attribute that is put there may be put on the module."""
        others = {id(node.value) for node in ast.walk(self._tree) if isinstance(node, ast.Attribute)}
        for node in ast.walk(self._tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                inner = [each for each in ast.walk(node) if isinstance(each, ast.Name | ast.arg)]
                own = {each.arg if isinstance(each, ast.arg) else each.id for each in inner if not _is_read(each)}
                others |= {id(each) for each in inner if isinstance(each, ast.Name) and each.id in own}
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _ASKS:
                others |= set(map(id, node.args))
            elif isinstance(node, ast.Compare) and all(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
                others.add(id(node.left))
        names = (node for node in ast.walk(self._tree) if isinstance(node, ast.Name) and _is_read(node))
        return frozenset(id(node) for node in names if node.id in self._modules and id(node) not in others)

    def find_lines(self) -> Iterator[int]:
        docs = {id(body[0].value) for body in _bodies(self._tree) if body and isinstance(body[0], ast.Expr)}
        ends = set(self._of_main())
        yield from _swallowing(self._tree)
        for node in ast.walk(self._tree):
            if (
                (self._reaches(node) or _documents(node) or _judges(node))
                and id(node) not in docs
                and not (id(node) in ends and self._is_exit(node))
            ):
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
                return any(
                    name.name.partition(".")[0] in _MODULES or "moothall" in name.name or _TESTS.search(name.name)
                    for name in names
                )
            case ast.ImportFrom(module=module, names=names, level=level):
                taken = {name.name for name in names}
                tests = (module or "", *(taken & self._known))
                return any(map(_TESTS.search, tests)) or (not level and _takes(module or "", taken))
            case ast.Attribute(attr=attr, value=value):
                last = value.id if isinstance(value, ast.Name) else value.attr if isinstance(value, ast.Attribute) else ""
                owner = self._modules.get(last, last)
                if isinstance(node.ctx, ast.Store | ast.Del) and (last in self._modules or attr == "__doc__"):
                    return True
                return (
                    attr in _ATTRIBUTES | _RUNNERS
                    or (attr in _OF_SYS and owner == "sys")
                    or (attr == "exit" and last not in {"self", "cls"})
                    or (attr in _OF_INSPECT and owner == "inspect")
                    or attr in _LOADS.get(owner, frozenset()) | _SIGNALS.get(owner, frozenset())
                    or (attr in {"__dict__", *_INNER} and last in self._modules)
                )
            case ast.Name(id=name):
                return id(node) in self._handed or name in _EXITS or name in _CALLS or name == "__builtins__"
            case ast.Call(func=ast.Name(id="setattr" | "delattr" | "getattr" | "vars" as call), args=[owner, *rest]):
                return self._takes_by_name(call, owner, rest)
            case ast.FunctionDef(name="__eq__", body=body):
                return (
                    isinstance(body[-1], ast.Return) and isinstance(body[-1].value, ast.Constant) and body[-1].value.value is True
                )
            case ast.MatchClass(kwd_attrs=names):
                return not _ATTRIBUTES.isdisjoint(names)
            case ast.Constant(value=str() | bytes() as said):
                return _names(said if isinstance(said, str) else said.decode("latin-1"))
        return False

    def _takes_by_name(self, call: str, owner: ast.expr, rest: Sequence[ast.expr]) -> bool:
        if not isinstance(owner, ast.Name):
            return bool(rest) and not isinstance(rest[0], ast.Constant | ast.Name) and call in {"getattr", "setattr"}
        if call == "getattr" and rest and isinstance(rest[0], ast.Constant):  # `getattr(os, "O_BINARY", 0)` is `os.O_BINARY`
            return owner.id in self._modules and self._reaches(ast.Attribute(owner, str(rest[0].value), ast.Load()))
        return owner.id in self._modules


def _is_read(node: ast.Name | ast.arg) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)


def _puts(node: ast.AST) -> bool:
    """Whether it puts an attribute on something that is not its own object."""
    match node:
        case ast.Attribute(value=ast.Name(id=owner), ctx=ast.Store() | ast.Del()):
            return owner not in {"self", "cls"}
        case ast.Call(func=ast.Name(id="setattr" | "delattr"), args=[ast.Name(id=owner), *_]):
            return owner not in {"self", "cls"}
    return False


def _judges(node: ast.AST) -> bool:
    """Whether it is a hook of pytest's, takes what assertions say, or a command line that is written there: `--help` ends a process, green."""
    match node:
        case ast.Call(func=ast.Attribute(attr="parse_args" | "parse_known_args"), args=[ast.List(elts=[_, *_]), *_]):
            return True
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return name.startswith("pytest_")
        case ast.ExceptHandler(type=kind) if kind is not None:
            return any(isinstance(each, ast.Name) and each.id == "AssertionError" for each in ast.walk(kind))
    return False


def _swallowing(tree: ast.Module) -> Iterator[int]:
    """The lines by which a block that is left may keep what was raised in it to itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in {"__exit__", "__aexit__"}:
            returned = ((each, each.value) for each in ast.walk(node) if isinstance(each, ast.Return) and each.value)
            yield from (
                each.lineno for each, value in returned if not isinstance(value, ast.Constant) or value.value not in (None, False)
            )


def _documents(node: ast.AST) -> bool:
    """Whether it sets what is read for examples that are run. `__test__ = False` only says that something is no test."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return name == "__doc__" or (name == "__test__" and not isinstance(value, ast.Constant))
    return False


def _takes(module: str, names: AbstractSet[str]) -> bool:
    """Whether an import takes out of a module what reaches too far."""
    of_sys = module == "sys" and not names.isdisjoint(_OF_SYS)
    of_inspect = module == "inspect" and not names.isdisjoint(_OF_INSPECT)
    loads = not names.isdisjoint(_HIDDEN | _RUNNERS | _LOADS.get(module, frozenset()))
    return module.partition(".")[0] in _MODULES or not names.isdisjoint(_ATTRIBUTES) or of_sys or of_inspect or loads


def _names(text: str) -> bool:
    """Whether a text names what judges, or is the way to a part of it: `0.__globals__`."""
    ways = [text] if _PATH.fullmatch(text) else _FIELD.findall(text)
    return (
        bool(_WORDS.search(text))
        or text in _ATTRIBUTES | _DOCUMENTS
        or any("_" in name and name in _ATTRIBUTES for way in ways for name in _WORD.findall(way))
    )


def _bodies(tree: ast.Module) -> Iterator[Sequence[ast.stmt]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.body


def _others(part: FileDiff, base: Mapping[str, str], added: Mapping[int, str]) -> Iterator[int]:
    ending = _ENDINGS.get(part.path[part.path.rfind(".") :], "")
    if not ending:
        return
    pattern = PATTERNS[ending]
    if changes := {".go": go_changes, ".js": script_changes, ".rs": rust_changes}.get(ending):
        more = changes(part.apply(base.get(part.path, "")))
        pattern = re.compile(f"{pattern.pattern}|{more.pattern}")
    before = {_reach(line, pattern) for line in part.removed}
    code = {
        number: _fold(line)
        for number, line in added.items()
        if line.startswith("//go:") or not line.lstrip().startswith(_COMMENTS)
    }
    said = {match[0] for line in (*code.values(), *part.removed) for match in pattern.finditer(line)}
    if any(match[0] not in said for match in pattern.finditer(_squeeze(code.values()))):
        yield min(code)  # written over several lines, or with remarks in between
    for number, line in code.items():
        if _reach(line, pattern) in before:
            continue
        if pattern.search(line) and not (_RUST_CFG.fullmatch(line.strip()) and _RUST_TESTS.match(added.get(number + 1, ""))):
            yield number


def _squeeze(lines: Iterable[str]) -> str:
    """Code without remarks, and without spaces around what joins words."""
    # What is opened behind the last end hides nothing, nor is its end looked for again and again.
    closed, mark, rest = "\n".join(lines).rpartition("*/")
    return _JOINS.sub(r"\1", _fold(_REMARKS.sub("", closed + mark) + _REMARKS.sub("", rest.replace("/*", "/ *"))))


def _fold(text: str) -> str:
    """Code with the texts in it that are joined by `+` as one, and letters that are written as numbers."""
    said = _CODES.sub(lambda match: chr(int(match[1] or match[2], 16)), text)
    return _PLUS.sub("", said)


def _reach(line: str, pattern: re.Pattern[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What a line reaches for and its words: where both were there before, only an operator was changed."""
    return tuple(match[0] for match in pattern.finditer(line)), tuple(_WORD.findall(line))
