"""Calls and values between two processes: one has the tests, the other the code under test. See `moothall_apart`.

Runs under Python 3.7 and on. Each message is a line's worth of JSON behind its length. Plain values go over as they are; of all else
goes a number, and whoever has the number asks the owner. What the other side says is read by closed lists: it names no module, and no
type but those of `_VALUES`.
"""

from __future__ import annotations

import base64
import builtins
import datetime as dt
import decimal
import fractions
import json
import pathlib
import re
import struct
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any

_MOST = 1 << 26  # bytes of a message
_VALUES: dict[str, tuple[Any, Any, Any]] = {
    "bytes": (bytes, lambda value: [base64.b64encode(value).decode()], base64.b64decode),
    "bytearray": (bytearray, lambda value: [base64.b64encode(value).decode()], lambda text: bytearray(base64.b64decode(text))),
    "int": (int, lambda value: [hex(value)], lambda text: int(text, 16)),
    "complex": (complex, lambda value: [value.real, value.imag], complex),
    "range": (range, lambda value: [value.start, value.stop, value.step], range),
    "slice": (slice, lambda value: [value.start, value.stop, value.step], slice),
    "date": (dt.date, lambda value: [value.year, value.month, value.day], dt.date),
    "datetime": (
        dt.datetime,
        lambda value: [*value.timetuple()[:6], value.microsecond, value.tzinfo, value.fold],
        lambda *parts: dt.datetime(*parts[:8], fold=parts[8]),  # noqa: DTZ001 - with or without, as it was
    ),
    "time": (
        dt.time,
        lambda value: [value.hour, value.minute, value.second, value.microsecond, value.tzinfo, value.fold],
        lambda *parts: dt.time(*parts[:5], fold=parts[5]),
    ),
    "timedelta": (dt.timedelta, lambda value: [value.days, value.seconds, value.microseconds], dt.timedelta),
    "timezone": (dt.timezone, lambda value: list(value.__getinitargs__()), dt.timezone),
    "Decimal": (decimal.Decimal, lambda value: [str(value)], decimal.Decimal),
    "Fraction": (
        fractions.Fraction,
        lambda value: [value.numerator, value.denominator],
        fractions.Fraction,
    ),
    "list": (list, list, lambda *items: list(items)),
    "tuple": (tuple, list, lambda *items: items),
    "set": (set, lambda value: sorted(value, key=repr), lambda *items: set(items)),
    "frozenset": (frozenset, lambda value: sorted(value, key=repr), lambda *items: frozenset(items)),
    "Ellipsis": (type(...), lambda _: [], lambda: ...),
    "NotImplemented": (type(NotImplemented), lambda _: [], lambda: NotImplemented),
    "Path": (type(pathlib.Path()), lambda value: [str(value)], pathlib.Path),
    "Pattern": (type(re.compile("")), lambda value: [value.pattern, value.flags & ~re.UNICODE.value], re.compile),
}
_KINDS: dict[Any, Any] = {kind: (name, parts) for name, (kind, parts, _) in _VALUES.items()}
_SMALL = 1 << 60
MUTABLE = (list, dict, set, bytearray)
TYPES = {name: kind for name, kind in vars(builtins).items() if isinstance(kind, type)}
"""What is the same on both sides, by name."""
_NAMES: dict[Any, str] = {kind: name for name, kind in TYPES.items()}


class Lost(BaseException):
    """The other side is gone, or was interrupted: nothing more can be said. No `Exception`, which a test may expect."""


class Link:
    """One end. `serve(op, arguments)` answers what the other side asks; the rest of a subclass says how objects go over."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._lost = False
        self._numbers: dict[int, int] = {}
        self._mine: list[Any] = []
        self._makers: dict[str, Any] = {
            "dict": lambda of: {self.decode(key): self.decode(item) for key, item in of},
            "type": TYPES.__getitem__,
            "yours": self._mine.__getitem__,
            **{name: self._maker(make) for name, (_, _, make) in _VALUES.items()},
        }

    def _maker(self, make: Any) -> Any:
        return lambda of: make(*map(self.decode, of))

    def ask(self, op: str, *arguments: Any) -> Any:
        """Ask the other side, and answer what it asks meanwhile. Raises what it raised."""
        if self._lost:
            raise Lost("the process with the code is gone")
        message = {"op": op, "given": [self.encode(item) for item in arguments]}
        self._lost = True  # unless the answer comes
        self.send(message)
        while True:
            said = self.read()
            if "op" in said:
                self._lost = False
                self._answer(said)
                self._lost = True
                continue
            self._lost = False
            for place, changed in said.get("changed", ()):
                _change(arguments[1][place], self.decode(changed))
            if "error" in said:
                raise self.as_error(self.decode(said["error"]))
            return self.decode(said["value"])

    def as_error(self, error: Any) -> BaseException:
        """Return what to raise for what the other side raised."""
        return error if isinstance(error, BaseException) else TypeError("what was raised did not go over")

    def answer_all(self) -> None:
        """Answer until the other side ends."""
        while True:
            try:
                said = self.read()
            except Lost:
                return
            self._answer(said)

    def serve(self, op: str, given: list[Any]) -> Any:
        """Do what the other side asks. Raises whatever."""
        raise NotImplementedError

    def _answer(self, said: dict[str, Any]) -> None:
        answer: dict[str, Any] = {}
        given: list[Any] = []
        try:
            given = [self.decode(item) for item in said["given"]]
            answer["value"] = self.encode(self.serve(said["op"], given))
        except BaseException as error:  # noqa: BLE001 - whatever it is goes over
            answer["error"] = self._encode_error(error)
        if said["op"] == "call" and len(given) > 1 and type(given[1]) is list:
            before = said["given"][1]["of"]
            after = [self.encode(item) if type(item) in MUTABLE else None for item in given[1]]
            answer["changed"] = [
                (place, now) for place, (was, now) in enumerate(zip(before, after)) if now is not None and now != was
            ]
        self.send(answer)

    def _encode_error(self, error: BaseException) -> Any:
        try:
            return self.encode(error)
        except Exception:  # noqa: BLE001 - such as what has itself in it
            return self.encode(TypeError(f"{type(error).__name__} does not go over"))

    def send(self, message: dict[str, Any]) -> None:
        """Send a message. Raises `Lost`."""
        data = json.dumps(message).encode()
        if len(data) > _MOST:
            raise ValueError("too much for one message")
        try:
            self._link.sendall(struct.pack(">I", len(data)) + data)
        except OSError:
            raise Lost("the other side is gone") from None

    def read(self) -> dict[str, Any]:
        """Read the next message. Raises `Lost`."""
        size = struct.unpack(">I", self._bytes(4))[0]
        if size > _MOST:
            raise Lost("too much for one message")
        said = json.loads(self._bytes(size))
        if not isinstance(said, dict):
            raise Lost("no message")
        return said

    def _bytes(self, count: int) -> bytes:
        found = bytearray()
        while len(found) < count:
            try:
                part = self._link.recv(min(count - len(found), 1 << 16))
            except OSError:
                part = b""
            if not part:
                raise Lost("the other side is gone")
            found += part
        return bytes(found)

    # ---- values

    def encode(self, value: Any) -> Any:
        """Return what goes over."""
        kind = type(value)
        if value is None or kind in (bool, str, float) or (kind is int and -_SMALL < value < _SMALL):
            return value
        if kind in _KINDS:
            name, parts = _KINDS[kind]
            return {"t": name, "of": [self.encode(part) for part in parts(value)]}
        if kind is dict:
            return {"t": "dict", "of": [[self.encode(key), self.encode(item)] for key, item in value.items()]}
        if isinstance(value, type) and value in _NAMES:
            return {"t": "type", "of": _NAMES[value]}
        if isinstance(value, BaseException) and kind in _NAMES:
            return {"t": "error", "of": _NAMES[kind], "args": [self.encode(item) for item in value.args]}
        return None if isinstance(value, types.TracebackType) else self.encode_object(value)

    def decode(self, said: Any) -> Any:
        """Return what came over. Raises `Lost` where it is no value."""
        if said is None or isinstance(said, (bool, str, float, int)):
            return said
        kind = said["t"]
        if kind == "error":
            return TYPES[said["of"]](*map(self.decode, said["args"]))
        return self._makers[kind](said["of"]) if kind in self._makers else self.decode_object(said)

    def number(self, value: Any) -> int:
        """Return the number by which the other side knows an object of this one."""
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._mine)
            self._mine.append(value)  # kept, so that no other object gets its id
        return self._numbers[id(value)]

    def gave(self, value: Any) -> bool:
        """Whether the other side was given this very object."""
        return id(value) in self._numbers

    def encode_object(self, value: Any) -> Any:
        """Of what is no plain value."""
        raise NotImplementedError

    def decode_object(self, said: dict[str, Any]) -> Any:
        """An object of the other side."""
        raise NotImplementedError


def _change(mine: Any, now: Any) -> None:
    if type(mine) is not type(now):
        raise Lost("an argument became another kind")
    if isinstance(mine, (list, bytearray)):
        mine[:] = now
    else:
        mine.clear()
        mine.update(now)
