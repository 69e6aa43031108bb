"""Reading and writing of one text file beneath a folder, within limits. Standard library only: runs
in the executor.
"""

from __future__ import annotations

import io
import os
import stat

from moothall.sandbox_runtime.paths import (
    IsFolder,
    ToolFailure,
    failure,
    make_folders,
    open_beneath,
)
from moothall.sandbox_runtime.text_encodings import UTF_8, Encoding, find_encoding


class TextLimits:
    """The limits in bytes of a file and of the text of a result. Not a dataclass, because those
    cost start time.
    """

    __slots__ = ("file_bytes", "output_bytes")

    def __init__(self, file_bytes: int, output_bytes: int) -> None:
        self.file_bytes = file_bytes
        self.output_bytes = output_bytes


def read_bytes(root: int, path: str, limits: TextLimits) -> bytes:
    """Return a regular file's bytes. Raises `ToolFailure`."""
    # Without O_NONBLOCK, a FIFO would block the executor forever.
    descriptor = open_beneath(root, path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        file_stat = os.fstat(descriptor)
        if stat.S_ISDIR(file_stat.st_mode):
            raise IsFolder(path)
        if not stat.S_ISREG(file_stat.st_mode):
            raise ToolFailure(f"{path!r} is not a regular file")
        if file_stat.st_size > limits.file_bytes:
            raise ToolFailure(
                f"{path!r} has {file_stat.st_size} bytes; at most {limits.file_bytes} are read"
            )
        return _read_all(descriptor, limits.file_bytes)
    except OSError as error:
        raise failure(error.errno or 0, path) from error
    finally:
        os.close(descriptor)


def _read_all(descriptor: int, limit: int) -> bytes:
    parts: list[bytes] = []
    while limit > 0 and (part := os.read(descriptor, limit)):
        parts.append(part)
        limit -= len(part)
    return b"".join(parts)


def split_rows(text: str) -> list[str]:
    """Return the lines, each with its end. Only a newline ends a line, as in editors, compilers and
    pytest.
    """
    return list(io.StringIO(text, newline="\n"))


def read_text(root: int, path: str, limits: TextLimits) -> str:
    """Return a file's text. Raises `ToolFailure` if it is not text."""
    return read_encoded(root, path, limits)[0]


def read_encoded(root: int, path: str, limits: TextLimits) -> tuple[str, Encoding]:
    """Return a file's text and its encoding. Raises `ToolFailure` if it is binary."""
    content = read_bytes(root, path, limits)
    encoding = find_encoding(content)
    if encoding is None:
        raise ToolFailure(f"{path!r} is binary ({len(content)} bytes); only text can be read")
    return encoding.decode(content), encoding


def write_text(
    root: int,
    path: str,
    content: str,
    limits: TextLimits,
    *,
    encoding: Encoding = UTF_8,
    append: bool = False,
) -> int:
    """Write text to a file, creating it and its folders if needed, and return its size. Raises
    `ToolFailure`.
    """
    try:
        encoded = encoding.encode_part(content) if append else encoding.encode(content)
    except UnicodeEncodeError as error:
        if encoding.codec.startswith("utf-"):
            message = (
                f"content has half a surrogate pair at character {error.start}; send whole "
                "characters"
            )
        else:
            message = (
                f"{path!r} is in {encoding.codec}, which has no {content[error.start]!r} "
                f"(character {error.start}): use other characters, or delete the file and write it "
                "anew as UTF-8"
            )
        raise ToolFailure(message, "invalid") from error
    return write_bytes(root, path, encoded, limits, append=append)


def write_bytes(
    root: int, path: str, content: bytes, limits: TextLimits, *, append: bool = False
) -> int:
    """Write bytes to a file, like `write_text`."""
    if len(content) > limits.file_bytes:
        raise ToolFailure(
            f"content has {len(content)} bytes; a file may have {limits.file_bytes}", "invalid"
        )
    parent = path.rpartition("/")[0]
    if parent:
        make_folders(root, parent)
    flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | (os.O_APPEND if append else 0)
    descriptor = open_beneath(root, path, flags, 0o644)
    try:
        file_stat = os.fstat(descriptor)
        if not stat.S_ISREG(file_stat.st_mode):
            raise ToolFailure(f"{path!r} is not a regular file")
        if append and file_stat.st_size + len(content) > limits.file_bytes:
            raise ToolFailure(
                f"{path!r} would have {file_stat.st_size + len(content)} bytes; a file may have "
                f"{limits.file_bytes}"
            )
        if not append:
            os.ftruncate(descriptor, 0)
        remaining = memoryview(content)
        while remaining:
            remaining = remaining[os.write(descriptor, remaining) :]
        return os.fstat(descriptor).st_size
    except OSError as error:
        raise failure(error.errno or 0, path) from error
    finally:
        os.close(descriptor)


def cut_text(text: str, limit: int) -> tuple[str, bool]:
    """Return at most `limit` bytes of a text, and whether it was cut."""
    encoded = text.encode("utf-8", "replace")
    return (
        (text, False)
        if len(encoded) <= limit
        else (encoded[:limit].decode("utf-8", "ignore"), True)
    )
