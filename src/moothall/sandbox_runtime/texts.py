"""Reading and writing one text file beneath a folder, within limits. Standard library only: runs in
the executor.
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
    """Bytes of one file, and of the text of one result. No dataclass: what makes those costs start
    time.
    """

    __slots__ = ("file_bytes", "output_bytes")

    def __init__(self, file_bytes: int, output_bytes: int) -> None:
        self.file_bytes = file_bytes
        self.output_bytes = output_bytes


def read_bytes(root: int, path: str, limits: TextLimits) -> bytes:
    """Return a regular file's bytes. Raises `ToolFailure`."""
    # Without O_NONBLOCK a FIFO would hold the executor for ever.
    descriptor = open_beneath(root, path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            raise IsFolder(path)
        if not stat.S_ISREG(found.st_mode):
            raise ToolFailure(f"{path!r} is not a regular file")
        if found.st_size > limits.file_bytes:
            raise ToolFailure(
                f"{path!r} has {found.st_size} bytes; at most {limits.file_bytes} are read"
            )
        return _whole(descriptor, limits.file_bytes)
    except OSError as error:
        raise failure(error.errno or 0, path) from error
    finally:
        os.close(descriptor)


def _whole(descriptor: int, limit: int) -> bytes:
    parts: list[bytes] = []
    while limit > 0 and (part := os.read(descriptor, limit)):
        parts.append(part)
        limit -= len(part)
    return b"".join(parts)


def rows_of(text: str) -> list[str]:
    """Return the lines, each with its end. Only a newline ends one: so count editors, compilers and
    pytest.
    """
    return list(io.StringIO(text, newline="\n"))


def read_text(root: int, path: str, limits: TextLimits) -> str:
    """Return a file's text. Raises `ToolFailure` for what is none."""
    return read_encoded(root, path, limits)[0]


def read_encoded(root: int, path: str, limits: TextLimits) -> tuple[str, Encoding]:
    """Return a file's text and its encoding. Raises `ToolFailure` if it is binary."""
    raw = read_bytes(root, path, limits)
    found = find_encoding(raw)
    if found is None:
        raise ToolFailure(f"{path!r} is binary ({len(raw)} bytes); only text can be read")
    return found.decode(raw), found


def write_text(
    root: int,
    path: str,
    content: str,
    limits: TextLimits,
    *,
    encoding: Encoding = UTF_8,
    append: bool = False,
) -> int:
    """Put text into a file, made with its folders where it is missing, and return its size. Raises
    `ToolFailure`.
    """
    try:
        raw = encoding.encode_part(content) if append else encoding.encode(content)
    except UnicodeEncodeError as error:
        if encoding.codec.startswith("utf-"):
            said = (
                f"content has half a surrogate pair at character {error.start}; send whole "
                "characters"
            )
        else:
            said = (
                f"{path!r} is in {encoding.codec}, which has no {content[error.start]!r} "
                f"(character {error.start}): use other characters, or delete the file and write it "
                "anew as UTF-8"
            )
        raise ToolFailure(said, "invalid") from error
    return write_bytes(root, path, raw, limits, append=append)


def write_bytes(
    root: int, path: str, raw: bytes, limits: TextLimits, *, append: bool = False
) -> int:
    """As `write_text`, of bytes."""
    if len(raw) > limits.file_bytes:
        raise ToolFailure(
            f"content has {len(raw)} bytes; a file may have {limits.file_bytes}", "invalid"
        )
    parent = path.rpartition("/")[0]
    if parent:
        make_folders(root, parent)
    flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | (os.O_APPEND if append else 0)
    descriptor = open_beneath(root, path, flags, 0o644)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise ToolFailure(f"{path!r} is not a regular file")
        if append and found.st_size + len(raw) > limits.file_bytes:
            raise ToolFailure(
                f"{path!r} would have {found.st_size + len(raw)} bytes; a file may have "
                f"{limits.file_bytes}"
            )
        if not append:
            os.ftruncate(descriptor, 0)
        view = memoryview(raw)
        while view:
            view = view[os.write(descriptor, view) :]
        return os.fstat(descriptor).st_size
    except OSError as error:
        raise failure(error.errno or 0, path) from error
    finally:
        os.close(descriptor)


def cut_text(text: str, limit: int) -> tuple[str, bool]:
    """Return at most `limit` bytes of a text, and whether something was cut off."""
    raw = text.encode("utf-8", "replace")
    return (text, False) if len(raw) <= limit else (raw[:limit].decode("utf-8", "ignore"), True)
