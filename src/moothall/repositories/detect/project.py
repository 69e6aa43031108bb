"""The folder of a project as detection sees it, and the result of detection. Pure."""

from __future__ import annotations

import configparser
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from moothall.domain.repository import BuildStep, SetupStep
from moothall.errors import RepositoryError
from moothall.repositories.patch_rules import matches


@dataclass(frozen=True, slots=True)
class Project:
    """The files below `folder` ('' is the root) by their path from there, and the texts of some of
    them.
    """

    folder: str
    files: frozenset[str]
    texts: Mapping[str, str]

    def any(self, *patterns: str) -> bool:
        """Return whether a file matches one of the patterns (gitignore style)."""
        return any(matches(patterns, path) for path in self.files)

    def toml(self, name: str) -> Mapping[str, Any]:
        """Parse a TOML file, empty if there is none. Raises `RepositoryError`."""
        try:
            return tomllib.loads(self.texts.get(name, ""))
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise RepositoryError(f"{self.path(name)} is not TOML: {error}") from error

    def json(self, name: str) -> Mapping[str, Any]:
        """Parse a JSON object, empty if there is none. Raises `RepositoryError`."""
        try:
            return table(json.loads(self.texts.get(name, "{}")))
        except (ValueError, RecursionError) as error:
            raise RepositoryError(f"{self.path(name)} is not JSON: {error}") from error

    def ini(self, name: str) -> Mapping[str, Mapping[str, str]]:
        """Parse an INI file into sections. An invalid file is empty, because its own tool reports
        the error.
        """
        parser = configparser.RawConfigParser(
            strict=False, allow_no_value=True, inline_comment_prefixes=(" #",)
        )
        try:
            parser.read_string(self.texts.get(name, ""))
        except (configparser.Error, ValueError):
            return {}
        return {
            section: {key: value or "" for key, value in parser[section].items()}
            for section in parser.sections()
        }

    def path(self, name: str) -> str:
        """Return the path of a file from the repository's root."""
        return f"{self.folder}/{name}" if self.folder else name


@dataclass(frozen=True, slots=True)
class DetectedProject:
    """The set-up and checks of one project.

    checks: by their names within the project.
    reads: the files that set-up depends on.
    depends: folders of other projects, from the repository's root.
    history: whether a build of it calls git.
    """

    steps: tuple[SetupStep, ...] = ()
    checks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    advisory: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    needs: Mapping[str, str] = field(default_factory=dict)
    depends: tuple[str, ...] = ()
    history: bool = False
    builds: tuple[BuildStep, ...] = ()


def table(data: Any, *keys: str) -> Mapping[str, Any]:
    """Return a table inside a table; empty if it is none."""
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return data if isinstance(data, dict) else {}


def strings(data: Any) -> list[str]:
    """Return the strings of a list; empty if it is none."""
    return [item for item in data if isinstance(item, str)] if isinstance(data, list) else []


def join_inside(folder: str, path: str) -> str | None:
    """Return a relative path from the root, None if it leaves the tree."""
    parts = folder.split("/") if folder else []
    for part in path.split("/"):
        if part == "..":
            if not parts:
                return None
            parts.pop()
        elif part not in {"", "."}:
            parts.append(part)
    return None if path.startswith("/") else "/".join(parts)
