"""Reading specs: of a bad file each wrong place is named with its line, and the others load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from yaml.reader import ReaderError

from moothall.agents.dependency_order import of_specs, of_tasks
from moothall.agents.specs import Spec
from moothall.errors import InvalidRequest, WrongField, wrong_fields


@dataclass(frozen=True, slots=True)
class Wrong:
    """What is wrong with a file, and where; line 0 is all of it."""

    file: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}{f', line {self.line}' if self.line else ''}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Loaded:
    """The specs that are right, by their files; what is wrong; and what is kept and not used."""

    specs: dict[str, Spec] = field(default_factory=dict)
    wrong: tuple[Wrong, ...] = ()
    kept: tuple[Wrong, ...] = ()


def files_of(paths: Sequence[Path]) -> list[Path]:
    """Return the files that are named, and those of folders that are, in order. Raises
    `InvalidRequest` for what is not there.
    """
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise InvalidRequest(f"{path} is not there: name a file or a folder of agents")
        inside = (
            one for one in path.rglob("*") if one.suffix in {".yaml", ".yml"} and one.is_file()
        )
        found += sorted(inside) if path.is_dir() else [path]
    return found


def load(paths: Sequence[Path], most: int = 256_000) -> Loaded:
    """Read files and folders; a file has at most `most` bytes. Raises `InvalidRequest` for a path
    that is not there.
    """
    specs: dict[str, Spec] = {}
    wrong: list[Wrong] = []
    kept: list[Wrong] = []
    for path in dict.fromkeys(files_of(paths)):
        file = str(path)
        try:
            spec, node = _read(path, most)
        except _Bad as bad:
            wrong += bad.wrong
            continue
        specs[file] = spec
        kept += [
            Wrong(
                file,
                _line(node, where),
                f"{'.'.join(map(str, where))} is kept, and nothing is done by it",
            )
            for where in _extra(spec, ())
        ]
    files: dict[str, str] = {}
    for file, spec in list(specs.items()):
        if (first := files.setdefault(spec.name, file)) != file:
            wrong.append(Wrong(file, 0, f"{first} has an agent called {spec.name} already"))
            del specs[file]
    return Loaded(specs, tuple(wrong), tuple(kept))


def check_order(specs: Sequence[Spec]) -> tuple[str, ...]:
    """Return the names in the order in which they would run one by one. Raises `InvalidRequest` for
    a cycle or what is missing.
    """
    return tuple(of_specs(specs))


class _Bad(Exception):
    def __init__(self, wrong: Sequence[Wrong]) -> None:
        super().__init__()
        self.wrong = wrong


class _Refused(yaml.MarkedYAMLError):
    """It is YAML, and more of it than a spec needs."""


class _Loader(yaml.SafeLoader):
    """Plain values alone: no aliases, a few lines of which are gigabytes, and no tags; a date is
    the text that it is written as.
    """

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call] # there is no type
        place = event.start_mark
        if isinstance(event, yaml.AliasEvent):
            raise _Refused(
                problem="it has an alias (*name); write what is meant", problem_mark=place
            )
        if tag := getattr(event, "tag", None):
            raise _Refused(
                problem=f"it has a tag ({tag[:40]}); write the value alone", problem_mark=place
            )
        return super().compose_node(parent, index)


_Loader.yaml_implicit_resolvers = {
    sign: [(tag, pattern) for tag, pattern in known if tag != "tag:yaml.org,2002:timestamp"]
    for sign, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _read(path: Path, most: int) -> tuple[Spec, yaml.Node]:
    file = str(path)
    try:
        with path.open("rb") as opened:
            raw = opened.read(most + 1)
        if len(raw) > most:
            raise _Bad([Wrong(file, 0, f"it has more than {most} bytes (agents.file_bytes)")])
        node, data = _parse(file, raw.decode("utf-8"))
    except OSError as error:
        raise _Bad([Wrong(file, 0, error.strerror or str(error))]) from error
    except RecursionError as error:
        raise _Bad(
            [Wrong(file, 0, "it is nested too deeply; write lists and maps that are flatter")]
        ) from error
    except ValueError as error:  # a byte that is no UTF-8, a number that nobody can read
        raise _Bad([Wrong(file, 0, f"it is no YAML: {error}")]) from error
    if not isinstance(data, dict) or node is None:
        raise _Bad([Wrong(file, 0, "it is no map of sections; metadata and objectives are needed")])
    try:
        spec = Spec.model_validate(data)
        of_tasks(spec.tasks)
    except ValidationError as error:
        raise _Bad(
            [
                Wrong(file, _line(node, one.place), _describe_error(one))
                for one in wrong_fields(error)
            ]
        ) from error
    except InvalidRequest as error:
        raise _Bad([Wrong(file, _line(node, ("tasks",)), error.message)]) from error
    return spec, node


def _parse(file: str, text: str) -> tuple[yaml.Node | None, Any]:
    """Return a text's parts with their places, and what it says. Raises `_Bad`, `ValueError`,
    `RecursionError`.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None, None
        if repeated := list(_repeated_keys(node)):
            raise _Bad(
                [Wrong(file, line, f"{key} is said a second time") for key, line in repeated]
            )
        return node, loader.construct_document(node)
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise _Bad(
            [Wrong(file, line, f"it has a sign that no text has, U+{error.character:04X}")]
        ) from error
    except yaml.MarkedYAMLError as error:
        what = "" if isinstance(error, _Refused) else "it is no YAML: "
        mark = error.problem_mark
        raise _Bad([Wrong(file, mark.line + 1 if mark else 0, f"{what}{error.problem}")]) from error


_WORDS = {
    "string_type": "it is no text; put it in quotes",
    "tuple_type": "it is no list",
    "model_type": "it is no map of keys and values",
    "missing": "it is missing",
}


def _describe_error(wrong: WrongField) -> str:
    where = ".".join(map(str, wrong.place))
    said = _WORDS.get(wrong.fault, wrong.sentence)
    if wrong.fault == "string_pattern_mismatch":  # names alone have one
        said = "a name is small letters, digits and dashes, at most 63, and begins with no dash"
    return f"{where}: {said}" if where else said


@lru_cache(maxsize=8)  # of one file the places of thousands of keys may be asked for
def _entries(node: yaml.MappingNode) -> Mapping[str, tuple[yaml.Node, yaml.Node]]:
    return {str(key.value): (key, value) for key, value in node.value}


def _line(node: yaml.Node, where: Sequence[Any]) -> int:
    """Return the line of the deepest part of `where` that the file says."""
    for part in where:
        if isinstance(node, yaml.MappingNode):
            if (inner := _entries(node).get(str(part))) is None:
                continue  # `default` or `required` stand between, or the key is missing
            if part == where[-1]:
                return int(inner[0].start_mark.line) + 1
            node = inner[1]
        elif (
            isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value)
        ):
            node = node.value[part]
    return int(node.start_mark.line) + 1


def _repeated_keys(node: yaml.Node) -> Iterator[tuple[str, int]]:
    """Yield the keys that a map says again, which YAML's readers take without a word."""
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


def _extra(part: BaseModel, at: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    """Yield where a spec has what it does not know."""
    for name in part.model_extra or ():
        yield (*at, name)
    for name in type(part).model_fields:
        value = getattr(part, name)
        for number, one in enumerate(value) if isinstance(value, tuple) else (("", value),):
            if isinstance(one, BaseModel):
                yield from _extra(one, (*at, name, *((number,) if isinstance(number, int) else ())))
