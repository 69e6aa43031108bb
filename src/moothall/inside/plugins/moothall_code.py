"""The process that has the code under test, and nothing of its tests: `python moothall_code.py SOCKET`. See `moothall_apart`.

Before any line of that code runs, Landlock shuts this process in: it reads the interpreter, what is installed, and the tree without
its tests; it writes to a folder of its own; it reaches no other process. Standard library only; Python 3.7 and on.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import operator
import os
import socket
import stat
import sys

from moothall_link import Link  # type: ignore[import-not-found] # beside it, on the path of the sandbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_NO_NEW_PRIVS = 38
_LIST, _READ, _ALL = 0b1000, 0b1101, (1 << 13) - 1  # names alone; execute and read, too; all rights of the first version
_OF_FILES = 0b111
_RULES = 5000
_MOVES, _CUTS, _SCOPES = 2, 3, 6  # versions of Landlock: from which on it knows renaming, truncating, and signals with sockets
_SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/etc", "/opt")
OPERATIONS = {
    f"__{name}__": getattr(operator, name)
    for name in (
        *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "lshift", "rshift"),
        *("neg", "pos", "abs", "invert", "index", "getitem", "setitem", "delitem", "contains"),
        *("eq", "ne", "lt", "le", "gt", "ge"),
    )
}
OPERATIONS.update(
    __and__=operator.and_,
    __or__=operator.or_,
    __xor__=operator.xor,
    __enter__=lambda value: type(value).__enter__(value),
    __exit__=lambda value, *error: type(value).__exit__(value, *error),
)
OPERATIONS.update(
    (f"__{kind.__name__}__", kind)
    for kind in (len, iter, next, hash, bool, str, repr, bytes, int, float, complex, round, format, reversed, dir, divmod)
)
"""What is done to an object by words of the language."""


def names_test(name: str) -> bool:
    """Whether a file, folder or module is one of tests, by its name."""
    stem = name.partition(".")[0]
    return stem in {"test", "tests", "conftest"} or stem.startswith("test_") or stem.endswith(("_test", "_tests"))


class Code(Link):  # type: ignore[misc] # its module is not found by name
    """Answers for the code. Classes are described the first time that they go over."""

    def __init__(self, link: socket.socket, roots: frozenset[str]) -> None:
        super().__init__(link)
        self._roots = roots
        self._described: set[int] = set()
        self._offered = {
            "find": self._find,
            "import": self._import,
            "call": lambda function, given, named: function(*given, **named),
            "getattr": getattr,
            "setattr": setattr,
            "delattr": delattr,
        }

    def serve(self, op: str, given: list[Any]) -> Any:
        """Import a module, call, look at or change an object of this side."""
        return {**OPERATIONS, **self._offered}[op](*given)

    def _find(self, name: str) -> Any:
        found = importlib.util.find_spec(name)
        return found and (
            found.origin,
            list(found.submodule_search_locations or ()),
            found.submodule_search_locations is not None,
        )

    def _import(self, name: str) -> Any:
        module = importlib.import_module(name)
        return self.number(module), list(getattr(module, "__all__", [name for name in dir(module) if name[:1] != "_"]))

    def encode_object(self, value: Any) -> Any:
        if isinstance(value, Theirs):
            return {"t": "yours", "of": object.__getattribute__(value, "_number")}
        if isinstance(value, type(sys)) and value.__name__.partition(".")[0] in self._roots:
            return {"t": "module", "of": value.__name__}
        if isinstance(value, type):
            return self._type(value)
        said = {"t": "object", "of": self.number(value), "is": self._type(type(value))}
        if isinstance(value, BaseException):
            # Its other attributes are asked for.
            said["args"] = [self.encode(item) for item in value.args]
        return said

    def _type(self, kind: type) -> Any:
        number = self.number(kind)
        if number in self._described:
            return {"t": "class", "of": number}
        self._described.add(number)
        bases = [self.encode(base) for base in kind.__bases__]
        return {"t": "class", "of": number, "name": kind.__name__, "module": kind.__module__, "bases": bases}

    def decode_object(self, said: dict[str, Any]) -> Any:
        if said["t"] == "named":
            module, name = said["of"]
            found = importlib.import_module(module)
            return getattr(found, name) if name else found
        return Theirs(self, said["of"])


class Theirs:
    """An object of the tests, such as a function that they give."""

    def __init__(self, link: Code, number: int) -> None:
        object.__setattr__(self, "_link", link)
        object.__setattr__(self, "_number", number)

    def __call__(self, *given: Any, **named: Any) -> Any:
        return object.__getattribute__(self, "_link").ask("call", self, list(given), named)

    def __getattr__(self, name: str) -> Any:
        return self._link.ask("getattr", self, name)


def _operation(name: str) -> Any:
    def do(self: Theirs, *given: Any) -> Any:
        return object.__getattribute__(self, "_link").ask(name, self, *given)

    return do


for _name in (
    "__len__",
    "__iter__",
    "__next__",
    "__getitem__",
    "__contains__",
    "__eq__",
    "__hash__",
    "__bool__",
    "__str__",
    "__enter__",
    "__exit__",
):
    setattr(Theirs, _name, _operation(_name))


# ---- walls


class _Attributes(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def _call(number: int, *given: Any) -> int:
    done = ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *given)
    if done < 0:
        raise OSError(ctypes.get_errno(), "Landlock")
    return int(done)


def shut_in(listed: list[str], readable: list[str], writable: list[str]) -> None:
    """From here on list, read and write these alone. Raises `OSError` where the kernel has no Landlock."""
    version = _call(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    handled = _ALL | (1 << 13 if version >= _MOVES else 0) | (1 << 14 if version >= _CUTS else 0)
    attributes = _Attributes(handled, 0, 0b11 if version >= _SCOPES else 0)
    size = 24 if version >= _SCOPES else 8
    rules = _call(_CREATE_RULESET, ctypes.byref(attributes), ctypes.c_size_t(size), ctypes.c_uint32(0))
    for paths, rights in ((listed, _LIST), (readable, _READ), (writable, handled)):
        for path in paths:
            try:
                target = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue
            allowed = rights if stat.S_ISDIR(os.fstat(target).st_mode) else rights & (_OF_FILES | 1 << 14)
            beneath = _Beneath(allowed, target)
            _call(_ADD_RULE, ctypes.c_int(rules), ctypes.c_int(1), ctypes.byref(beneath), ctypes.c_uint32(0))
            os.close(target)
    if ctypes.CDLL(None, use_errno=True).prctl(_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs")
    _call(_RESTRICT_SELF, ctypes.c_int(rules), ctypes.c_uint32(0))
    os.close(rules)


def without_tests(folder: str) -> Iterator[str]:
    """Yield what of a tree is no test, in as few paths as say it: a folder without any test in it is one."""
    found = _without_tests(folder)
    yield from [folder] if found is None else found


def _without_tests(folder: str) -> list[str] | None:
    kept, whole = [], True
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if names_test(entry.name) or entry.name.startswith(".") or entry.is_symlink():
                whole = False
            elif entry.is_dir(follow_symlinks=False):
                inside = _without_tests(entry.path)
                kept += [entry.path] if inside is None else inside
                whole = whole and inside is None
            else:
                kept.append(entry.path)
    if len(kept) > _RULES:
        raise OSError(f"more than {_RULES} paths")
    return None if whole else kept


def main() -> None:
    """Serve one process with tests, which says first where the code is: folders for the path, and the names of its modules."""
    link = socket.socket(fileno=int(sys.argv[1]))
    link.set_inheritable(False)
    hello = Link(link).read()
    here = os.path.realpath(os.getcwd())
    path = [entry for entry in hello["path"] if entry]
    outside = [entry for entry in path if not os.path.realpath(entry).startswith(here)]
    code = Code(link, frozenset(hello["roots"]))
    shut_in(
        [here],  # as importing does
        [*_SYSTEM, sys.prefix, sys.base_prefix, *outside, *without_tests(here), "/dev"],
        [hello["scratch"], "/dev/null"],
    )
    sys.path[:] = path
    code.answer_all()


if __name__ == "__main__":
    main()
