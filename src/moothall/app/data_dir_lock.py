"""The lock of the data directory, and the address of the process that holds it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from moothall.errors import ConfigurationError
from moothall.file_locks import lock_file, write_private


@dataclass(frozen=True, slots=True)
class Address:
    """How to reach the process that serves this data directory. It contains the bus credentials, so
    the file mode is 0600. `page`: the URL of the web page for a browser on this machine, or empty.
    `settings`: a digest of each setting that affects the work.
    """

    pid: int
    bus_url: str
    grpc_port: int
    settings: Mapping[str, str]
    page: str = ""


class DirectoryTaken(Exception):
    """Another process serves this data directory."""


@contextmanager
def hold(data_dir: Path) -> Iterator[None]:
    """Hold the data directory, or raise `DirectoryTaken`. The kernel releases the lock whenever the
    process ends.
    """
    with ExitStack() as stack:
        try:
            data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            free = stack.enter_context(lock_file(data_dir / "lock"))
        except OSError as error:
            raise ConfigurationError(
                f"the data directory {data_dir} cannot be used: {error.strerror}"
            ) from error
        if not free:
            raise DirectoryTaken
        withdraw(data_dir)  # left by a process that was killed
        yield


@contextmanager
def take_number(data_dir: Path) -> Iterator[int]:
    """Hold the first number, from 1, that no other process of this data directory has. The kernel
    releases it when the process ends.
    """
    folder = data_dir / "processes"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for number in itertools.count(1):
        with lock_file(folder / str(number)) as free:
            if free:
                yield number
                return


def is_shared(data_dir: Path) -> bool:
    """Return whether processes with a number use the directory. They may not hold it."""
    for path in (data_dir / "processes").glob("*"):
        with lock_file(path) as free:
            if not free:
                return True
    return False


def announce(data_dir: Path, address: Address) -> None:
    """Publish the address of this process."""
    write_private(data_dir / "serving.json", json.dumps(asdict(address)))


def withdraw(data_dir: Path) -> None:
    """Remove the address of the serving process."""
    (data_dir / "serving.json").unlink(missing_ok=True)


def find(data_dir: Path) -> Address | None:
    """Return the address of the serving process, or None while it is starting."""
    try:
        return Address(**json.loads((data_dir / "serving.json").read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError):
        return None
