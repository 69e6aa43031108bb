"""Tool names of other systems. docs/doors.md has the same table; a test compares them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from moothall.domain.tool import Action
from moothall.errors import InvalidRequest

_MAX_SHOWN_NAMES = 5


@dataclass(frozen=True, slots=True)
class Alias:
    """The tool of an alias, and the names of its arguments there."""

    tool: str
    arguments: Mapping[str, str] = field(default_factory=dict)


ALIASES: Mapping[str, Alias] = {
    "bash": Alias("code.shell"),
    "browser": Alias("browser.run"),
    "code_executor": Alias("code.python"),
    "diff_files": Alias("files.diff", {"path_a": "path", "path_b": "other"}),
    "file_delete": Alias("files.delete"),
    "file_edit": Alias("files.edit", {"old_text": "old", "new_text": "new"}),
    "file_list": Alias("files.list", {"pattern": "glob"}),
    "file_read": Alias("files.read", {"offset": "start", "limit": "lines"}),
    "file_search": Alias("files.search", {"query": "pattern", "include": "glob"}),
    "file_write": Alias("files.write"),
    "python_executor": Alias("code.python", {"session_id": "session"}),
    "session_file_list": Alias("files.list", {"filter_pattern": "glob"}),
    "session_file_write": Alias("files.write"),
    "web_fetch": Alias("web.fetch"),
    "web_search": Alias("web.search"),
}
"""Tools by alias. Arguments that are not listed keep their names; a tool refuses unknown ones."""


def tool_name(name: str) -> str:
    """Return the name of the tool in the catalogue."""
    alias = ALIASES.get(name)
    return alias.tool if alias else name


def tool_action(name: str, arguments: Mapping[str, Any]) -> Action:
    """Translate a call into one of a tool in the catalogue.

    Null, and 0 for a renamed argument, mean that the argument is left out.
    """
    alias = ALIASES.get(name)
    if alias is None:
        return Action(name, arguments)
    present = {
        key: value
        for key, value in arguments.items()
        if value is not None and not (key in alias.arguments and value == 0)
    }
    return Action(
        alias.tool, {alias.arguments.get(key, key): value for key, value in present.items()}
    )


def check_names(names: Iterable[str], known: Collection[str], field: str) -> tuple[str, ...]:
    """Translate names into those of the catalogue, each once.

    Raises `InvalidRequest` for unknown names.
    """
    catalogue_names = tuple(dict.fromkeys(map(tool_name, names)))
    if unknown := [name for name in catalogue_names if name not in known]:
        shown = ", ".join(repr(name[:80]) for name in unknown[:_MAX_SHOWN_NAMES]) + (
            ", …" if len(unknown) > _MAX_SHOWN_NAMES else ""
        )
        raise InvalidRequest(
            f"{field} names tools that do not exist: {shown}; DiscoverTools lists all tools"
        )
    return catalogue_names
