"""Reading specs: of a bad file each wrong place is named with its line, and the others load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from moothall.agents.order import of_specs, of_tasks
from moothall.agents.specs import Spec
from moothall.errors import InvalidRequest

_MOST_BYTES = 256_000


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
    """Return the files that are named, and those of folders that are, in order. Raises `InvalidRequest` for what is not there."""
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise InvalidRequest(f"{path} is not there: name a file or a folder of agents")
        found += sorted(one for one in path.rglob("*") if one.suffix in {".yaml", ".yml"}) if path.is_dir() else [path]
    return found


def load(paths: Sequence[Path]) -> Loaded:
    """Read files and folders. Raises `InvalidRequest` for a path that is not there."""
    specs: dict[str, Spec] = {}
    wrong: list[Wrong] = []
    kept: list[Wrong] = []
    for path in dict.fromkeys(files_of(paths)):
        file = str(path)
        try:
            spec, node = _read(path)
        except _Bad as bad:
            wrong += bad.wrong
            continue
        specs[file] = spec
        kept += [
            Wrong(file, _line(node, where), f"{'.'.join(map(str, where))} is kept, and nothing is done by it")
            for where in _extra(spec, ())
        ]
    files: dict[str, str] = {}
    for file, spec in list(specs.items()):
        if (first := files.setdefault(spec.name, file)) != file:
            wrong.append(Wrong(file, 0, f"{first} has an agent called {spec.name} already"))
            del specs[file]
    return Loaded(specs, tuple(wrong), tuple(kept))


def check_order(specs: Sequence[Spec]) -> tuple[str, ...]:
    """Return the names in the order in which they would run one by one. Raises `InvalidRequest` for a cycle or what is missing."""
    return tuple(of_specs(specs))


class _Bad(Exception):
    def __init__(self, wrong: Sequence[Wrong]) -> None:
        super().__init__()
        self.wrong = wrong


def _read(path: Path) -> tuple[Spec, yaml.Node]:
    file = str(path)
    try:
        with path.open("rb") as opened:
            raw = opened.read(_MOST_BYTES + 1)
        if len(raw) > _MOST_BYTES:
            raise _Bad([Wrong(file, 0, f"it has more than {_MOST_BYTES} bytes")])
        text = raw.decode("utf-8")
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
            raise _Bad([Wrong(file, 0, "it has an alias (*name); write what is meant")])  # a few lines of them are gigabytes
        node = yaml.compose(text, yaml.SafeLoader)
        data = yaml.safe_load(text)
    except OSError as error:
        raise _Bad([Wrong(file, 0, error.strerror or str(error))]) from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise _Bad([Wrong(file, 0, f"it is no YAML: {error}")]) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        said = getattr(error, "problem", None) or str(error)
        raise _Bad([Wrong(file, mark.line + 1 if mark else 0, f"it is no YAML: {said}")]) from error
    if not isinstance(data, dict) or node is None:
        raise _Bad([Wrong(file, 0, "it is no map of sections; metadata and objectives are needed")])
    if repeated := list(_repeated(node)):
        raise _Bad([Wrong(file, line, f"{key} is said a second time") for key, line in repeated])
    try:
        spec = Spec.model_validate(data)
        of_tasks(spec.tasks)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        raise _Bad([Wrong(file, _line(node, one["loc"]), _said(one)) for one in found]) from error
    except InvalidRequest as error:
        raise _Bad([Wrong(file, _line(node, ("tasks",)), error.message)]) from error
    return spec, node


def _said(error: Any) -> str:
    where = ".".join(map(str, error["loc"]))
    said = error["msg"].removeprefix("Value error, ")
    if error["type"] == "string_pattern_mismatch":  # names alone have one
        said = "a name is small letters, digits and dashes, at most 63, and begins with no dash"
    return f"{where}: {said}" if where else said


def _line(node: yaml.Node, where: Sequence[Any]) -> int:
    """Return the line of the deepest part of `where` that the file says."""
    for part in where:
        if isinstance(node, yaml.MappingNode):
            inner = next(((key, value) for key, value in node.value if key.value == str(part)), None)
            if inner is None:
                continue  # `default` or `required` stand between, or the key is missing
            if part == where[-1]:
                return int(inner[0].start_mark.line) + 1
            node = inner[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
    return int(node.start_mark.line) + 1


def _repeated(node: yaml.Node) -> Iterator[tuple[str, int]]:
    """Yield the keys that a map says again, which YAML's readers take without a word."""
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if str(key.value) in seen:
                yield str(key.value), key.start_mark.line + 1
            seen.add(str(key.value))
            yield from _repeated(value)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from _repeated(value)


def _extra(part: BaseModel, at: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    """Yield where a spec has what it does not know."""
    for name in part.model_extra or ():
        yield (*at, name)
    for name in type(part).model_fields:
        value = getattr(part, name)
        for number, one in enumerate(value) if isinstance(value, tuple) else (("", value),):
            if isinstance(one, BaseModel):
                yield from _extra(one, (*at, name, *((number,) if isinstance(number, int) else ())))
