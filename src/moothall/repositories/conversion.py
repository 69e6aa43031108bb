"""Git's conversion between blobs and files of a work tree: line endings and encodings by attributes
and settings. Pure.

The rules are those of git's `convert.c` on a system with LF line endings. Filters and `ident` are
ignored.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from moothall.sandbox_runtime.text_encodings import text_codec

NAMES = ("text", "crlf", "eol", "working-tree-encoding")
"""The attributes that control the conversion of a file."""
_NONE = ("unspecified", "set", "unset")
_PRINTABLE = bytes([8, 9, 12, 27, *range(32, 127), *range(128, 256)])
_END_OF_FILE = b"\x1a"

When = Literal["never", "always", "if text"]


@dataclass(frozen=True, slots=True)
class Settings:
    """A user's git settings: `core.autocrlf` and `core.eol`."""

    autocrlf: Literal["false", "true", "input"] = "false"
    eol: str = ""

    @property
    def text_is_crlf(self) -> bool:
        """Whether text has CRLF in the work tree unless an attribute overrides it."""
        return self.autocrlf == "true" or (self.autocrlf == "false" and self.eol == "crlf")


@dataclass(frozen=True, slots=True)
class Conversion:
    """The conversion of one file.

    to_crlf: when a checkout converts LF to CRLF.
    to_lf: when storing converts CRLF to LF.
    codec: the encoding in the work tree, '' for UTF-8.
    mark: the byte order mark that git writes and the codec does not.
    """

    to_crlf: When = "never"
    to_lf: When = "never"
    codec: str = ""
    mark: bytes = b""

    @property
    def on_checkout(self) -> bool:
        """Whether a checkout may differ from the blob."""
        return self.to_crlf != "never" or self.codec != ""

    def smudge(self, blob: bytes) -> bytes:
        """Return the file that a checkout writes for a blob."""
        if self.to_crlf == "always" or (
            self.to_crlf == "if text" and b"\r" not in blob and not _is_binary(blob)
        ):
            blob = blob.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
        if not self.codec or not blob:
            return blob
        try:
            return self.mark + blob.decode().encode(self.codec)
        except UnicodeError:
            return blob  # like git, which warns

    def clean(self, content: bytes, previous_blob: bytes = b"") -> bytes:
        """Return the blob that git stores for a file of the work tree. `previous_blob` is the blob
        that the file had before.
        """
        if self.codec:
            try:
                content = content.removeprefix(self.mark).decode(self.codec).encode()
            except UnicodeError:
                return content  # not in that encoding; a checkout converts it if it is UTF-8
        if self.to_lf == "always" or (
            self.to_lf == "if text" and b"\r\n" not in previous_blob and not _is_binary(content)
        ):
            return content.replace(b"\r\n", b"\n")
        return content


UNCONVERTED = Conversion()


def conversion(attributes: Mapping[str, str], settings: Settings = Settings()) -> Conversion:
    """Return the conversion of a file with these attributes, as `git check-attr` prints them."""
    kind = _kind(attributes.get("text", "")) or _kind(attributes.get("crlf", ""))
    eol = attributes.get("eol", "")
    if kind != "binary" and eol in {"lf", "crlf"}:
        kind = f"auto {eol}" if kind == "auto" else f"text {eol}"
    if not kind:
        kind = {"false": "binary", "true": "auto crlf", "input": "auto lf"}[settings.autocrlf]
    if kind in {"text", "auto"}:
        kind += " crlf" if settings.text_is_crlf else " lf"
    when: When = "never" if kind == "binary" else "if text" if kind.startswith("auto") else "always"
    codec, mark = _codec(attributes.get("working-tree-encoding", ""))
    return Conversion(when if kind.endswith("crlf") else "never", when, codec, mark)


def _kind(value: str) -> str:
    return {"set": "text", "unset": "binary", "auto": "auto", "input": "text lf"}.get(value, "")


def _codec(name: str) -> tuple[str, bytes]:
    """Return Python's codec and the byte order mark; both empty for UTF-8 and unknown encodings."""
    if not name or name in _NONE:
        return "", b""
    encoding = name.upper().removesuffix("-BOM")
    codec = text_codec(encoding)
    marks = {"utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE}
    if codec == "utf-8":
        return "", b""
    has_mark = encoding != name.upper()
    return codec, marks.get(codec, b"") if has_mark else b""


def _is_binary(content: bytes) -> bool:
    if b"\0" in content or content.count(b"\r") > content.count(b"\r\n"):
        return True
    text = content.replace(b"\r\n", b"").replace(b"\n", b"")
    other = len(text.translate(None, _PRINTABLE)) - content.endswith(_END_OF_FILE)
    return (len(text) - len(text.translate(None, _PRINTABLE))) >> 7 < other


def read_conversions(output: bytes, settings: Settings = Settings()) -> dict[str, Conversion]:
    """Return the conversions that `git check-attr -z` asks for: path → conversion."""
    fields = output.decode("utf-8", "surrogateescape").split("\0")
    attributes: dict[str, dict[str, str]] = {}
    for path, name, value in zip(fields[::3], fields[1::3], fields[2::3], strict=False):
        attributes.setdefault(path, {})[name] = value
    conversions = {path: conversion(values, settings) for path, values in attributes.items()}
    return {path: item for path, item in conversions.items() if item != UNCONVERTED}


def asks_for_conversion(texts: Iterable[bytes]) -> bool:
    """Return whether these .gitattributes files may make a checkout differ from the commit."""
    return any(word in text for text in texts for word in (b"eol", b"crlf", b"encoding"))
