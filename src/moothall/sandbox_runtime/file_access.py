"""Access to the files of a folder: paths inside only, and reading and writing of one text file
within limits, with its encoding and line ends. Standard library only: runs in the executor.
"""

from __future__ import annotations

import codecs
import ctypes
import errno
import io
import os
import re
import stat

TYPE_CHECKING = False  # the real one is in `typing`, which costs the executor start time

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


# Opening of paths inside a folder only.
#
# The kernel resolves paths (openat2 with RESOLVE_BENEATH). It follows symlinks that stay inside,
# and the path that is checked is the one that is opened, even if the tree changes meanwhile.


_OPENAT2 = 437  # the same on every architecture
_RESOLVE_NO_MAGIC_LINKS, _RESOLVE_BENEATH = 0x02, 0x08
_MAX_TRIES = 8
MAX_PATH = 1000

_libc = ctypes.CDLL(None, use_errno=True)


class ToolFailure(Exception):
    """A failed tool call: a result for the model, not an error of the executor. `status` is a tool
    status; `output` is returned with it.
    """

    def __init__(
        self, message: str, status: str = "error", output: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.output = output

    def answer(self) -> dict[str, Any]:
        """Return the failure as a response of the executor."""
        return {
            "status": self.status,
            "error": str(self),
            **({"output": self.output} if self.output else {}),
        }


class IsFolder(ToolFailure):
    """A folder where a file is needed."""

    def __init__(self, path: str, output: Mapping[str, Any] | None = None) -> None:
        super().__init__(f"{path or '.'!r} is a folder, not a file", output=output)


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def clean(path: str) -> str:
    """Return a relative path without '.', '//' or a trailing '/'; '' is the workspace itself."""
    if "\0" in path or len(path.encode("utf-8", "surrogatepass")) > MAX_PATH:
        raise ToolFailure(
            f"{path[:80]!r} is not a valid path: use at most {MAX_PATH} bytes and no NUL",
            "invalid",
        )
    if path.startswith("/"):
        raise ToolFailure(
            f"{path!r} is absolute; paths are relative to the workspace, e.g. 'src/app.py'",
            "invalid",
        )
    return "/".join(part for part in path.split("/") if part not in {"", "."})


def clean_for_writing(path: str) -> str:
    """Return a clean path like `clean`; refuse paths that no tool may change."""
    cleaned = clean(path)
    parts = cleaned.split("/")
    if not cleaned or parts[-1] == "..":
        raise ToolFailure(f"{path!r} names a folder; name a file in it", "invalid")
    if any(part.lower() == ".git" for part in parts):
        raise ToolFailure(
            f"{path!r}: git's own files are not part of the workspace; use the git tools", "invalid"
        )
    return cleaned


def open_beneath(root: int, path: str, flags: int, mode: int = 0) -> int:
    """Open `path`, which must be clean, beneath the directory `root`. Raises `ToolFailure` if the
    path leads out of it.
    """
    how = _OpenHow(flags | os.O_CLOEXEC, mode, _RESOLVE_BENEATH | _RESOLVE_NO_MAGIC_LINKS)
    encoded_path = os.fsencode(path or ".")
    for _ in range(_MAX_TRIES):
        descriptor = int(
            _libc.syscall(
                ctypes.c_long(_OPENAT2),
                ctypes.c_int(root),
                encoded_path,
                ctypes.byref(how),
                ctypes.c_size_t(ctypes.sizeof(how)),
            )
        )
        if descriptor >= 0:
            return descriptor
        code = ctypes.get_errno()
        if code not in {
            errno.EAGAIN,
            errno.EINTR,
        }:  # EAGAIN: a rename while '..' was resolved
            break
    raise failure(code, path)


DISK_FULL = frozenset({errno.ENOSPC, errno.EFBIG, errno.EDQUOT})
"""The error numbers of a disk limit."""


def failure(code: int, path: str) -> ToolFailure:
    """Return the failure of a system call on `path`."""
    shown_path = path or "."
    messages = {
        errno.EXDEV: (f"{shown_path!r} leads out of the workspace", "invalid"),
        errno.ENOENT: (f"{shown_path!r} does not exist", "error"),
        errno.ENOTDIR: (f"{shown_path!r}: a part of the path is a file, not a folder", "error"),
        errno.EISDIR: (f"{shown_path!r} is a folder", "error"),
        errno.ELOOP: (f"{shown_path!r}: symlinks in a circle", "error"),
        errno.ENAMETOOLONG: (f"{shown_path!r}: a name is too long", "invalid"),
        errno.ENOSPC: (f"{shown_path!r}: the disk is full", "disk"),
        errno.EFBIG: (f"{shown_path!r} would be larger than a file may be", "disk"),
        errno.EDQUOT: (f"{shown_path!r}: the disk quota is used up", "disk"),
    }
    message, status = messages.get(code, (f"{shown_path!r}: {os.strerror(code)}", "error"))
    return ToolFailure(message, status)


def open_parent(root: int, path: str) -> tuple[int, str]:
    """Return a descriptor of the parent folder of `path`, and the last name of the path."""
    parent, _, name = path.rpartition("/")
    return open_beneath(root, parent, os.O_PATH | os.O_DIRECTORY), name


def make_folders(root: int, path: str) -> None:
    """Create `path` and its parents, beneath `root`."""
    created = ""
    for part in path.split("/"):
        parent, created = created, f"{created}/{part}" if created else part
        if part == "..":
            continue
        parent_fd = open_beneath(root, parent, os.O_PATH | os.O_DIRECTORY)
        try:
            os.mkdir(part, 0o755, dir_fd=parent_fd)
        except FileExistsError:
            pass
        except OSError as error:
            raise failure(error.errno or 0, created) from error
        finally:
            os.close(parent_fd)
    os.close(open_beneath(root, path, os.O_PATH | os.O_DIRECTORY))


# Detection of a text file's encoding and line ends, so that an edit keeps both. Standard library
# only.
#
# Every detected encoding round-trips: decoding and encoding again gives the same bytes.


_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
# Text codecs that decode and encode in linear time.
_TEXT_CODECS = (
    r"(?:ascii|utf-(?:8|16|32)(?:-[lb]e)?|iso8859-\d+|latin-1|cp\d+|koi8-[rut]|mac-\w+|kz1048|ptcp154|hp-roman8"
    r"|shift_jis(?:x0213|_2004)?|euc_(?:jp|jis_2004|jisx0213|kr)|gb2312|gbk|gb18030|big5(?:hkscs)?|johab|tis-620)"
)
# Declarations of the encoding: PEP 263 and editors' lines at the top, XML, HTML and CSS.
_DECLARATIONS = (
    rb"\A(?:[^\n]*\n)?[^\n]{0,200}?coding[:=][ \t]*[\"']?([-\w.]+)",
    rb"<\?xml[^>]{0,200}\bencoding=[\"']([-\w.]+)",
    rb"<(?:meta|META)[^>]{0,200}\bcharset=[\"']?([-\w.]+)",
    rb"@charset \"([-\w.]+)\"",
)
_DECLARED_BYTES = 1024
_BINARY_CHARS = r"[\x00-\x06\x0e-\x1a\x1c-\x1f\x7f]"
_WIDE_SHARE = 0.6


class Encoding:
    """A codec, the byte order mark at the beginning of the file, and the error handler for invalid
    bytes.
    """

    __slots__ = ("codec", "errors", "mark")

    def __init__(self, codec: str, mark: bytes = b"", errors: str = "strict") -> None:
        self.codec = codec
        self.mark = mark
        self.errors = errors

    @property
    def name(self) -> str:
        """The name for people, such as `utf-16-le with a byte order mark`."""
        mark = " with a byte order mark" if self.mark else ""
        return (
            f"{self.codec}{mark}" if self.errors == "strict" else f"{self.codec} with invalid bytes"
        )

    def decode(self, raw: bytes) -> str:
        """Return the text of a whole file. Raises `UnicodeDecodeError`."""
        return raw[len(self.mark) :].decode(self.codec, self.errors)

    def encode(self, text: str) -> bytes:
        """Return the bytes of a whole file. Raises `UnicodeEncodeError`."""
        return self.mark + self.encode_part(text.removeprefix("\ufeff" if self.mark else ""))

    def encode_part(self, text: str) -> bytes:
        """Return the bytes of a part of a file. Raises `UnicodeEncodeError`."""
        return text.encode(self.codec, self.errors)


UTF_8 = Encoding("utf-8")
_INVALID_UTF_8 = Encoding("utf-8", errors="surrogateescape")


def find_encoding(raw: bytes) -> Encoding | None:
    """Return the encoding of a file, None if it is binary.

    Without a mark or a declaration, a file that is not UTF-8 is taken as mostly UTF-8 or as a
    Western single-byte encoding.
    """
    for mark, codec in _BYTE_ORDER_MARKS:
        if raw.startswith(mark) and _fits(marked := Encoding(codec, mark), raw):
            return marked
    if b"\0" in raw:
        return _find_wide(raw)
    names = [
        match[1].decode()
        for pattern in _DECLARATIONS
        if (match := re.search(pattern, raw[:_DECLARED_BYTES]))
    ]
    declared = [Encoding(codec) for name in names if (codec := text_codec(name))]
    mostly_utf_8 = [_INVALID_UTF_8] if _is_mostly_utf_8(raw) else []
    return next(
        (
            encoding
            for encoding in (
                UTF_8,
                *declared,
                *mostly_utf_8,
                Encoding("cp1252"),
                Encoding("latin-1"),
            )
            if _fits(encoding, raw)
        ),
        None,
    )


def text_codec(name: str) -> str:
    """Return Python's name of a text encoding, or '' if it is not one of `_TEXT_CODECS`."""
    try:
        codec = codecs.lookup(name).name
    except LookupError:
        return ""
    return {"iso8859-1": "latin-1"}.get(codec, codec) if re.fullmatch(_TEXT_CODECS, codec) else ""


def _fits(encoding: Encoding, raw: bytes) -> bool:
    """Return whether an encoding reads bytes as text and round-trips. UTF-8 text may hold any
    character but NUL.
    """
    try:
        text = encoding.decode(raw)
        return (
            encoding.encode(text) == raw
            and "\0" not in text
            and (encoding is UTF_8 or not re.search(_BINARY_CHARS, text))
        )
    except UnicodeError:
        return False


def _is_mostly_utf_8(raw: bytes) -> bool:
    text = raw.decode("utf-8", "surrogateescape")
    invalid = sum("\udc80" <= char <= "\udcff" for char in text)
    return 0 < invalid < sum(char > "\x7f" for char in text) - invalid


def _find_wide(raw: bytes) -> Encoding | None:
    """Return UTF-16 without a mark if most characters are below U+0100."""
    half = len(raw) // 2
    for codec, high in (("utf-16-le", raw[1::2]), ("utf-16-be", raw[::2])):
        if (
            len(raw) % 2 == 0
            and high.count(0) > _WIDE_SHARE * half
            and _fits(wide := Encoding(codec), raw)
        ):
            return wide
    return None


def line_end(text: str) -> str:
    r"""Return the most frequent line end of a text: "\n", "\r\n" or "\r"; '' if it has none."""
    crlf = text.count("\r\n")
    counts = {"\n": text.count("\n") - crlf, "\r\n": crlf, "\r": text.count("\r") - crlf}
    if counts["\n"] or crlf:
        counts["\r"] = 0  # a carriage return within a line
    best = max(counts, key=lambda line_break: counts[line_break])
    return best if counts[best] else ""


def convert_line_ends(text: str, end: str) -> str:
    """Return the text with `end` at the end of each line; unchanged if `end` is empty."""
    return text.replace("\r\n", "\n").replace("\n", end) if end else text


# Reading and writing of one text file beneath a folder, within limits. Standard library only: runs
# in the executor.


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
