"""What `files.define` is asked for: a name in the words of each language, and the definition of it
that the content holds.
"""

from __future__ import annotations

import re

from moothall.sandbox_runtime.paths import ToolFailure
from moothall.sandbox_runtime.syntax import definitions, first_child, line_start, parse

TYPE_CHECKING = False  # the real one is in `typing`, which costs the executor start time
if TYPE_CHECKING:
    from collections.abc import Sequence

    from moothall.sandbox_runtime.syntax import Definition

_SHOWN = 8
_HOW_TO_CHOOSE = (
    "Give the qualified name of one, begin the content with its decorators, or change its text "
    "with files.edit"
)


def parts_of(name: str) -> tuple[tuple[str, ...], str]:
    """Return a name's parts and the trait that it says: `a.B.c`, `T::m`, `(*T).M` and `<T as
    Trait>::m`. Raises `ToolFailure`.
    """
    plain = re.sub(
        r"^(?:(?:export|pub|async|def|class|func|function|fn|struct)\s+)+", "", name.strip()
    ).removesuffix("()")
    trait = ""
    if said := re.fullmatch(r"<\s*([\w:]+)(?:<.*>)?\s+as\s+([\w:]+)(?:<.*>)?\s*>::(\w+)", plain):
        plain, trait = f"{said[1]}::{said[3]}", said[2].rpartition("::")[2]
    plain = re.sub(r"\((?:\w+\s+)?\*?\s*(\w+)(?:\[[^\]]*\])?\)", r"\1", plain)
    plain = re.sub(r"<[^<>]*>|\[[^\[\]]*\]", "", plain)
    parts = tuple(part for part in re.split(r"::|[.#]", plain) if part != "prototype")
    if not parts or not all(re.fullmatch(r"[^\W\d][\w$]*|[$_#][\w$]*", part) for part in parts):
        raise ToolFailure(
            f"name {name[:80]!r} is no name; right is, for example, 'total', 'Cart.total' or "
            "'Cart::total'",
            "invalid",
        )
    return parts, trait


class DefinitionTarget:
    """What is to be defined, and what of the file has that name."""

    def __init__(
        self, language: str, name: str, content: bytes, found: Sequence[Definition]
    ) -> None:
        self.language = language
        self.parts, self.trait = parts_of(name)
        self.found = found
        self.content = content
        self.own, self.shift = self._own()

    def _own(self) -> tuple[Definition, int]:
        """Return the definition in the content that is the named one, and how far its offsets are
        from the content's.
        """
        last, seen = self.parts[-1], ""
        tries = (
            [b""]
            if self.language not in {"javascript", "typescript", "tsx"}
            else [b"", b"class _ {\n"]
        )
        for head in tries:
            root = parse(self.language, head + self.content + (b"\n}" if head else b""))
            every = list(definitions(root, self.language))
            inside = [item for item in every if item.node.type != "impl_item"]
            fits = [item for item in inside if item.parts[-1] == last]
            if fits:
                found = fits[0]
                held = (
                    not head
                    and self.language != "go"
                    and any(item.parts == found.parts[:-1] for item in every)
                )
                if held and len(fits) == 1:
                    self._unwrap(found, inside)
                    return self._own()
                if self.language == "go" and len(found.parts) > len(self.parts):
                    self.parts = found.parts  # the content says whose method it is
                return found, len(head)
            seen = seen or next((item.label(self.language) for item in inside), "")
        instead = f"it defines {seen!r}" if seen else "none is in it"
        raise ToolFailure(
            f"content must be the whole definition of {last!r}, from its first line to its last; "
            f"{instead}",
            "invalid",
        )

    def _unwrap(self, found: Definition, inside: Sequence[Definition]) -> None:
        """Take a method out of the class that the content holds around it, where the class holds
        nothing else.
        """
        top = found.parts[:-1]
        others = [item for item in inside if item.parts != top and item is not found]
        if others or (len(self.parts) > 1 and self.parts[-1 - len(top) : -1] != top):
            raise ToolFailure(
                f"content defines {'.'.join(found.parts)!r} and more; send just the definition of "
                f"{self.parts[-1]!r}, or give the name {'.'.join(top)!r} to replace all of that",
                "invalid",
            )
        if len(self.parts) == 1:
            self.parts = found.parts
        start = line_start(self.content, found.start) if found.start else 0
        self.content = self.content[start : found.end]

    def place(self) -> Definition | None:
        """Return what has the name now, or None where it is new. Raises `ToolFailure` where more
        than one may be meant.
        """
        named = [item for item in self.found if item.node.type != "impl_item" and not item.is_stub]
        exact = [
            item
            for item in named
            if item.parts == self.parts and (not self.trait or item.trait == self.trait)
        ]
        if len(exact) > 1:
            notes = self.own.decorators
            exact = [item for item in exact if item.decorators == notes] if notes else exact
        if len(exact) == 1:
            return exact[0]
        count = len(self.parts)
        near = exact or [
            item for item in named if len(item.parts) > count and item.parts[-count:] == self.parts
        ]
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
                f"there is no {self.parts[-1]!r} outside a class; {self.list_definitions(near)}: "
                "give that name to replace it"
            )
        raise ToolFailure(
            f"{'.'.join(self.parts)!r} is defined {len(near)} times: "
            f"{self.list_definitions(near)}. {_HOW_TO_CHOOSE}"
        )

    def _is_member(self, item: Definition) -> bool:
        holder = next((other for other in self.found if other.parts == item.parts[:-1]), None)
        return holder is not None and holder.is_type

    def list_definitions(self, items: Sequence[Definition]) -> str:
        """Name some definitions and their lines."""
        shown = [f"{item.label(self.language)!r} on line {item.line}" for item in items[:_SHOWN]]
        return ", ".join(shown) + (
            f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
        )


def _is_method(own: Definition, shift: int) -> bool:
    """Whether a definition that stands alone is a method by its own looks."""
    if shift:
        return True
    held = own.node.child_by_field_name("parameters")
    first = first_child(held)
    if first is None:
        return False
    return first.type == "self_parameter" or (first.text or b"").partition(b":")[0].strip() in {
        b"self",
        b"cls",
    }
