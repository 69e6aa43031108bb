"""Loading of agent specs. Each error of a bad file is reported with its line, and the other files
load.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from yaml.reader import ReaderError

from moothall.agents.specs import Spec, order_specs, order_tasks
from moothall.errors import InvalidRequest, WrongField, wrong_fields

_MAX_FILE_BYTES = 256_000


@dataclass(frozen=True, slots=True)
class Wrong:
    """An error in a file; line 0 means the whole file."""

    file: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}{f', line {self.line}' if self.line else ''}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Loaded:
    """The valid specs by file, the errors, and the keys that are kept but not used."""

    specs: dict[str, Spec] = field(default_factory=dict)
    wrong: tuple[Wrong, ...] = ()
    kept: tuple[Wrong, ...] = ()


def files_of(paths: Sequence[Path]) -> list[Path]:
    """Return the named files, and the YAML files in named folders, in order. Raises
    `InvalidRequest` for a path that does not exist.
    """
    files: list[Path] = []
    for path in paths:
        if not path.exists():
            raise InvalidRequest(f"{path} is not there: name a file or a folder of agents")
        folder_files = (
            file for file in path.rglob("*") if file.suffix in {".yaml", ".yml"} and file.is_file()
        )
        files += sorted(folder_files) if path.is_dir() else [path]
    return files


def load(paths: Sequence[Path]) -> Loaded:
    """Load files and folders; larger files than `_MAX_FILE_BYTES` are errors. Raises
    `InvalidRequest` for a path that does not exist.
    """
    specs: dict[str, Spec] = {}
    errors: list[Wrong] = []
    unused: list[Wrong] = []
    for path in dict.fromkeys(files_of(paths)):
        file = str(path)
        try:
            spec, node = _read_spec(path)
        except _InvalidFile as invalid:
            errors += invalid.wrong
            continue
        specs[file] = spec
        unused += [
            Wrong(
                file,
                _line_of(node, key_path),
                f"{'.'.join(map(str, key_path))} is kept, and nothing is done by it",
            )
            for key_path in _unknown_keys(spec, ())
        ]
    files: dict[str, str] = {}
    for file, spec in list(specs.items()):
        if (first_file := files.setdefault(spec.name, file)) != file:
            errors.append(Wrong(file, 0, f"{first_file} has an agent called {spec.name} already"))
            del specs[file]
    return Loaded(specs, tuple(errors), tuple(unused))


def check_order(specs: Sequence[Spec]) -> tuple[str, ...]:
    """Return the names in the order in which they would run one by one. Raises `InvalidRequest` for
    a cycle or a missing dependency.
    """
    return tuple(order_specs(specs))


class _InvalidFile(Exception):
    def __init__(self, wrong: Sequence[Wrong]) -> None:
        super().__init__()
        self.wrong = wrong


class _UnsupportedYaml(yaml.MarkedYAMLError):
    """A YAML feature that specs may not use."""


class _Loader(yaml.SafeLoader):
    """A loader of plain values: no tags, and no aliases, since a few lines of them can expand to
    gigabytes. A date stays the text as written.
    """

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call] # there is no type
        mark = event.start_mark
        if isinstance(event, yaml.AliasEvent):
            raise _UnsupportedYaml(
                problem="it has an alias (*name); write what is meant", problem_mark=mark
            )
        if tag := getattr(event, "tag", None):
            raise _UnsupportedYaml(
                problem=f"it has a tag ({tag[:40]}); write the value alone", problem_mark=mark
            )
        return super().compose_node(parent, index)


_Loader.yaml_implicit_resolvers = {
    sign: [(tag, pattern) for tag, pattern in known if tag != "tag:yaml.org,2002:timestamp"]
    for sign, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _read_spec(path: Path) -> tuple[Spec, yaml.Node]:
    file = str(path)
    try:
        with path.open("rb") as stream:
            raw = stream.read(_MAX_FILE_BYTES + 1)
        if len(raw) > _MAX_FILE_BYTES:
            raise _InvalidFile([Wrong(file, 0, f"it has more than {_MAX_FILE_BYTES:,} bytes")])
        node, data = _parse(file, raw.decode("utf-8"))
    except OSError as error:
        raise _InvalidFile([Wrong(file, 0, error.strerror or str(error))]) from error
    except RecursionError as error:
        raise _InvalidFile(
            [Wrong(file, 0, "it is nested too deeply; write lists and maps that are flatter")]
        ) from error
    except ValueError as error:  # invalid UTF-8, or a number that cannot be parsed
        raise _InvalidFile([Wrong(file, 0, f"it is no YAML: {error}")]) from error
    if not isinstance(data, dict) or node is None:
        raise _InvalidFile(
            [Wrong(file, 0, "it is no map of sections; metadata and objectives are needed")]
        )
    try:
        spec = Spec.model_validate(data)
        order_tasks(spec.tasks)
    except ValidationError as error:
        raise _InvalidFile(
            [
                Wrong(file, _line_of(node, field_error.place), _describe_error(field_error))
                for field_error in wrong_fields(error)
            ]
        ) from error
    except InvalidRequest as error:
        raise _InvalidFile([Wrong(file, _line_of(node, ("tasks",)), error.message)]) from error
    return spec, node


def _parse(file: str, text: str) -> tuple[yaml.Node | None, Any]:
    """Return the root node of a text and its value. Raises `_InvalidFile`, `ValueError`,
    `RecursionError`.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None, None
        if repeated := list(_repeated_keys(node)):
            raise _InvalidFile([Wrong(file, line, f"{key} is set twice") for key, line in repeated])
        return node, loader.construct_document(node)
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise _InvalidFile(
            [Wrong(file, line, f"it has a sign that no text has, U+{error.character:04X}")]
        ) from error
    except yaml.MarkedYAMLError as error:
        prefix = "" if isinstance(error, _UnsupportedYaml) else "it is no YAML: "
        mark = error.problem_mark
        raise _InvalidFile(
            [Wrong(file, mark.line + 1 if mark else 0, f"{prefix}{error.problem}")]
        ) from error


_MESSAGES = {
    "string_type": "it is no text; put it in quotes",
    "tuple_type": "it is no list",
    "model_type": "it is no map of keys and values",
    "missing": "it is missing",
}


def _describe_error(wrong: WrongField) -> str:
    where = ".".join(map(str, wrong.place))
    message = _MESSAGES.get(wrong.fault, wrong.sentence)
    if wrong.fault == "string_pattern_mismatch":  # only names have a pattern
        message = "a name is small letters, digits and dashes, at most 63, and begins with no dash"
    return f"{where}: {message}" if where else message


@lru_cache(maxsize=8)  # the lines of thousands of keys of one file may be looked up
def _entries(node: yaml.MappingNode) -> Mapping[str, tuple[yaml.Node, yaml.Node]]:
    return {str(key.value): (key, value) for key, value in node.value}


def _line_of(node: yaml.Node, where: Sequence[Any]) -> int:
    """Return the line of the deepest part of `where` that the file has."""
    for part in where:
        if isinstance(node, yaml.MappingNode):
            if (entry := _entries(node).get(str(part))) is None:
                continue  # a level such as `default` is in between, or the key is missing
            if part == where[-1]:
                return int(entry[0].start_mark.line) + 1
            node = entry[1]
        elif (
            isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value)
        ):
            node = node.value[part]
    return int(node.start_mark.line) + 1


def _repeated_keys(node: yaml.Node) -> Iterator[tuple[str, int]]:
    """Yield the keys that a map has twice, which YAML parsers accept silently."""
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if str(key.value) in seen:
                yield str(key.value), key.start_mark.line + 1
            seen.add(str(key.value))
            yield from _repeated_keys(value)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from _repeated_keys(value)


def _unknown_keys(
    part: BaseModel, parent: tuple[str | int, ...]
) -> Iterator[tuple[str | int, ...]]:
    """Yield the paths of a spec's unknown keys."""
    for name in part.model_extra or ():
        yield (*parent, name)
    for name in type(part).model_fields:
        value = getattr(part, name)
        for number, item in enumerate(value) if isinstance(value, tuple) else (("", value),):
            if isinstance(item, BaseModel):
                yield from _unknown_keys(
                    item, (*parent, name, *((number,) if isinstance(number, int) else ()))
                )
