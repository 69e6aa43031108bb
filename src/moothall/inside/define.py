"""`files.define`: a whole function, method or class by its name, replaced or added. Runs in a child of the executor.

Only the named span changes: every byte before and after it stays, with the file's own line ends and byte order mark.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from moothall.inside.paths import ToolFailure
from moothall.inside.spans import first_shifted, free_spot, line_start, spot_of, with_indent, with_tabs
from moothall.inside.syntax import Definition, definitions, first_child, first_error, parse

TYPE_CHECKING = False  # the real one is in `typing`, which costs the executor start time
if TYPE_CHECKING:
    from collections.abc import Sequence

    from tree_sitter import Node

_MARK = "\ufeff"
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Defined:
    """A text after the change, whether the name was there, and the lines that hold it now."""

    text: str
    replaced: bool
    start: int
    end: int


def define(text: str, language: str, name: str, content: str) -> Defined:
    """Return `text` with the definition of `name` being `content`. Raises `ToolFailure` where that is not clear or breaks it."""
    mark = _MARK if text.startswith(_MARK) else ""
    data = text.removeprefix(_MARK).encode("utf-8")
    own = content.removeprefix(_MARK).replace("\r\n", "\n").strip("\n").rstrip().encode("utf-8", "replace")
    if not own.strip():
        raise ToolFailure("content is empty; send the whole definition", "invalid")
    root = parse(language, data)
    found = list(definitions(root, language, deep=True))
    wanted = Wanted(language, name, own, found)
    old = wanted.place()
    start, until, before, after, indent = spot_of(data, old, wanted) if old else free_spot(data, root, wanted)
    end = b"\r\n" if 2 * data.count(b"\r\n") > data.count(b"\n") else b"\n"
    refusal = ""
    for shift in (with_indent, first_shifted):
        body = shift(with_tabs(wanted.content, data, indent), indent, language)
        new = (before + body.lstrip(b" \t") + after).replace(b"\n", end)
        made = data[:start] + new + data[until:]
        refusal = _what_is_wrong(root, data, made, data[:start].count(b"\n"), wanted)
        if not refusal:
            first = made[: start + len(before)].count(b"\n") + 1
            return Defined(mark + made.decode(), old is not None, first, first + body.count(b"\n"))
    raise ToolFailure(refusal)


def parts_of(name: str) -> tuple[tuple[str, ...], str]:
    """Return a name's parts and the trait that it says: `a.B.c`, `T::m`, `(*T).M` and `<T as Trait>::m`. Raises `ToolFailure`."""
    plain = re.sub(r"^(?:(?:export|pub|async|def|class|func|function|fn|struct)\s+)+", "", name.strip()).removesuffix("()")
    trait = ""
    if said := re.fullmatch(r"<\s*([\w:]+)(?:<.*>)?\s+as\s+([\w:]+)(?:<.*>)?\s*>::(\w+)", plain):
        plain, trait = f"{said[1]}::{said[3]}", said[2].rpartition("::")[2]
    plain = re.sub(r"\((?:\w+\s+)?\*?\s*(\w+)(?:\[[^\]]*\])?\)", r"\1", plain)
    plain = re.sub(r"<[^<>]*>|\[[^\[\]]*\]", "", plain)
    parts = tuple(part for part in re.split(r"::|[.#]", plain) if part != "prototype")
    if not parts or not all(re.fullmatch(r"[^\W\d][\w$]*|[$_#][\w$]*", part) for part in parts):
        raise ToolFailure(
            f"name {name[:80]!r} is no name; right is, for example, 'total', 'Cart.total' or 'Cart::total'", "invalid"
        )
    return parts, trait


class Wanted:
    """What is to be defined, and what of the file has that name."""

    def __init__(self, language: str, name: str, content: bytes, found: Sequence[Definition]) -> None:
        self.language = language
        self.parts, self.trait = parts_of(name)
        self.found = found
        self.content = content
        self.own, self.shift = self._own()

    def _own(self) -> tuple[Definition, int]:
        """Return the definition in the content that is the named one, and how far its offsets are from the content's."""
        last, seen = self.parts[-1], ""
        tries = [b""] if self.language not in {"javascript", "typescript", "tsx"} else [b"", b"class _ {\n"]
        for head in tries:
            root = parse(self.language, head + self.content + (b"\n}" if head else b""))
            every = list(definitions(root, self.language))
            inside = [item for item in every if item.node.type != "impl_item"]
            fits = [item for item in inside if item.parts[-1] == last]
            if fits:
                found = fits[0]
                held = not head and self.language != "go" and any(item.parts == found.parts[:-1] for item in every)
                if held and len(fits) == 1:
                    self._unwrap(found, inside)
                    return self._own()
                if self.language == "go" and len(found.parts) > len(self.parts):
                    self.parts = found.parts  # the content says whose method it is
                return found, len(head)
            seen = seen or next((item.label(self.language) for item in inside), "")
        instead = f"it defines {seen!r}" if seen else "none is in it"
        raise ToolFailure(
            f"content must be the whole definition of {last!r}, from its first line to its last; {instead}", "invalid"
        )

    def _unwrap(self, found: Definition, inside: Sequence[Definition]) -> None:
        """Take a method out of the class that the content holds around it, where the class holds nothing else."""
        top = found.parts[:-1]
        others = [item for item in inside if item.parts != top and item is not found]
        if others or (len(self.parts) > 1 and self.parts[-1 - len(top) : -1] != top):
            raise ToolFailure(
                f"content defines {'.'.join(found.parts)!r} and more; send just the definition of {self.parts[-1]!r}, or give the name "
                f"{'.'.join(top)!r} to replace all of that",
                "invalid",
            )
        if len(self.parts) == 1:
            self.parts = found.parts
        start = line_start(self.content, found.start) if found.start else 0
        self.content = self.content[start : found.end]

    def place(self) -> Definition | None:
        """Return what has the name now, or None where it is new. Raises `ToolFailure` where more than one may be meant."""
        named = [item for item in self.found if item.node.type != "impl_item" and not item.is_stub]
        exact = [item for item in named if item.parts == self.parts and (not self.trait or item.trait == self.trait)]
        if len(exact) > 1:
            notes = self.own.decorators
            exact = [item for item in exact if item.decorators == notes] if notes else exact
        if len(exact) == 1:
            return exact[0]
        count = len(self.parts)
        near = exact or [item for item in named if len(item.parts) > count and item.parts[-count:] == self.parts]
        if not near:
            return None
        if not exact and count == 1 and not _is_method(self.own, self.shift):
            methods = [item for item in near if self._is_member(item)]
            if not methods:
                return None  # the same name within some function is another thing
            near = methods
        elif len(near) == 1:
            return near[0]
        if len(near) == 1:
            raise ToolFailure(
                f"there is no {self.parts[-1]!r} outside a class; {self.listed(near)}: give that name to replace it"
            )
        raise ToolFailure(f"{'.'.join(self.parts)!r} is defined {len(near)} times: {self.listed(near)}. {_HOW_TO_CHOOSE}")

    def _is_member(self, item: Definition) -> bool:
        holder = next((other for other in self.found if other.parts == item.parts[:-1]), None)
        return holder is not None and holder.is_type

    def listed(self, items: Sequence[Definition]) -> str:
        """Name some definitions and their lines."""
        shown = [f"{item.label(self.language)!r} on line {item.line}" for item in items[:_SHOWN]]
        return ", ".join(shown) + (f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else "")


_HOW_TO_CHOOSE = "Give the qualified name of one, begin the content with its decorators, or change its text with files.edit"


def _is_method(own: Definition, shift: int) -> bool:
    """Whether a definition that stands alone is a method by its own looks."""
    if shift:
        return True
    held = own.node.child_by_field_name("parameters")
    first = first_child(held)
    if first is None:
        return False
    return first.type == "self_parameter" or (first.text or b"").partition(b":")[0].strip() in {b"self", b"cls"}


def _what_is_wrong(root: Node, data: bytes, made: bytes, first_row: int, wanted: Wanted) -> str:
    """Say what is wrong with the file after the change, or nothing."""
    language = wanted.language
    after = parse(language, made)
    error = first_error(after)
    if error is not None and not root.has_error:
        return _where(made, error.start_point[0] + 1, first_row, wanted, "")
    if language == "python" and not root.has_error and _python_error(data) is None and (wrong := _python_error(made)):
        return _where(made, wrong[0], first_row, wanted, f": {wrong[1]}")
    named = {item.parts for item in definitions(after, language, deep=True)}
    if wanted.parts not in named and not any(parts[-len(wanted.parts) :] == wanted.parts for parts in named):
        return f"with this content the file would not define {'.'.join(wanted.parts)!r}; send the whole definition"
    return ""


def _python_error(data: bytes) -> tuple[int, str] | None:
    try:
        compile(data, "", "exec", 0x400, dont_inherit=True)  # ast.PyCF_ONLY_AST
    except SyntaxError as error:
        return error.lineno or 1, error.msg
    except (ValueError, RecursionError, MemoryError):
        return None
    return None


def _where(made: bytes, line: int, first_row: int, wanted: Wanted, why: str) -> str:
    rows = made.split(b"\n")
    shown = rows[min(line, len(rows)) - 1].decode("utf-8", "replace").strip()[:200]
    within = line - first_row
    place = f"near line {within} of the content{why}: {shown!r}"
    if not 0 < within <= wanted.content.count(b"\n") + 1:
        place = f"near its line {line}, {shown!r}{why}; is a bracket or a quote of the content left open?"
    return f"nothing was changed: the file would not parse any more, {place}"
