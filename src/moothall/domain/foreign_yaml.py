"""YAML that a repository's authors wrote. Pure."""

from __future__ import annotations

from typing import Any

import yaml


class _ForeignLoader(yaml.BaseLoader):
    """Creates only strings, lists and dicts, in time that is linear in the text: aliases, which can
    multiply a small text, are errors.
    """

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not allowed")
        return super().compose_node(parent, index)


def parse_foreign_yaml(text: str) -> Any:
    """Return the strings, lists and dicts of a document; None if it is invalid or has aliases."""
    try:
        return yaml.load(text, _ForeignLoader)  # noqa: S506 - it creates no objects
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
