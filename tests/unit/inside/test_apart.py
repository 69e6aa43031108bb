"""Tests in one process, code in another: what goes over, what the code can reach, and what cannot be told apart."""

from __future__ import annotations

import datetime as dt
import decimal
import fractions
import importlib.util
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.inside.cases import Cases, read_folder
from moothall.inside.checks import command, variables
from moothall.inside.plugins import FOLDER

_spec = importlib.util.spec_from_file_location("moothall_link", FOLDER / "moothall_link.py")
assert _spec is not None
assert _spec.loader is not None
LINK = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(LINK)

CODE = '''
import enum, os, socket

class PriceError(ValueError):
    def __init__(self, percent):
        super().__init__("bad %s" % percent)
        self.percent = percent

class Colour(enum.Enum):
    RED = 1
    BLUE = 2

class Cart:
    def __init__(self, items=()):
        self.items = list(items)
    def __len__(self):
        return len(self.items)
    def __eq__(self, other):
        return isinstance(other, Cart) and other.items == self.items
    def __hash__(self):
        return 1
    def __add__(self, other):
        return Cart(self.items + other.items)
    def __enter__(self):
        return self
    def __exit__(self, *error):
        return False
    def each(self):
        yield from self.items
    @property
    def total(self):
        return sum(self.items)

def discount(price, percent):
    if percent > 100:
        raise PriceError(percent)
    return price - price * percent // 100

def both(price):
    return discount(price, 50), discount(price, 0)

def apply(function, items):
    return [function(item) for item in items]

def sort(items):
    items.sort()

def leave():
    raise SystemExit(3)

def reached():
    """What of the tests, their process and its report is within reach."""
    found = []
    parent = os.getppid()
    def stop(): os.kill(parent, 0)
    def report(): os.listdir(REPORTS)
    def write(): open("made", "w")
    def memory(): open("/proc/%d/mem" % parent, "rb")
    def command(): open("/proc/%d/cmdline" % parent).read()
    def test(): open("tests/test_shop.py").read()
    def compiled(): os.listdir("tests/__pycache__") and open("tests/__pycache__/" + os.listdir("tests/__pycache__")[0], "rb")
    for act in (stop, report, write, memory, command, test, compiled):
        try:
            act()
        except OSError:
            continue
        found.append(act.__name__)
    return found

def frames(generator):
    found = []
    for name in ("gi_frame", "__self__", "__globals__"):
        try:
            found.append(getattr(generator, name))
        except AttributeError:
            pass
    return len(found)
'''
TESTS = """
import json
import pytest
import shop.price
from shop import price
from shop.price import *

def test_plain():
    assert discount(200, 10) == 180

def test_errors():
    with pytest.raises(ValueError, match="bad 101") as found:
        discount(1, 101)
    assert found.value.percent == 101 and isinstance(found.value, PriceError)
    with pytest.raises(price.PriceError):
        price.discount(1, 102)
    with pytest.raises(SystemExit):
        price.leave()

def test_objects():
    cart = Cart([1])
    assert isinstance(cart, Cart) and len(cart) == 1 and cart == Cart([1]) and cart != Cart([2])
    assert cart + Cart([2]) == Cart([1, 2]) and Cart([1, 2]).total == 3 and list(Cart([1, 2]).each()) == [1, 2]
    with cart as inside:
        assert inside is cart
    assert Colour(1) is Colour.RED and [one.name for one in Colour] == ["RED", "BLUE"]

def test_functions_of_the_test():
    seen = []
    assert price.apply(lambda item: seen.append(item) or item * 2, [1, 2]) == [2, 4] and seen == [1, 2]
    assert price.apply(len, ["a", ""]) == [1, 0] and price.apply(json.dumps, [None]) == ["null"]

def test_arguments_are_changed():
    items = [3, 1]
    price.sort(items)
    assert items == [1, 3]

def test_patched(monkeypatch):
    monkeypatch.setattr(price, "discount", lambda amount, percent: percent)
    assert price.both(200) == (50, 0)

def test_no_longer_patched():
    assert price.both(200) == (100, 200)

def test_derived():
    class Mine(Cart):
        pass

def test_reached():
    assert price.reached() == []

def test_frames():
    assert price.frames(n for n in (1,)) == 0
"""


def told(folder: Path, runner: tuple[str, ...] = ("-m", "pytest", "tests"), code: str = CODE) -> dict[str, str]:
    for name, text in {"shop/__init__.py": "", "shop/price.py": code, "tests/test_shop.py": TESTS}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    reports = folder.with_name(f"{folder.name}-reports")
    reports.mkdir()
    (folder / "shop" / "price.py").write_text(f"REPORTS = {str(reports)!r}\n{code}", encoding="utf-8")
    env = {**os.environ, **variables(seconds=20, apart=("shop/price.py",), plugins=str(FOLDER), folder=str(reports))}
    env["PYTHONPATH"] = ":".join([str(FOLDER), *sys.path])
    env |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "TMPDIR": str(folder.parent)}
    subprocess.run(command((sys.executable, *runner)), cwd=folder, env=env, capture_output=True, check=False)
    cases = Cases()
    read_folder(cases, str(reports))
    return dict(cases.results)


@pytest.mark.e2e  # two processes
def test_what_tests_do_with_code_goes_over_and_the_code_reaches_nothing_of_theirs(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    found = told(tree)
    assert found.pop("tests/test_shop.py::test_derived") == "failed", "no class can be derived across processes"
    assert set(found.values()) == {"passed"}, found
    assert len(found) == 9
    assert not (tree / "made").exists()


@pytest.mark.e2e  # as above
@pytest.mark.parametrize(
    "more",
    [
        "import os; os._exit(0)",
        "import sys; sys.modules['shop.price'].discount = None",
        "import gc, _pytest.runner; _pytest.runner.CallInfo.from_call = None",
        "import pytest; discount = lambda *_: pytest.exit('done', 0)",
        "import unittest.mock as mock; leave = mock.Mock(side_effect=KeyboardInterrupt); discount = leave",
    ],
)
def test_code_that_ends_or_patches_its_process_makes_nothing_green(tmp_path: Path, more: str) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    found = told(tree, code=CODE.replace("price * percent // 100", "0") + f"\n{more}\n")
    assert found.get("tests/test_shop.py::test_plain") != "passed"


class Loop(LINK.Link):  # type: ignore[misc, name-defined] # loaded by its file
    """One end, whose values are read by itself."""


plain = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters())
    | st.binary()
    | st.complex_numbers(allow_nan=False)
    | st.datetimes(timezones=st.just(dt.UTC) | st.none())
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.decimals(allow_nan=False)
    | st.fractions()
    | st.builds(range, st.integers(-9, 9), st.integers(-9, 9), st.integers(1, 3))
    | st.sampled_from([..., NotImplemented, int, ValueError, pathlib.Path("/a/b"), re.compile("a", re.IGNORECASE)])
)
values = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
        | st.frozensets(st.integers() | st.text(max_size=3))
        | st.sets(st.binary(max_size=3))
    ),
    max_leaves=8,
)


@given(values)
def test_a_plain_value_goes_over_as_it_is(value: Any) -> None:
    with socket.socket() as unused:
        loop = Loop(unused)
    found = loop.decode(json.loads(json.dumps(loop.encode(value))))
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "error", [ValueError("a", 1), KeyError(), OSError(2, "no"), decimal.Decimal("1.10"), fractions.Fraction(1, 3)]
)
def test_an_error_of_the_language_goes_over_with_what_it_was_given(error: Any) -> None:
    with socket.socket() as unused:
        loop = Loop(unused)
    found = loop.decode(json.loads(json.dumps(loop.encode(error))))
    assert (type(found), str(found), getattr(found, "args", ())) == (type(error), str(error), getattr(error, "args", ()))
