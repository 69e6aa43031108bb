"""What strings a Python module makes of its literals, without running it. Pure.

Concatenation, f-strings, `format`, `%`, `join`, slices, names that are assigned once, base64,
hexadecimal and numbers of characters are followed. What is not known is a NUL, so that nothing is
joined over it.
"""

from __future__ import annotations

import ast
import base64
import binascii
import codecs
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

UNKNOWN = "\0"
_LONGEST, _DEEPEST, _NODES = 20_000, 60, 50_000
_FIELD = re.compile(r"\{([^{}!:]*)(?:![rsa])?(?::[^{}]*)?\}|%[sdr]")
_SAME = frozenset({"encode", "decode", "strip", "str", "bytes", "bytearray", "lstrip", "rstrip"})
_FOLDED = (ast.BinOp, ast.JoinedStr, ast.Call, ast.Subscript, ast.Constant)


def _base64(text: str) -> str:
    return base64.b64decode(
        text + "=" * (-len(text) % 4), altchars=b"-_" if {*"-_"} & {*text} else None
    ).decode("latin-1")


_DECODERS: Mapping[str, Callable[[str], str]] = {
    **dict.fromkeys(
        ("b64decode", "urlsafe_b64decode", "standard_b64decode", "decodebytes", "a2b_base64"),
        _base64,
    ),
    **dict.fromkeys(
        ("fromhex", "unhexlify", "a2b_hex"), lambda text: bytes.fromhex(text).decode("latin-1")
    ),
}


def decodings(text: str) -> Iterator[str]:
    """Yield what a word may stand for: base64, hexadecimal, and itself from its end."""
    for decode in (_base64, _DECODERS["fromhex"]):
        with suppress(ValueError, binascii.Error):
            yield decode(text)
    yield text[::-1]


def fold_strings(source: str) -> dict[str, int]:
    """Return the strings that a module makes, and the line where each first is. Nothing where it
    cannot be parsed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
        folding = _Folding(tree)
        found: dict[str, int] = {}
        for node in folding.nodes:
            if isinstance(node, _FOLDED) and (text := folding.text(node)).strip(UNKNOWN):
                found.setdefault(text, node.lineno)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    return found


class _Folding:
    """One module: names that are assigned once, and the strings of its nodes."""

    def __init__(self, tree: ast.Module) -> None:
        self.nodes = [node for node, _ in zip(ast.walk(tree), range(_NODES), strict=False)]
        self._names: dict[str, ast.expr | None] = {}
        self._known: dict[int, str] = {}
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
        """Return what a node comes to, with a NUL for each part that is not known."""
        if id(node) not in self._known:
            self._known[id(node)] = UNKNOWN  # while it is looked at: a name may stand for itself
            self._known[id(node)] = (
                self._text(node, depth + 1)[:_LONGEST] if depth < _DEEPEST else UNKNOWN
            )
        return self._known[id(node)]

    def _text(self, node: ast.AST, depth: int) -> str:  # noqa: PLR0911 - one answer a kind of node
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
                return self._fill(
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
        self, func: ast.expr, args: Sequence[ast.expr], words: Mapping[str, ast.expr], depth: int
    ) -> str:
        name = (
            func.attr
            if isinstance(func, ast.Attribute)
            else func.id
            if isinstance(func, ast.Name)
            else ""
        )
        owner = func.value if isinstance(func, ast.Attribute) else None
        first = args[0] if args else None
        if name == "join" and owner is not None and first is not None:
            return self.text(owner, depth).join(self._items(first, depth))
        if name == "format" and owner is not None:
            return self._fill(self.text(owner, depth), args, words, depth)
        if name == "replace" and owner is not None and len(args) > 1:
            return self.text(owner, depth).replace(
                self.text(args[0], depth), self.text(args[1], depth)
            )
        if name in _DECODERS and first is not None:
            with suppress(ValueError, binascii.Error):
                return _DECODERS[name](self.text(first, depth))
        elif name == "decode" and len(args) > 1 and "rot" in self.text(args[1], depth):
            return codecs.decode(self.text(args[0], depth), "rot13")
        elif name == "chr" and first is not None:
            return _characters([first])
        elif name in _SAME:
            kept = (
                self.text(owner, depth)
                if owner is not None and name not in {"str", "bytes"}
                else ""
            )
            return kept or ("".join(self._items(first, depth)) if first is not None else UNKNOWN)
        return UNKNOWN

    def _items(self, node: ast.expr, depth: int) -> Iterator[str]:
        match node:
            case ast.Name(id=name) if (
                value := self._names.get(name)
            ) is not None and depth < _DEEPEST:
                yield from self._items(value, depth + 1)
            case ast.List(elts=items) | ast.Tuple(elts=items):
                numbers = _characters(items)
                yield from (
                    [numbers]
                    if numbers.strip(UNKNOWN)
                    else [self.text(item, depth) for item in items]
                )
            case ast.Call(func=ast.Name(id="reversed"), args=[inner]):
                yield from reversed(
                    "".join(self._items(inner, depth))
                    if not isinstance(inner, ast.List)
                    else list(self._items(inner, depth))
                )
            case (
                ast.Call(func=ast.Name(id="map"), args=[_, inner])
                | ast.GeneratorExp(generators=[ast.comprehension(iter=inner)])
            ):
                yield from self._items(inner, depth)
            case ast.ListComp(generators=[ast.comprehension(iter=inner)]):
                yield from self._items(inner, depth)
            case _:
                yield from self.text(node, depth)

    def _fill(
        self, text: str, args: Sequence[ast.expr], words: Mapping[str, ast.expr], depth: int
    ) -> str:
        rest = iter(args)

        def value(match: re.Match[str]) -> str:
            name = match[1] or ""
            at = (
                args[int(name)]
                if name.isdigit() and int(name) < len(args)
                else words.get(name) or next(rest, None)
            )
            return self.text(at, depth) if at is not None else UNKNOWN

        return _FIELD.sub(value, text)


def _characters(items: Sequence[ast.expr]) -> str:
    values = [
        item.value if isinstance(item, ast.Constant) and type(item.value) is int else -1
        for item in items
    ]
    return "".join(chr(value) if 0 < value <= sys.maxunicode else UNKNOWN for value in values)
