"""Runs the tests here and the code under test in another process, which sees no test: loaded where MOOTHALL_APART names its files.

What a test imports of that code is a stand-in; calls, attributes and operators go to the other process (`moothall_code`), plain values
come back as copies. So code that reads the tests, the runner or the report finds none. What cannot be told apart in this way (a test
that derives a class, compares identities, changes the environment) is red here, and says nothing. Python 3.7 and on.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import os
import socket
import subprocess
import sys
import tempfile
import types

from moothall_code import OPERATIONS, names_test  # type: ignore[import-not-found] # beside it, on the path of the sandbox
from moothall_link import Link, Lost  # type: ignore[import-not-found] # as above

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_NUMBER, _BEFORE = "_moothall_number", "_moothall_before"
_OFFERED = (
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
)
"""What the code may do to an object of the tests, beside calling it and reading its public attributes."""
_CLOSED = ("_", "gi_", "cr_", "ag_", "f_", "co_", "tb_")  # also what leads to frames and code


def roots_of(paths: list[str]) -> tuple[list[str], frozenset[str]]:
    """Return the folders for the path and the names of the modules that files of code belong to."""
    folders: dict[str, None] = {}
    names: set[str] = set()
    for path in paths:
        parts = path.split("/")
        if any(map(names_test, parts)):
            continue
        at = len(parts) - 1
        while at and os.path.exists(os.path.join(*parts[:at], "__init__.py")):
            at -= 1
        folders[os.path.abspath(os.path.join(*parts[:at]) if at else ".")] = None
        names.add(parts[at].partition(".")[0])
    return list(folders), frozenset(names)


class Tests(Link):  # type: ignore[misc] # its module is not found by name
    """The end that has the tests."""

    def __init__(self, link: socket.socket) -> None:
        super().__init__(link)
        self._known: dict[int, Any] = {}

    def serve(self, op: str, given: list[Any]) -> Any:
        """Let the code call what a test gave it, and look at what is public of it. Raises `TypeError` for all else."""
        target = given[0]
        if not self.gave(target):
            raise TypeError("not across processes")
        if op == "call":
            return target(*given[1], **given[2])
        if (
            op == "getattr"
            and not given[1].startswith(_CLOSED)
            and not isinstance(target, (types.FunctionType, types.ModuleType, type))
        ):
            return getattr(target, given[1])
        if op in _OFFERED:
            return OPERATIONS[op](*given)
        raise (AttributeError if op == "getattr" else TypeError)("not across processes")

    def as_error(self, error: Any) -> BaseException:
        """Only what a test can hold against the code: nothing that would end this process."""
        return error if isinstance(error, (Exception, SystemExit)) else Lost(f"the code raised {type(error).__name__}")

    def encode_object(self, value: Any) -> Any:
        """Of what is the code's own its number, of what the standard library has its name, else a number of this side."""
        number = value.__dict__.get(_NUMBER) if isinstance(value, (_Type, _Module)) else None
        if isinstance(value, _Object):
            number = object.__getattribute__(value, _NUMBER)
        if number is not None:
            return {"t": "yours", "of": number}
        return _standard_name(value) or {"t": "theirs", "of": self.number(value)}

    def decode_object(self, said: dict[str, Any]) -> Any:
        kind, number = said["t"], said["of"]
        if kind == "module":
            return importlib.import_module(number)
        if number not in self._known:
            self._known[number] = self._class(said) if kind == "class" else self._object(said)
        elif kind == "object":
            self.decode(said["is"])  # it may describe a class that is new
        return self._known[number]

    def _class(self, said: dict[str, Any]) -> Any:
        bases = [base for base in map(self.decode, said["bases"]) if isinstance(base, _Type) or issubclass(base, Exception)]
        same = None if said["module"].partition(".")[0] in ROOTS else _same_error(said, bases)
        if same:
            return same
        namespace = {"__module__": said["module"], _NUMBER: said["of"]}
        first = [] if any(isinstance(base, _Type) for base in bases) else [_Object]
        for chosen in ([*first, *bases], [_Object]):
            try:
                return _derive(said["name"], tuple(chosen), namespace)
            except TypeError:  # bases that do not go together here
                continue
        raise TypeError(f"{said['name']} cannot be told apart")

    def _object(self, said: dict[str, Any]) -> Any:
        kind = self.decode(said["is"])
        if issubclass(kind, BaseException):
            given = [self.decode(item) for item in said.get("args", ())]
            made = _raw(kind, given)
            made.args = tuple(given)
        else:
            made = _bare(kind if isinstance(kind, _Type) else _Object)
        if isinstance(made, _Object):
            object.__setattr__(made, _NUMBER, said["of"])
        return made


def _same_error(said: dict[str, Any], bases: list[Any]) -> Any:
    """The class of an error that both sides have from the standard library."""
    if not any(issubclass(base, Exception) for base in bases):
        return None
    top = said["module"].partition(".")[0]
    known = sys.modules.get(said["module"]) if top in _standard() else None
    found = getattr(known, said["name"], None)
    return found if isinstance(found, type) and issubclass(found, Exception) else None


def _standard_name(value: Any) -> Any:
    """What both sides find by its name, such as `hashlib.sha1` or `operator`; None for all else."""
    if isinstance(value, types.ModuleType):
        return {"t": "named", "of": [value.__name__, ""]} if value.__name__.partition(".")[0] in _standard() else None
    if not isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        return None
    module, name = str(getattr(value, "__module__", "")), value.__name__
    known = module.partition(".")[0] in {"builtins", *_standard()} and getattr(sys.modules.get(module), name, None) is value
    return {"t": "named", "of": [module, name]} if known else None


def _standard() -> frozenset[str]:
    return frozenset(getattr(sys, "stdlib_module_names", ("json", "os", "re", "socket", "subprocess", "decimal", "zlib"))) - {
        "unittest"
    }


_derive: Any = lambda *given: type.__new__(_Type, *given)  # noqa: E731 - past what keeps tests from it
_bare: Any = object.__new__
_raw: Any = lambda kind, given: kind.__new__(kind, *given)  # noqa: E731 - an error, without what its class does at its start


class _Type(type):
    """The class of stand-ins for classes of the code."""

    def __new__(mcs, *_: Any, **__: Any) -> Any:
        raise TypeError("a class of the code cannot be derived across processes")

    def __call__(cls, *given: Any, **named: Any) -> Any:
        return LINK.ask("call", cls, list(given), named)

    def __getattr__(cls, name: str) -> Any:
        return LINK.ask("getattr", cls, name)

    def __setattr__(cls, name: str, value: Any) -> None:
        LINK.ask("setattr", cls, name, value)

    def __delattr__(cls, name: str) -> None:
        LINK.ask("delattr", cls, name)


class _Object:
    """A stand-in for any other object of the code."""

    def __getattr__(self, name: str) -> Any:
        if name == _NUMBER:
            raise AttributeError(name)
        return LINK.ask("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):
            object.__setattr__(self, name, value)  # of errors: their traceback and the like
        else:
            LINK.ask("setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        LINK.ask("delattr", self, name)

    def __call__(self, *given: Any, **named: Any) -> Any:
        return LINK.ask("call", self, list(given), named)


def _operation(name: str) -> Any:
    def do(self: Any, *given: Any) -> Any:
        return LINK.ask(name, self, *given)

    return do


def _reflect(name: str) -> Any:
    def do(self: Any, other: Any) -> Any:
        return LINK.ask(name, other, self)

    return do


for _name in OPERATIONS:
    setattr(_Object, _name, _operation(_name))
for _name in (
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "matmul",
    "and",
    "or",
    "xor",
    "lshift",
    "rshift",
    "divmod",
):
    setattr(_Object, f"__r{_name}__", _reflect(f"__{_name}__"))
_Type.__bool__ = lambda _: True  # type: ignore[attr-defined] # a class is, though it may have a length
for _name in ("__iter__", "__len__", "__getitem__", "__contains__"):
    setattr(_Type, _name, _operation(_name))


class _Module(types.ModuleType):
    """A stand-in for a module of the code."""

    def __getattr__(self, name: str) -> Any:
        if name in {"__path__", "__file__", _NUMBER, _BEFORE}:
            raise AttributeError(name)
        return LINK.ask("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, types.ModuleType) or (name.startswith("__") and name.endswith("__")):
            if not isinstance(value, _Module):  # the code's own are its attributes there, or what it has in their place
                self.__dict__[name] = value  # what importing sets
        else:
            self.__dict__[_BEFORE].setdefault(name, getattr(self, name, _BEFORE))
            LINK.ask("setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        """Delete it, or set it as it was: what a test set here is in no `__dict__`, and so pytest takes it back by deleting it."""
        before = self.__dict__[_BEFORE].pop(name, _BEFORE)
        if before is _BEFORE:
            LINK.ask("delattr", self, name)
        else:
            LINK.ask("setattr", self, name, before)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules of the code in the other process; tests beside them here. First in the list, and the last word."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        """See `importlib`. Raises `ModuleNotFoundError`: no other finder may load what is the code's."""
        del path, target
        first, *rest = name.split(".")
        if first not in ROOTS or any(map(names_test, rest)):
            return None
        found = LINK.ask("find", name)
        if found is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        origin, locations, package = found
        spec = importlib.machinery.ModuleSpec(name, self, origin=origin)
        spec.submodule_search_locations = locations if package else None
        return spec

    def create_module(self, spec: Any) -> Any:
        """See `importlib`."""
        made = _Module(spec.name)
        made.__dict__[_BEFORE] = {}
        return made

    def exec_module(self, module: Any) -> None:
        """See `importlib`. Raises what importing it raises there."""
        number, names = LINK.ask("import", module.__name__)
        module.__dict__[_NUMBER] = number
        module.__dict__["__all__"] = names


def _start(paths: list[str]) -> tuple[Tests, frozenset[str]]:
    ours, theirs = socket.socketpair()
    folders, roots = roots_of(paths)
    scratch = tempfile.mkdtemp(prefix="apart-")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MOOTHALL_", "PYTEST_"))}
    environment.update(TMPDIR=scratch, PYTHONDONTWRITEBYTECODE="1")
    subprocess.Popen(  # noqa: S603 - our own file
        [sys.executable, os.path.join(_HERE, "moothall_code.py"), str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    theirs.close()
    link = Tests(ours)
    others = [entry for entry in sys.path if os.path.abspath(entry or ".") not in {_HERE, *folders}]
    link.send({"path": [*folders, *others], "roots": sorted(roots), "scratch": scratch})
    return link, roots


LINK, ROOTS = _start([path for path in os.environ.get("MOOTHALL_APART", "").split(os.pathsep) if path])
sys.meta_path.insert(0, Finder())
