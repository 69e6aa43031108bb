"""`files.define`: replace or add a function, method or class by its name. Runs in a child of the
executor.

Only the named span changes. All other bytes stay, with the file's line ends and byte order mark.
"""

from __future__ import annotations

from dataclasses import dataclass

from moothall.sandbox_runtime.definition_target import (
    DefinitionTarget,
    first_shifted,
    free_spot,
    replacement_spot,
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
    """The changed text, whether the name was there, and the lines of the definition."""

    text: str
    replaced: bool
    start: int
    end: int


def define(text: str, language: str, name: str, content: str) -> Definition:
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
            return Definition(
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
