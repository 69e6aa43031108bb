"""Code that hides what it reaches for from who reads it: by the encoding of its file, by taking all names of a module, by computing texts,
by saying itself of which class an object is. Pure.
"""

from __future__ import annotations

import ast
import codecs
import re
from collections.abc import Iterator

_COOKIE = re.compile(r"[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
_PLAIN = re.compile(r"utf-8(?:-sig)?|ascii|iso8859-\d+|cp125\d|koi8-\w|gb\w+|big5\w*|euc_\w+|shift_jis\w*")
"""Encodings in which a letter of ASCII stands for itself, and nothing else does."""
_WHOLE = frozenset(
    {"sys", "os", "inspect", "importlib", "pickle", "pkgutil", "traceback", "signal", "threading", "_thread", "types", "operator"}
)
"""Modules of which all names together hold what reaches too far."""
_CLASSES = frozenset({"__class__", "__bases__", "__mro__"})
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
_NAMED = frozenset({"getattr", "setattr", "delattr"})


def veils(text: str, tree: ast.Module) -> Iterator[int]:
    """Yield the lines of a module that hide something."""
    yield from _cookies(text)
    ciphered = any(map(_is_arithmetic, ast.walk(tree)))
    for node in ast.walk(tree):
        if _is_whole(node) or _is_computed(node) or _says_its_class(node) or (ciphered and _is_by_name(node)):
            yield getattr(node, "lineno", 0)
        yield from _chosen(node)


def _cookies(text: str) -> Iterator[int]:
    """Where a file says that it is to be read in an encoding that makes code of what looks like a remark."""
    for number, line in enumerate(text.split("\n")[:2], 1):
        if found := _COOKIE.match(line):
            try:
                plain = _PLAIN.fullmatch(codecs.lookup(found[1]).name)
            except (LookupError, ValueError):
                plain = None
            if not plain:
                yield number


def _is_whole(node: ast.AST) -> bool:
    match node:
        case ast.ImportFrom(module=str(module), names=[ast.alias(name="*")], level=0):
            return module.partition(".")[0] in _WHOLE
    return False


def _is_computed(node: ast.AST) -> bool:
    """Whether it computes a text out of another that is written: `bytes(each ^ 1 for each in b"…")`, `"…".translate(…)`."""
    match node:
        case ast.Call(func=ast.Name(id="bytes" | "bytearray"), args=[ast.GeneratorExp() | ast.ListComp() as made]):
            written = isinstance(made.generators[0].iter, ast.Constant | ast.List | ast.Tuple)
            return written and not isinstance(made.elt, ast.Name)
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str() | bytes()), attr="translate")):
            return True
    return False


def _is_arithmetic(node: ast.AST) -> bool:
    """Whether it makes letters by counting: `chr(ord(each) - 1)`."""
    match node:
        case ast.Call(func=ast.Name(id="chr"), args=[ast.BinOp()]):
            return True
    return False


def _is_by_name(node: ast.AST) -> bool:
    """Whether it takes or puts an attribute whose name is not written there."""
    match node:
        case ast.Call(func=ast.Name(id=call), args=[_, name, *_]) if call in _NAMED:
            return not isinstance(name, ast.Constant)
    return False


def _chosen(node: ast.AST) -> Iterator[int]:
    """Where an attribute is chosen out of all that something has: `getattr(it, name) for name in dir(it) if name.endswith("ck")`."""
    loops = node.generators if isinstance(node, _COMPREHENSIONS) else [node] if isinstance(node, ast.For) else []
    names = {
        loop.target.id
        for loop in loops
        if isinstance(loop.target, ast.Name)
        and any(
            isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id == "dir"
            for each in ast.walk(loop.iter)
        )
    }
    for each in ast.walk(node) if names else ():
        match each:
            case ast.Call(func=ast.Name(id=call), args=[_, ast.Name(id=name), *_]) if call in _NAMED and name in names:
                yield each.lineno


def _says_its_class(node: ast.AST) -> bool:
    """Whether objects say themselves of which class they are, or a class which are above it."""
    match node:
        case ast.ClassDef(body=body):
            return any(
                (isinstance(each, ast.FunctionDef) and each.name in _CLASSES)
                or (isinstance(each, ast.Assign) and any(isinstance(to, ast.Name) and to.id in _CLASSES for to in each.targets))
                for each in body
            )
    return False
