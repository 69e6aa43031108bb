"""`files.define`: replace or add a function, method or class by its name. Runs in a child of the
executor.

Only the named span changes. All other bytes stay, with the file's line ends and byte order mark.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from moothall.sandbox_runtime.file_access import ToolFailure
from moothall.sandbox_runtime.syntax import definitions, first_child, first_error, line_start, parse

TYPE_CHECKING = False  # the real one is in `typing`, which costs the executor start time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tree_sitter import Node

    from moothall.sandbox_runtime.syntax import Definition


# The target of `files.define`: a name in the notation of each language, and its definition in the
# content.


_MAX_LISTED = 8
_HOW_TO_CHOOSE = (
    "Give the qualified name of one, begin the content with its decorators, or change its text "
    "with files.edit"
)


def split_qualified_name(name: str) -> tuple[tuple[str, ...], str]:
    """Return a name's parts and trait: `a.B.c`, `T::m`, `(*T).M` and `<T as Trait>::m`. Raises
    `ToolFailure`.
    """
    plain_name = re.sub(
        r"^(?:(?:export|pub|async|def|class|func|function|fn|struct)\s+)+", "", name.strip()
    ).removesuffix("()")
    trait = ""
    if match := re.fullmatch(
        r"<\s*([\w:]+)(?:<.*>)?\s+as\s+([\w:]+)(?:<.*>)?\s*>::(\w+)", plain_name
    ):
        plain_name, trait = f"{match[1]}::{match[3]}", match[2].rpartition("::")[2]
    plain_name = re.sub(r"\((?:\w+\s+)?\*?\s*(\w+)(?:\[[^\]]*\])?\)", r"\1", plain_name)
    plain_name = re.sub(r"<[^<>]*>|\[[^\[\]]*\]", "", plain_name)
    parts = tuple(part for part in re.split(r"::|[.#]", plain_name) if part != "prototype")
    if not parts or not all(re.fullmatch(r"[^\W\d][\w$]*|[$_#][\w$]*", part) for part in parts):
        raise ToolFailure(
            f"name {name[:80]!r} is not a name; right is, for example, 'total', 'Cart.total' or "
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


# The position of a definition in a file, and the indentation of its lines there. Runs in a child of
# the executor.


_STRINGS = frozenset(
    {
        "string",
        "template_string",
        "raw_string_literal",
        "string_literal",
        "interpreted_string_literal",
    }
)
_COMMENTS = frozenset({"comment", "line_comment", "block_comment"})
_ATTRIBUTES = frozenset({"attribute_item", "decorator"})
_CLASSES = {
    "python": "class",
    "javascript": "class",
    "typescript": "class",
    "tsx": "class",
    "rust": "impl block",
}

Spot = tuple[int, int, bytes, bytes, bytes]
"""The target of the content: start and end offsets, the text before and after it, and the
indentation of its lines.
"""


def replacement_spot(data: bytes, old: Definition, target: DefinitionTarget) -> Spot:
    """Return the span of an existing definition. Its decorators, `export` and attributes are kept
    if the content has none.
    """
    new, content = target.new_definition, target.content
    start, end = old.start, old.end
    if new.start == new.inner and old.start != old.inner and target.language != "go":
        start, end = (
            old.inner,
            old.inner_end,
        )  # keep decorators and `export` if the content has none
    lead = content[: max(new.start - target.offset_shift, 0)].strip()
    if lead and start == old.start:
        start, target.content = _with_lead(data, old, content, lead, target)
    line = line_start(data, start)
    return (
        start,
        end,
        b"",
        b"",
        data[line : line + len(data[line:start]) - len(data[line:start].lstrip(b" \t"))],
    )


def _with_lead(
    data: bytes, old: Definition, content: bytes, lead: bytes, target: DefinitionTarget
) -> tuple[int, bytes]:
    """Extend the replaced span to the comments and attributes before the definition if the content
    begins with its own.

    Attributes are kept if the content has none.
    """
    start = old.start
    attributes: list[bytes] = []
    comments: list[bytes] = []
    before = old.outer.prev_named_sibling
    row = old.outer.start_point[0]
    while (
        before is not None
        and before.type in _COMMENTS | _ATTRIBUTES
        and row - 1 <= before.end_point[0] - (before.end_point[1] == 0) <= row
    ):
        text = data[before.start_byte : before.end_byte].strip()
        if data[line_start(data, before.start_byte) : before.start_byte].strip():
            break  # it belongs to the code before it on its line
        is_attribute = before.type in _ATTRIBUTES or text.startswith(b"//go:")
        is_doc_comment = text.startswith((b"///", b"/**")) or target.language == "go"
        if not is_attribute and not is_doc_comment and text not in lead:
            break
        (attributes if is_attribute else comments).insert(0, text)
        start, row = before.start_byte, before.start_point[0]
        before = before.prev_named_sibling
    has_attributes = b"#[" in lead or b"\n@" in b"\n" + lead or b"//go:" in lead
    if not attributes or has_attributes:
        return start, content
    offset = content.find(lead) + len(lead)
    return start, content[:offset] + b"\n" + b"\n".join(attributes) + b"\n" + content[
        offset:
    ].lstrip(b"\r\n")


def free_spot(data: bytes, root: Node, target: DefinitionTarget) -> Spot:
    """Return the position of a new definition: at the end of its class, or of the file."""
    language, parts = target.language, target.parts
    if len(parts) > 1 and language != "go":
        return _end_of_body(data, _find_container(target), language)
    if len(parts) > 1 and (
        siblings := [item for item in target.existing if item.parts[:-1] == parts[:-1]]
    ):
        return siblings[-1].end, siblings[-1].end, b"\n\n", b"", b""
    gap = b"\n\n\n" if language == "python" else b"\n\n"
    closing_start = _closing_start(root, data, language)
    if closing_start is not None:
        return closing_start, closing_start, b"", gap, b""
    before = b"" if not data.strip() else gap[data.endswith(b"\n") :]
    end = len(data.rstrip()) if data.strip() else 0
    tail = data[end:]
    if tail.strip(b"\r\n"):
        return len(data), len(data), before, b"\n", b""
    return end, len(data), gap if data.strip() else b"", b"\n", b""


def _closing_start(root: Node, data: bytes, language: str) -> int | None:
    """Return the start of the part that must stay last: Python's main block, or Rust's module of
    tests.
    """
    children = root.named_children
    last = children[-1] if children else None
    if last is None:
        return None
    if language == "python" and last.type == "if_statement":
        test = last.child_by_field_name("condition")
        if test is not None and b"__name__" in (test.text or b""):
            return line_start(data, last.start_byte)
    if (
        language == "rust"
        and last.type == "mod_item"
        and len(children) > 1
        and children[-2].type == "attribute_item"
    ):
        return line_start(data, children[-2].start_byte)
    return None


def _find_container(target: DefinitionTarget) -> Definition:
    language, parts = target.language, target.parts
    container_parts = parts[:-1]
    kind = {"impl_item", "trait_item", "mod_item"} if language == "rust" else None
    matches = [
        item
        for item in target.existing
        if item.parts == container_parts
        and item.body is not None
        and item.is_type
        and (kind is None or item.node.type in kind)
    ]
    if language == "rust":
        matches = [item for item in matches if item.trait == target.trait] or (
            [] if target.trait else matches
        )
        matches = matches[-1:]
    if len(matches) == 1:
        return matches[0]
    word = _CLASSES[language]
    containers = [item for item in target.existing if item.is_type and item.body is not None]
    existing = (
        f"there are {target.list_definitions(containers)}" if containers else "the file has none"
    )
    quantity = "more than one" if matches else "no"
    raise ToolFailure(
        f"there is {quantity} {word} {'.'.join(container_parts)!r} to add {parts[-1]!r} to; "
        f"{existing}"
    )


def _end_of_body(data: bytes, container: Definition, language: str) -> Spot:
    body = container.body
    assert body is not None  # noqa: S101 - _find_container requires a body
    members = [child for child in body.named_children if child.type not in _COMMENTS]
    first_member = members[0] if members else None
    members_on_own_lines = (
        first_member is not None
        and not data[line_start(data, first_member.start_byte) : first_member.start_byte].strip()
    )
    outer = _indent(data, container.start)
    if members_on_own_lines and first_member is not None:
        indent = data[line_start(data, first_member.start_byte) : first_member.start_byte]
    else:
        indent = outer + _indentation_step(data, language)
    if language == "python":
        if not members_on_own_lines:
            raise ToolFailure(
                f"the body of {'.'.join(container.parts)!r} stands on the line of its name; define "
                "that as a whole"
            )
        end = body.end_byte
        line_end = data.find(b"\n", end)
        insert_at = len(data) if line_end < 0 else line_end
        insert_at -= data[:insert_at].endswith(b"\r")
        return insert_at, insert_at, b"\n\n" + indent, b"", indent
    close = body.end_byte - 1
    line = line_start(data, close)
    gap = b"\n" if members else b""
    if data[line:close].strip():
        return close, close, b"\n" + indent, b"\n" + outer, indent
    return line, line, gap + indent, b"\n", indent


def _indent(data: bytes, offset: int) -> bytes:
    line = data[line_start(data, offset) : offset]
    return line[: len(line) - len(line.lstrip(b" \t"))]


def _indentation_step(data: bytes, language: str) -> bytes:
    """Return one step of the file's indentation."""
    rows = re.findall(rb"^([ \t]+)\S", data, re.MULTILINE)
    if language == "go" or sum(row.startswith(b"\t") for row in rows) * 2 > len(rows):
        return b"\t"
    return min((row for row in rows if len(row) > 1), key=len, default=b"    ")


def with_tabs(content: bytes, data: bytes, indent: bytes) -> bytes:
    """Convert the content's indentation to tabs if the file uses tabs and the content spaces."""
    tabs = (
        len(re.findall(rb"^\t", data, re.MULTILINE)) > len(re.findall(rb"^ ", data, re.MULTILINE))
        or indent[:1] == b"\t"
    )
    rows = re.findall(rb"^( +)\S", content, re.MULTILINE)
    if not tabs or not rows or re.search(rb"^\t", content, re.MULTILINE):
        return content
    step = min(map(len, rows))
    return re.sub(
        rb"^(?: {%d})+" % step,
        lambda match: b"\t" * (len(match[0]) // step),
        content,
        flags=re.MULTILINE,
    )


def _kept_rows(content: bytes, language: str) -> set[int]:
    """Return the indices of the lines that begin inside a string, because their indentation is part
    of the value. Docstrings do not count.
    """
    rows: set[int] = set()
    pending = [parse(language, content)]
    while pending:
        node = pending.pop()
        if node.type in _STRINGS:
            statement = node.parent is not None and node.parent.type == "expression_statement"
            if not (statement and language == "python"):
                rows.update(range(node.start_point[0] + 1, node.end_point[0] + 1))
            continue
        pending += node.named_children
    return rows


def with_indent(text: bytes, indent: bytes, language: str) -> bytes:
    """Return the text with `indent` in place of the indentation that all its lines share."""
    kept_rows = _kept_rows(text, language)
    rows = text.split(b"\n")
    leads = [
        row[: len(row) - len(row.lstrip(b" \t"))]
        for row_index, row in enumerate(rows)
        if row.strip() and row_index not in kept_rows
    ]
    shared_length = len(os.path.commonprefix(leads))  # noqa: RUF071 - of spaces, not of paths
    return b"\n".join(
        row
        if row_index in kept_rows
        else indent + row[shared_length:]
        if row.strip()
        else row.strip()
        for row_index, row in enumerate(rows)
    )


def first_shifted(text: bytes, indent: bytes, language: str) -> bytes:
    """Return the text with `indent` before its first line, for content in which only that line
    lacks it.
    """
    del language
    return indent + text.lstrip(b" \t")


# Replacing and adding.


_MARK = "\ufeff"


@dataclass(frozen=True, slots=True)
class ChangedText:
    """The changed text, whether the name was there, and the lines of the definition."""

    text: str
    replaced: bool
    start: int
    end: int


def define(text: str, language: str, name: str, content: str) -> ChangedText:
    """Return `text` with `content` as the definition of `name`. Raises `ToolFailure` if the target
    is ambiguous or the result would not parse.
    """
    mark = _MARK if text.startswith(_MARK) else ""
    data = text.removeprefix(_MARK).encode("utf-8", "surrogateescape")
    new_definition = (
        content.removeprefix(_MARK)
        .replace("\r\n", "\n")
        .strip("\n")
        .rstrip()
        .encode("utf-8", "replace")
    )
    if not new_definition.strip():
        raise ToolFailure("content is empty; send the whole definition", "invalid")
    root = parse(language, data)
    existing = list(definitions(root, language, deep=True))
    target = DefinitionTarget(language, name, new_definition, existing)
    old = target.find_existing()
    start, until, before, after, indent = (
        replacement_spot(data, old, target) if old else free_spot(data, root, target)
    )
    end = b"\r\n" if 2 * data.count(b"\r\n") > data.count(b"\n") else b"\n"
    refusal = ""
    for shift in (with_indent, first_shifted):
        body = shift(with_tabs(target.content, data, indent), indent, language)
        inserted = (before + body.lstrip(b" \t") + after).replace(b"\n", end)
        changed = data[:start] + inserted + data[until:]
        refusal = _find_problem(root, data, changed, data[:start].count(b"\n"), target)
        if not refusal:
            first_line = changed[: start + len(before)].count(b"\n") + 1
            return ChangedText(
                mark + changed.decode("utf-8", "surrogateescape"),
                old is not None,
                first_line,
                first_line + body.count(b"\n"),
            )
    raise ToolFailure(refusal)


def _find_problem(
    root: Node, data: bytes, changed: bytes, first_row: int, target: DefinitionTarget
) -> str:
    """Return the problem of the changed file, '' for none."""
    language = target.language
    after = parse(language, changed)
    error = first_error(after)
    if error is not None and not root.has_error:
        return _parse_error(changed, error.start_point[0] + 1, first_row, target, "")
    if (
        language == "python"
        and not root.has_error
        and _python_error(data) is None
        and (syntax_error := _python_error(changed))
    ):
        return _parse_error(changed, syntax_error[0], first_row, target, f": {syntax_error[1]}")
    names = {item.parts for item in definitions(after, language, deep=True)}
    if target.parts not in names and not any(
        parts[-len(target.parts) :] == target.parts for parts in names
    ):
        return (
            f"with this content the file would not define {'.'.join(target.parts)!r}; send the "
            "whole definition"
        )
    return ""


def _python_error(data: bytes) -> tuple[int, str] | None:
    try:
        compile(data, "", "exec", 0x400, dont_inherit=True)  # ast.PyCF_ONLY_AST
    except SyntaxError as error:
        return error.lineno or 1, error.msg
    except (ValueError, RecursionError, MemoryError):
        return None
    return None


def _parse_error(
    changed: bytes, line: int, first_row: int, target: DefinitionTarget, reason: str
) -> str:
    rows = changed.split(b"\n")
    row_text = rows[min(line, len(rows)) - 1].decode("utf-8", "replace").strip()[:200]
    content_line = line - first_row
    position = f"near line {content_line} of the content{reason}: {row_text!r}"
    if not 0 < content_line <= target.content.count(b"\n") + 1:
        position = (
            f"near its line {line}, {row_text!r}{reason}; is a bracket or a quote of the content "
            "left open?"
        )
    return f"nothing was changed: the file would not parse any more, {position}"
