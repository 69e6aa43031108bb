"""One serving process a data directory; the others find it here."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from moothall.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Address:
    """How to reach the process that serves this data directory. Holds the bus's credentials: mode 0600. `page`: where a browser of this
    machine finds the page, empty where it does not.
    """

    pid: int
    bus_url: str
    grpc_port: int
    fingerprint: str
    page: str = ""


class Taken(Exception):
    """Another process serves this data directory."""


@contextmanager
def hold(data_dir: Path) -> Iterator[None]:
    """Hold the data directory, or raise `Taken`. The kernel lets go when the process ends, however it ends."""
    try:
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(data_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigurationError(f"the data directory {data_dir} cannot be used: {error.strerror}") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Taken from error
        withdraw(data_dir)  # of one who was killed
        yield
    finally:
        os.close(handle)


@contextmanager
def numbered(data_dir: Path) -> Iterator[int]:
    """Yield the first number, from 1, that no other process of this data directory has. The kernel takes it back when the process ends."""
    folder = data_dir / "processes"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for number in itertools.count(1):
        handle = os.open(folder / str(number), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            continue
        try:
            yield number
        finally:
            os.close(handle)
        return


def shared(data_dir: Path) -> bool:
    """Whether processes work here that have a number, and may not hold the directory."""
    for path in (data_dir / "processes").glob("*"):
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
    return False


def announce(data_dir: Path, address: Address) -> None:
    """Say where this process can be reached."""
    path = data_dir / "serving.json"
    fresh = path.with_suffix(".new")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(asdict(address), file)
    fresh.replace(path)


def withdraw(data_dir: Path) -> None:
    """Nobody serves here any more."""
    (data_dir / "serving.json").unlink(missing_ok=True)


def find(data_dir: Path) -> Address | None:
    """Return the serving process, or None while it is still starting."""
    try:
        return Address(**json.loads((data_dir / "serving.json").read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError):
        return None
