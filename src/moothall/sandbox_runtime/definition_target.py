"""The target of `files.define`: a name in the notation of each language, and its definition in the
content.
"""

from __future__ import annotations

import re

from moothall.sandbox_runtime.paths import ToolFailure
from moothall.sandbox_runtime.syntax import definitions, first_child, line_start, parse

TYPE_CHECKING = False  # the real one is in `typing`, which costs the executor start time
if TYPE_CHECKING:
    from collections.abc import Sequence

    from moothall.sandbox_runtime.syntax import Definition

_MAX_LISTED = 8
_HOW_TO_CHOOSE = (
    "Give the qualified name of one, begin the content with its decorators, or change its text "
    "with files.edit"
)


def split_qualified_name(name: str) -> tuple[tuple[str, ...], str]:
    """Return a name's parts and trait: `a.B.c`, `T::m`, `(*T).M` and `<T as Trait>::m`. Raises
    `ToolFailure`.
    """
    cleaned = re.sub(
        r"^(?:(?:export|pub|async|def|class|func|function|fn|struct)\s+)+", "", name.strip()
    ).removesuffix("()")
    trait = ""
    if match := re.fullmatch(r"<\s*([\w:]+)(?:<.*>)?\s+as\s+([\w:]+)(?:<.*>)?\s*>::(\w+)", cleaned):
        cleaned, trait = f"{match[1]}::{match[3]}", match[2].rpartition("::")[2]
    cleaned = re.sub(r"\((?:\w+\s+)?\*?\s*(\w+)(?:\[[^\]]*\])?\)", r"\1", cleaned)
    cleaned = re.sub(r"<[^<>]*>|\[[^\[\]]*\]", "", cleaned)
    parts = tuple(part for part in re.split(r"::|[.#]", cleaned) if part != "prototype")
    if not parts or not all(re.fullmatch(r"[^\W\d][\w$]*|[$_#][\w$]*", part) for part in parts):
        raise ToolFailure(
            f"name {name[:80]!r} is no name; right is, for example, 'total', 'Cart.total' or "
            "'Cart::total'",
            "invalid",
        )
    return parts, trait


class DefinitionTarget:
    """The definition to write, and the existing definitions of the file."""

    def __init__(
        self, language: str, name: str, content: bytes, existing: Sequence[Definition]
    ) -> None:
        self.language = language
        self.parts, self.trait = split_qualified_name(name)
        self.existing = existing
        self.content = content
        self.new_definition, self.offset_shift = self._find_in_content()

    def _find_in_content(self) -> tuple[Definition, int]:
        """Return the named definition in the content, and the difference between its offsets and
        the content's.
        """
        name, other_label = self.parts[-1], ""
        prefixes = (
            [b""]
            if self.language not in {"javascript", "typescript", "tsx"}
            else [b"", b"class _ {\n"]
        )
        for prefix in prefixes:
            root = parse(self.language, prefix + self.content + (b"\n}" if prefix else b""))
            all_definitions = list(definitions(root, self.language))
            candidates = [item for item in all_definitions if item.node.type != "impl_item"]
            matches = [item for item in candidates if item.parts[-1] == name]
            if matches:
                match = matches[0]
                is_in_class = (
                    not prefix
                    and self.language != "go"
                    and any(item.parts == match.parts[:-1] for item in all_definitions)
                )
                if is_in_class and len(matches) == 1:
                    self._unwrap(match, candidates)
                    return self._find_in_content()
                if self.language == "go" and len(match.parts) > len(self.parts):
                    self.parts = match.parts  # the content says whose method it is
                return match, len(prefix)
            other_label = other_label or next(
                (item.label(self.language) for item in candidates), ""
            )
        instead = f"it defines {other_label!r}" if other_label else "none is in it"
        raise ToolFailure(
            f"content must be the whole definition of {name!r}, from its first line to its last; "
            f"{instead}",
            "invalid",
        )

    def _unwrap(self, match: Definition, candidates: Sequence[Definition]) -> None:
        """Take a method out of the class around it in the content, if the class contains nothing
        else.
        """
        class_parts = match.parts[:-1]
        other_definitions = [
            item for item in candidates if item.parts != class_parts and item is not match
        ]
        if other_definitions or (
            len(self.parts) > 1 and self.parts[-1 - len(class_parts) : -1] != class_parts
        ):
            raise ToolFailure(
                f"content defines {'.'.join(match.parts)!r} and more; send just the definition of "
                f"{self.parts[-1]!r}, or give the name {'.'.join(class_parts)!r} to replace all "
                "of that",
                "invalid",
            )
        if len(self.parts) == 1:
            self.parts = match.parts
        start = line_start(self.content, match.start) if match.start else 0
        self.content = self.content[start : match.end]

    def find_existing(self) -> Definition | None:
        """Return the existing definition, or None if the name is new. Raises `ToolFailure` if
        several match.
        """
        candidates = [
            item for item in self.existing if item.node.type != "impl_item" and not item.is_stub
        ]
        exact = [
            item
            for item in candidates
            if item.parts == self.parts and (not self.trait or item.trait == self.trait)
        ]
        if len(exact) > 1:
            decorators = self.new_definition.decorators
            exact = (
                [item for item in exact if item.decorators == decorators] if decorators else exact
            )
        if len(exact) == 1:
            return exact[0]
        count = len(self.parts)
        matches = exact or [
            item
            for item in candidates
            if len(item.parts) > count and item.parts[-count:] == self.parts
        ]
        if not matches:
            return None
        if not exact and count == 1 and not _is_method(self.new_definition, self.offset_shift):
            methods = [item for item in matches if self._is_member(item)]
            if not methods:
                return None  # a name within a function is unrelated
            matches = methods
        elif len(matches) == 1:
            return matches[0]
        if len(matches) == 1:
            raise ToolFailure(
                f"there is no {self.parts[-1]!r} outside a class; "
                f"{self.list_definitions(matches)}: give that name to replace it"
            )
        raise ToolFailure(
            f"{'.'.join(self.parts)!r} is defined {len(matches)} times: "
            f"{self.list_definitions(matches)}. {_HOW_TO_CHOOSE}"
        )

    def _is_member(self, item: Definition) -> bool:
        container = next(
            (definition for definition in self.existing if definition.parts == item.parts[:-1]),
            None,
        )
        return container is not None and container.is_type

    def list_definitions(self, items: Sequence[Definition]) -> str:
        """Return some definitions and their lines as text."""
        listed = [
            f"{item.label(self.language)!r} on line {item.line}" for item in items[:_MAX_LISTED]
        ]
        return ", ".join(listed) + (
            f" and {len(items) - _MAX_LISTED} more" if len(items) > _MAX_LISTED else ""
        )


def _is_method(new_definition: Definition, offset_shift: int) -> bool:
    """Return whether a separate definition looks like a method."""
    if offset_shift:
        return True
    parameters = new_definition.node.child_by_field_name("parameters")
    first_parameter = first_child(parameters)
    if first_parameter is None:
        return False
    return first_parameter.type == "self_parameter" or (first_parameter.text or b"").partition(
        b":"
    )[0].strip() in {
        b"self",
        b"cls",
    }
