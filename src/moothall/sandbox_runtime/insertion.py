"""Where in a file a definition goes, and how its lines are indented there. Runs in a child of the
executor.
"""

from __future__ import annotations

import os
import re

from moothall.sandbox_runtime.paths import ToolFailure
from moothall.sandbox_runtime.syntax import line_start, parse

TYPE_CHECKING = False  # the real one is in `typing`, which costs the executor start time
if TYPE_CHECKING:
    from tree_sitter import Node

    from moothall.sandbox_runtime.definition_target import DefinitionTarget
    from moothall.sandbox_runtime.syntax import Definition

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
_NOTES = frozenset({"attribute_item", "decorator"})
_CLASSES = {
    "python": "class",
    "javascript": "class",
    "typescript": "class",
    "tsx": "class",
    "rust": "impl block",
}

Spot = tuple[int, int, bytes, bytes, bytes]
"""Where the content goes: from, to, what is put before and after it, and the indentation of its
lines.
"""


def spot_of(data: bytes, old: Definition, wanted: DefinitionTarget) -> Spot:
    """Return where the old definition stands: what takes its place leaves decorators, `export` and
    attributes that it has none of.
    """
    own, content = wanted.own, wanted.content
    start, end = old.start, old.end
    if own.start == own.inner and old.start != old.inner and wanted.language != "go":
        start, end = (
            old.inner,
            old.inner_end,
        )  # decorators and `export` stay where the content has none
    lead = content[: max(own.start - wanted.shift, 0)].strip()
    if lead and start == old.start:
        start, wanted.content = _with_lead(data, old, content, lead, wanted)
    line = line_start(data, start)
    return (
        start,
        end,
        b"",
        b"",
        data[line : line + len(data[line:start]) - len(data[line:start].lstrip(b" \t"))],
    )


def _with_lead(
    data: bytes, old: Definition, content: bytes, lead: bytes, wanted: DefinitionTarget
) -> tuple[int, bytes]:
    """Let the comments and attributes that the content begins with take the place of those that
    stand before the old one.

    Attributes that the content has none of are kept.
    """
    start = old.start
    notes: list[bytes] = []
    said: list[bytes] = []
    before = old.outer.prev_named_sibling
    row = old.outer.start_point[0]
    while (
        before is not None
        and before.type in _COMMENTS | _NOTES
        and row - 1 <= before.end_point[0] - (before.end_point[1] == 0) <= row
    ):
        text = data[before.start_byte : before.end_byte].strip()
        if data[line_start(data, before.start_byte) : before.start_byte].strip():
            break  # it belongs to what stands before it on its line
        is_note = before.type in _NOTES or text.startswith(b"//go:")
        documents = text.startswith((b"///", b"/**")) or wanted.language == "go"
        if not is_note and not documents and text not in lead:
            break
        (notes if is_note else said).insert(0, text)
        start, row = before.start_byte, before.start_point[0]
        before = before.prev_named_sibling
    has_notes = b"#[" in lead or b"\n@" in b"\n" + lead or b"//go:" in lead
    if not notes or has_notes:
        return start, content
    at = content.find(lead) + len(lead)
    return start, content[:at] + b"\n" + b"\n".join(notes) + b"\n" + content[at:].lstrip(b"\r\n")


def free_spot(data: bytes, root: Node, wanted: DefinitionTarget) -> Spot:
    """Return where something new goes: at the end of its class, or of the file."""
    language, parts = wanted.language, wanted.parts
    if len(parts) > 1 and language != "go":
        return _end_of_body(data, _holder(wanted), language)
    if len(parts) > 1 and (
        siblings := [item for item in wanted.found if item.parts[:-1] == parts[:-1]]
    ):
        return siblings[-1].end, siblings[-1].end, b"\n\n", b"", b""
    gap = b"\n\n\n" if language == "python" else b"\n\n"
    last = _closing_start(root, data, language)
    if last is not None:
        return last, last, b"", gap, b""
    before = b"" if not data.strip() else gap[data.endswith(b"\n") :]
    end = len(data.rstrip()) if data.strip() else 0
    tail = data[end:]
    if tail.strip(b"\r\n"):
        return len(data), len(data), before, b"\n", b""
    return end, len(data), gap if data.strip() else b"", b"\n", b""


def _closing_start(root: Node, data: bytes, language: str) -> int | None:
    """Return where the part begins that stays last: Python's main block, Rust's module of tests."""
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


def _holder(wanted: DefinitionTarget) -> Definition:
    language, parts = wanted.language, wanted.parts
    above = parts[:-1]
    kind = {"impl_item", "trait_item", "mod_item"} if language == "rust" else None
    fits = [
        item
        for item in wanted.found
        if item.parts == above
        and item.body is not None
        and item.is_type
        and (kind is None or item.node.type in kind)
    ]
    if language == "rust":
        fits = [item for item in fits if item.trait == wanted.trait] or (
            [] if wanted.trait else fits
        )
        fits = fits[-1:]
    if len(fits) == 1:
        return fits[0]
    word = _CLASSES[language]
    known = [item for item in wanted.found if item.is_type and item.body is not None]
    have = f"there are {wanted.list_definitions(known)}" if known else "the file has none"
    many = "more than one" if fits else "no"
    raise ToolFailure(f"there is {many} {word} {'.'.join(above)!r} to add {parts[-1]!r} to; {have}")


def _end_of_body(data: bytes, holder: Definition, language: str) -> Spot:
    body = holder.body
    assert body is not None  # noqa: S101 - _holder chose one with a body
    members = [child for child in body.named_children if child.type not in _COMMENTS]
    first = members[0] if members else None
    own_line = (
        first is not None
        and not data[line_start(data, first.start_byte) : first.start_byte].strip()
    )
    outer = _indent(data, holder.start)
    if own_line and first is not None:
        indent = data[line_start(data, first.start_byte) : first.start_byte]
    else:
        indent = outer + _unit(data, language)
    if language == "python":
        if not own_line:
            raise ToolFailure(
                f"the body of {'.'.join(holder.parts)!r} stands on the line of its name; define "
                "that as a whole"
            )
        end = body.end_byte
        line_end = data.find(b"\n", end)
        stop = len(data) if line_end < 0 else line_end
        stop -= data[:stop].endswith(b"\r")
        return stop, stop, b"\n\n" + indent, b"", indent
    close = body.end_byte - 1
    line = line_start(data, close)
    gap = b"\n" if members else b""
    if data[line:close].strip():
        return close, close, b"\n" + indent, b"\n" + outer, indent
    return line, line, gap + indent, b"\n", indent


def _indent(data: bytes, at: int) -> bytes:
    line = data[line_start(data, at) : at]
    return line[: len(line) - len(line.lstrip(b" \t"))]


def _unit(data: bytes, language: str) -> bytes:
    """Return one step of the file's indentation."""
    rows = re.findall(rb"^([ \t]+)\S", data, re.MULTILINE)
    if language == "go" or sum(row.startswith(b"\t") for row in rows) * 2 > len(rows):
        return b"\t"
    return min((row for row in rows if len(row) > 1), key=len, default=b"    ")


def with_tabs(content: bytes, data: bytes, indent: bytes) -> bytes:
    """Spell the content's indentation in tabs where the file has them and the content has
    spaces.
    """
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
        lambda found: b"\t" * (len(found[0]) // step),
        content,
        flags=re.MULTILINE,
    )


def _kept_rows(content: bytes, language: str) -> set[int]:
    """Return the lines, from 0, that begin within a string that is no docstring: their indentation
    is part of its value.
    """
    rows: set[int] = set()
    waiting = [parse(language, content)]
    while waiting:
        node = waiting.pop()
        if node.type in _STRINGS:
            statement = node.parent is not None and node.parent.type == "expression_statement"
            if not (statement and language == "python"):
                rows.update(range(node.start_point[0] + 1, node.end_point[0] + 1))
            continue
        waiting += node.named_children
    return rows


def with_indent(text: bytes, indent: bytes, language: str) -> bytes:
    """Return the text with `indent` in place of the indentation that all its lines share."""
    kept = _kept_rows(text, language)
    rows = text.split(b"\n")
    leads = [
        row[: len(row) - len(row.lstrip(b" \t"))]
        for at, row in enumerate(rows)
        if row.strip() and at not in kept
    ]
    share = len(os.path.commonprefix(leads))  # noqa: RUF071 - of spaces, not of paths
    return b"\n".join(
        row if at in kept else indent + row[share:] if row.strip() else row.strip()
        for at, row in enumerate(rows)
    )


def first_shifted(text: bytes, indent: bytes, language: str) -> bytes:
    """Return the text where only its first line lacks the indentation."""
    del language
    return indent + text.lstrip(b" \t")
