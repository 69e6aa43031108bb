"""`files.define`: a whole function, method or class by its name, replaced or added. Runs in a child
of the executor.

Only the named span changes: every byte before and after it stays, with the file's own line ends and
byte order mark.
"""

from __future__ import annotations

from dataclasses import dataclass

from moothall.sandbox_runtime.definition_target import DefinitionTarget
from moothall.sandbox_runtime.insertion import (
    first_shifted,
    free_spot,
    spot_of,
    with_indent,
    with_tabs,
)
from moothall.sandbox_runtime.paths import ToolFailure
from moothall.sandbox_runtime.syntax import definitions, first_error, parse

TYPE_CHECKING = False  # the real one is in `typing`, which costs the executor start time
if TYPE_CHECKING:
    from tree_sitter import Node

_MARK = "\ufeff"


@dataclass(frozen=True, slots=True)
class Definition:
    """A text after the change, whether the name was there, and the lines that hold it now."""

    text: str
    replaced: bool
    start: int
    end: int


def define(text: str, language: str, name: str, content: str) -> Definition:
    """Return `text` with the definition of `name` being `content`. Raises `ToolFailure` where that
    is not clear or breaks it.
    """
    mark = _MARK if text.startswith(_MARK) else ""
    data = text.removeprefix(_MARK).encode("utf-8", "surrogateescape")
    own = (
        content.removeprefix(_MARK)
        .replace("\r\n", "\n")
        .strip("\n")
        .rstrip()
        .encode("utf-8", "replace")
    )
    if not own.strip():
        raise ToolFailure("content is empty; send the whole definition", "invalid")
    root = parse(language, data)
    found = list(definitions(root, language, deep=True))
    wanted = DefinitionTarget(language, name, own, found)
    old = wanted.place()
    start, until, before, after, indent = (
        spot_of(data, old, wanted) if old else free_spot(data, root, wanted)
    )
    end = b"\r\n" if 2 * data.count(b"\r\n") > data.count(b"\n") else b"\n"
    refusal = ""
    for shift in (with_indent, first_shifted):
        body = shift(with_tabs(wanted.content, data, indent), indent, language)
        new = (before + body.lstrip(b" \t") + after).replace(b"\n", end)
        made = data[:start] + new + data[until:]
        refusal = _what_is_wrong(root, data, made, data[:start].count(b"\n"), wanted)
        if not refusal:
            first = made[: start + len(before)].count(b"\n") + 1
            return Definition(
                mark + made.decode("utf-8", "surrogateescape"),
                old is not None,
                first,
                first + body.count(b"\n"),
            )
    raise ToolFailure(refusal)


def _what_is_wrong(
    root: Node, data: bytes, made: bytes, first_row: int, wanted: DefinitionTarget
) -> str:
    """Say what is wrong with the file after the change, or nothing."""
    language = wanted.language
    after = parse(language, made)
    error = first_error(after)
    if error is not None and not root.has_error:
        return _where(made, error.start_point[0] + 1, first_row, wanted, "")
    if (
        language == "python"
        and not root.has_error
        and _python_error(data) is None
        and (wrong := _python_error(made))
    ):
        return _where(made, wrong[0], first_row, wanted, f": {wrong[1]}")
    named = {item.parts for item in definitions(after, language, deep=True)}
    if wanted.parts not in named and not any(
        parts[-len(wanted.parts) :] == wanted.parts for parts in named
    ):
        return (
            f"with this content the file would not define {'.'.join(wanted.parts)!r}; send the "
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


def _where(made: bytes, line: int, first_row: int, wanted: DefinitionTarget, why: str) -> str:
    rows = made.split(b"\n")
    shown = rows[min(line, len(rows)) - 1].decode("utf-8", "replace").strip()[:200]
    within = line - first_row
    place = f"near line {within} of the content{why}: {shown!r}"
    if not 0 < within <= wanted.content.count(b"\n") + 1:
        place = (
            f"near its line {line}, {shown!r}{why}; is a bracket or a quote of the content left "
            "open?"
        )
    return f"nothing was changed: the file would not parse any more, {place}"
