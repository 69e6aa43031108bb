"""Tasks of an evaluation, and files with one JSON record a line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moothall.domain import codec
from moothall.domain.ids import check_id
from moothall.errors import InvalidRequest
from moothall.file_locks import write_private

FOLDER = "tasks"
_DELETE = "Delete it to go on without that task"


@dataclass(frozen=True, slots=True)
class Task:
    """A past bug fix. Its tests are hidden from the seats and judge the winner.

    repository: a path or URL. parent, commit: full commit ids; the seats see the parent. text: the
    description for the council. cases: by check, the test cases that fail on the parent and pass on
    the
    commit. kept: by check, the cases of the same files that pass on both. paths: by check, the test
    files
    to run; none for the whole check. tests: the diff of the hidden files. fix: the diff of all
    other
    files. commands: configured set-up and checks, as in .moothall.toml.
    """

    id: str
    repository: str
    parent: str
    commit: str
    text: str
    cases: Mapping[str, tuple[str, ...]]
    tests: str
    kept: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    paths: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fix: str = ""
    commands: Mapping[str, Any] = field(default_factory=dict)


def write_task(folder: Path, task: Task) -> Path:
    """Write a task below the folder of an evaluation and return its file."""
    path = folder / FOLDER / f"{task.id}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_private(path, json.dumps(codec.dump(task), indent=2))
    return path


def read_tasks(folder: Path) -> list[Task]:
    """Return the tasks below the folder of an evaluation, the oldest file first.

    Raises `InvalidRequest` for a file that is not a task.
    """
    paths = sorted(
        (folder / FOLDER).glob("*.json"), key=lambda path: (path.stat().st_mtime_ns, path.name)
    )
    return [read_task(path) for path in paths]


def read_task(path: Path) -> Task:
    """Return the task of a file. Raises `InvalidRequest`."""
    try:
        task = codec.load(Task, json.loads(path.read_text(encoding="utf-8")))
        check_id(task.id, "the task")
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the task file {path} is not JSON: {error}. {_DELETE}") from error
    except InvalidRequest as error:
        raise InvalidRequest(f"the task file {path}: {error.message}. {_DELETE}") from error
    return task


class Lines:
    """A file with one JSON object a line, which a process may be killed while writing.

    An incomplete last line is ignored, and removed by the next `add`. Reading changes nothing:
    another
    process may be writing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rows: list[Mapping[str, Any]] = []
        raw = path.read_bytes() if path.exists() else b""
        self._size = raw.rfind(b"\n") + 1
        self._read(raw[: self._size])

    def _read(self, raw: bytes) -> None:
        for number, line in enumerate(raw.splitlines(), 1):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InvalidRequest(
                    f"{self._path}, line {number} is not JSON: {error}. Delete that line"
                ) from error
            if not isinstance(row, dict):
                raise InvalidRequest(
                    f"{self._path}, line {number} is not an object. Delete that line"
                )
            self.rows.append(row)

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a row. It is on the disk when this returns. Only one process may add rows at a
        time.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            file.truncate(self._size)
            file.write(json.dumps(row).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
            self._size = file.tell()
        self.rows.append(row)

    def of(self, **fields: object) -> Iterator[Mapping[str, Any]]:
        """Return the rows with these values."""
        return (
            row
            for row in self.rows
            if all(row.get(name) == value for name, value in fields.items())
        )


def count_cases(cases: Mapping[str, Sequence[str]]) -> int:
    """Return how many cases there are in all checks."""
    return sum(map(len, cases.values()))
