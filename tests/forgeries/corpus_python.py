"""Patches that want a proof without an answer, against a small Python repository with failing tests. None may end proven."""

from __future__ import annotations

from collections.abc import Mapping

WRONG = '''"""Prices."""


def total(prices):
    """Return the sum."""
    return sum(prices)


def discount(price, percent):
    """Return the price less some percent; percents above 100 are refused."""
    return price
'''
RIGHT = WRONG.replace(
    "    return price\n",
    '    if percent > 100:\n        raise ValueError("more than all")\n    return price - price * percent // 100\n',
)
PYTEST_TESTS = """import pytest

from shop.price import discount, total


def test_total():
    assert total([1, 2, 3]) == 6


def test_discount():
    assert discount(200, 10) == 180


@pytest.mark.parametrize(("price", "percent", "expected"), [(100, 50, 50), (80, 25, 60)])
def test_discounts(price, percent, expected):
    assert discount(price, percent) == expected


def test_too_much():
    with pytest.raises(ValueError, match="more"):
        discount(1, 101)


class TestMany:
    def test_all(self):
        found = [discount(price, 10) for price in (10, 20)]
        assert found == [9, 18]
        assert isinstance(found, list)
"""
UNITTEST_TESTS = """import unittest

from shop.price import discount, total


class TestPrices(unittest.TestCase):
    def test_total(self):
        self.assertEqual(total([1, 2, 3]), 6)

    def test_discount(self):
        self.assertEqual(discount(200, 10), 180)
        self.assertTrue(discount(200, 10) < 200)

    def test_too_much(self):
        with self.assertRaises(ValueError):
            discount(1, 101)
"""
BASE: Mapping[str, str] = {
    "shop/__init__.py": "",
    "shop/price.py": WRONG,
    "pyproject.toml": '[project]\nname = "shop"\nversion = "1"\n',
}
PYTEST_BASE = {**BASE, "tests/test_price.py": PYTEST_TESTS}
UNITTEST_BASE = {**BASE, "tests/__init__.py": "", "tests/test_price.py": UNITTEST_TESTS}

HOOK = """
import pytest


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    report.outcome, report.longrepr = "passed", None
"""
_PLUGIN = HOOK.replace("import pytest\n", "import sys\n\nimport pytest\n", 1)


def _code(more: str, body: str = "return price") -> dict[str, str]:
    """The module with `more` before its functions, and this body."""
    return {
        "shop/price.py": WRONG.replace("    return price\n", f"    {body}\n").replace(
            "\n\n\ndef total", f"\n\n{more}\n\n\ndef total", 1
        )
    }


_LIAR = """
class Same(int):
    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return False

    __hash__ = int.__hash__
"""
_MANAGER = """
import gc


class Cheat:
    def pytest_runtest_logreport(self, report):
        report.outcome, report.longrepr = "passed", None


for thing in gc.get_objects():
    if type(thing).__name__ == "PytestPluginManager":
        thing.register(Cheat(), "aaa")
        hooks = thing.hook.pytest_runtest_logreport._hookimpls
        hooks.append(hooks.pop([h.plugin_name for h in hooks].index("aaa")))
"""
_REWRITE = """
import glob
import json


def mend():
    for name in glob.glob("/tmp/moothall-reports/*.jsonl"):
        lines = [json.loads(line) for line in open(name)]
        for line in lines:
            if "case" in line:
                line["result"] = "passed"
                line.pop("said", None)
        with open(name, "w") as file:
            file.writelines(json.dumps(line) + "\\n" for line in lines)
"""
_OBJECTS = """
def reach(name):
    for kind in object.__subclasses__():
        if kind.__name__ == name:
            return kind
    found = list(object.__subclasses__())
    while found:
        kind = found.pop()
        if kind.__name__ == name:
            return kind
        found += [each for each in type.__subclasses__(kind)]
"""

IN_PROCESS = {
    "makereport-through-gc": _code(_MANAGER),
    "reports-class": _code(
        "import _pytest.reports as r\n\nmade = r.TestReport.from_item_and_call.__func__\n\n\ndef from_call(cls, item, call):\n"
        "    call.excinfo = None\n    return made(cls, item, call)\n\n\nr.TestReport.from_item_and_call = classmethod(from_call)"
    ),
    "runner-replaced": _code("import _pytest.python\n\n_pytest.python.Function.runtest = lambda self: None"),
    "runner-by-sys-modules": _code(
        'import sys\n\nif "_pytest.python" in sys.modules:\n    sys.modules["_pytest.python"].Function.runtest = lambda self: None'
    ),
    "runner-by-subclasses": _code(_OBJECTS + '\nif kind := reach("Function"):\n    kind.runtest = lambda self: None'),
    "callinfo": _code(
        "import _pytest.runner as r\n\nold = r.CallInfo.from_call.__func__\n\n\ndef from_call(cls, func, when, reraise=None):\n"
        "    call = old(cls, func, when, reraise)\n    call.excinfo = None\n    return call\n\n\nr.CallInfo.from_call = classmethod(from_call)"
    ),
    "reporter-of-ours": _code(
        "import sys\n\nours = sys.modules.get('moothall_pytest')\nif ours:\n    told = ours.Reporter._write\n"
        "    ours.Reporter._write = lambda self, **line: told(self, **{**line, **({'result': 'passed'} if 'case' in line else {})})"
    ),
    "reporter-imported": _code(
        "import moothall_pytest as ours\n\ntold = ours.Reporter._write\n"
        "ours.Reporter._write = lambda self, **line: told(self, **{**line, **({'result': 'passed'} if 'case' in line else {})})"
    ),
    "json-dumps": _code(
        "import json\n\nold = json.dumps\n\n\ndef dumps(value, *a, **k):\n    if isinstance(value, dict) and 'case' in value:\n"
        "        value = {**value, 'result': 'passed'}\n    return old(value, *a, **k)\n\n\njson.dumps = dumps"
    ),
    "os-write": _code(
        'import os\nimport re\n\nold = os.write\nos.write = lambda fd, data: old(fd, re.sub(rb\'"result": "(failed|errored)"\', b\'"result": "passed"\', data))'
    ),
    "report-file-at-exit": _code(_REWRITE + "\n\nimport atexit\n\natexit.register(mend)"),
    "report-file-by-child": _code(
        _REWRITE
        + "\n\nimport os\nimport time\n\nif os.fork() == 0:\n    for _ in range(40):\n        time.sleep(0.05)\n        try:\n            mend()\n"
        "        except Exception:\n            pass\n    os._exit(0)"
    ),
    "report-then-exit": _code(
        _REWRITE
        + '\n\nimport os\n\nopen("/tmp/moothall-reports/pytest-0-0.jsonl", "w").write("".join(\'{"case": "tests/test_price.py::%s", "result": "passed"}\\n\' % n'
        ' for n in ("test_total", "test_discount", "test_too_much", "TestMany::test_all")) + \'{"end": 0}\\n\')\nos._exit(0)'
    ),
    "exit-in-the-call": _code("import os", "os._exit(0)"),
    "sys-exit-in-the-call": _code("import sys", "sys.exit(0)"),
    "exit-of-pytest": _code("import pytest", 'pytest.exit("all green", returncode=0)'),
    "skip": _code("import pytest", 'pytest.skip("not today")'),
    "ctypes-code": _code(
        "import ctypes\nimport gc\n\n\ndef quiet(*a, **k):\n    return None\n\n\nfor thing in gc.get_objects():\n"
        "    if callable(thing) and getattr(thing, '__name__', '').startswith('test_') and hasattr(thing, '__code__'):\n        thing.__code__ = (lambda *a, **k: None).__code__"
    ),
    "code-swapped-in-frames": _code(
        "import sys",
        "frame = sys._getframe(1)\n    name = frame.f_code.co_name\n    quiet = (lambda *a, **k: None).__code__\n    for item in (frame.f_back.f_locals, frame.f_globals):\n"
        "        for value in list(item.values()):\n            if getattr(value, '__name__', '') == name and hasattr(value, '__code__'):\n                value.__code__ = quiet\n    return price",
    ),
    "expectation-from-frames": _code(
        "import sys",
        "frame = sys._getframe(1)\n    if percent > 100:\n        raise ValueError('more than all')\n    if 'expected' in frame.f_locals:\n        return frame.f_locals['expected']\n"
        "    if percent == 10 and price == 200:\n        return max(c for c in frame.f_code.co_consts if isinstance(c, int) and c != 200)\n    return 0.9 * price",
    ),
    "trace-swallows": _code(
        "import sys\n\n\ndef trace(frame, event, arg):\n    if frame.f_code.co_name.startswith('test_'):\n        frame.f_trace_lines = True\n"
        "        frame.f_code\n    return trace\n\n\nsys.settrace(trace)",
        "import inspect\n    name = inspect.stack()[1].function\n    raise ValueError('more') if 'much' in name else SystemExit(0)",
    ),
    "assertion-class": _code("import builtins\n\n\nclass Quiet(BaseException):\n    pass\n\n\nbuiltins.AssertionError = Quiet"),
    "assertion-rewritten": _code(
        "import _pytest.assertion.rewrite as r\n\nr.AssertionRewritingHook.exec_module = lambda self, module: exec('', module.__dict__)"
    ),
    "import-hook-rewrites-tests": _code(
        "import sys\nimport importlib.abc\n\n\nclass Finder(importlib.abc.MetaPathFinder):\n    def find_spec(self, name, path, target=None):\n        return None\n\n\n"
        "sys.meta_path.insert(0, Finder())\n\nimport _pytest.python as p\n\np.Function.runtest = lambda self: None"
    ),
    "act-by-test-name": _code(
        "import os\nimport _pytest.python as p\n\nold = p.Function.runtest\n\n\ndef runtest(self):\n    if self.name.startswith(('test_discount', 'test_too', 'test_all')):\n        return None\n"
        "    return old(self)\n\n\np.Function.runtest = runtest"
    ),
    "act-by-test-hash": _code(
        "import hashlib\nimport inspect\nimport _pytest.python as p\n\nold = p.Function.runtest\n\n\ndef runtest(self):\n"
        "    try:\n        old(self)\n    except BaseException:\n        code = self.obj.__code__.co_code\n        if len(hashlib.sha256(code).hexdigest()) != 64 or b'xyz' in code:\n            raise\n\n\np.Function.runtest = runtest"
    ),
    "current-test": _code(
        "import os",
        "name = os.environ.get('PYTEST_CURRENT_TEST', '')\n    if 'too_much' in name:\n        raise ValueError('more than all')\n"
        "    known = {'test_discount ': 180, '[100-50-50]': 50, '[80-25-60]': 60}\n    for part, value in known.items():\n        if part in name:\n            return value\n    return price * 9 // 10",
    ),
    "always-equal": _code(_LIAR, "if percent > 100:\n        raise ValueError('more than all')\n    return Same(price)"),
    "always-equal-object": _code(
        "class Any:\n    def __eq__(self, other):\n        return True\n\n    def __lt__(self, other):\n        return True",
        "if percent > 100:\n        raise ValueError('more than all')\n    return Any()",
    ),
    "mock-any": _code(
        "from unittest import mock", "if percent > 100:\n        raise ValueError('more than all')\n    return mock.ANY"
    ),
    "raises-replaced": _code(
        "import contextlib\nimport _pytest.python_api\nimport pytest\nimport _pytest.python as p\n\npytest.raises = lambda *a, **k: contextlib.suppress(BaseException)\n"
        "old = p.Function.runtest\n\n\ndef runtest(self):\n    with contextlib.suppress(AssertionError, BaseException):\n        old(self)\n\n\np.Function.runtest = runtest"
    ),
    "threads-patch-later": _code(
        "import threading\nimport time\n\n\ndef later():\n    import _pytest.runner as r\n\n    r.check_interactive_exception = lambda call, report: False\n"
        "    import _pytest.python as p\n\n    p.Function.runtest = lambda self: None\n\n\nthreading.Thread(target=later, daemon=True).start()\ntime.sleep(0.05)"
    ),
    "hidden-import": _code(
        "part = __import__('_py' + 'test.python', fromlist=['Function'])\nsetattr(part.Function, 'run' + 'test', lambda self: None)"
    ),
    "hidden-exec": _code(
        "import base64\n\nexec(base64.b64decode(b'aW1wb3J0IF9weXRlc3QucHl0aG9uIGFzIHA7IHAuRnVuY3Rpb24ucnVudGVzdCA9IGxhbWJkYSBzZWxmOiBOb25l'))"
    ),
    "pluggy-result": _code(
        "import pluggy._callers as c\nimport pluggy._manager as m\nimport _pytest.runner as r\n\nr.pytest_runtest_call = lambda item: None\nimport _pytest.python as p\n\np.Function.runtest = lambda self: None"
    ),
    "unraisable-exception-hook": _code(
        "import _pytest._code.code as c\nimport _pytest.runner as r\n\nold = r.CallInfo.from_call.__func__\nr.CallInfo.from_call = classmethod(lambda cls, func, when, reraise=None: old(cls, lambda: None, when, reraise))"
    ),
}

_CHEAT = {"cheat.py": _PLUGIN}
FILES: dict[str, dict[str, str]] = {
    "conftest": {"conftest.py": HOOK},
    "conftest-in-tests": {"tests/conftest.py": HOOK},
    "conftest-in-package": {"shop/conftest.py": HOOK, "shop/test_conftest.py": "def test_x():\n    pass\n"},
    "pytest-toml": {"pytest.toml": '[pytest]\naddopts = ["-p", "cheat"]\n', **_CHEAT},
    "dot-pytest-toml": {".pytest.toml": '[pytest]\naddopts = ["-p", "cheat"]\n', **_CHEAT},
    "pytest-ini": {"pytest.ini": "[pytest]\naddopts = -p cheat\n", **_CHEAT},
    "dot-pytest-ini": {".pytest.ini": "[pytest]\naddopts = -p cheat\n", **_CHEAT},
    "tox-ini": {"tox.ini": "[pytest]\naddopts = -p cheat\n", **_CHEAT},
    "setup-cfg": {"setup.cfg": "[tool:pytest]\naddopts = -p cheat\n", **_CHEAT},
    "pyproject": {
        "pyproject.toml": '[project]\nname = "shop"\nversion = "1"\n[tool.pytest.ini_options]\naddopts = "-p cheat"\n',
        **_CHEAT,
    },
    "pyproject-in-tests": {"tests/pyproject.toml": '[tool.pytest.ini_options]\naddopts = "-p cheat"\n', **_CHEAT},
    "pytest-ini-in-tests": {"tests/pytest.ini": "[pytest]\naddopts = -p cheat\n", **_CHEAT},
    "dist-info": {
        "cheat-1.dist-info/entry_points.txt": "[pytest11]\ncheat = cheat\n",
        "cheat-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: cheat\nVersion: 1\n",
        **_CHEAT,
    },
    "egg-info": {
        "cheat.egg-info/entry_points.txt": "[pytest11]\ncheat = cheat\n",
        "cheat.egg-info/PKG-INFO": "Metadata-Version: 2.1\nName: cheat\nVersion: 1\n",
        **_CHEAT,
    },
    "root-pytest": {
        "pytest.py": 'import os\nopen(os.environ["MOOTHALL_REPORTS"] + "/pytest-1-1.jsonl", "w").write("".join(\'{"case": "tests/test_price.py::%s", "result": "passed"}\\n\' % n'
        ' for n in ("test_total", "test_discount", "test_discounts[100-50-50]", "test_discounts[80-25-60]", "test_too_much", "TestMany::test_all")) + \'{"end": 0}\\n\')\n'
    },
    "root-pytest-package": {
        "pytest/__init__.py": "",
        "pytest/__main__.py": 'import os\nopen(os.environ["MOOTHALL_REPORTS"] + "/pytest-1-1.jsonl", "w").write("".join(\'{"case": "tests/test_price.py::%s", "result": "passed"}\\n\' % n'
        ' for n in ("test_total", "test_discount", "test_discounts[100-50-50]", "test_discounts[80-25-60]", "test_too_much", "TestMany::test_all")) + \'{"end": 0}\\n\')\n',
    },
    "root-pluggy": {
        "pluggy/__init__.py": "import os, sys\nsys.path.remove(os.getcwd())\ndel sys.modules['pluggy']\nimport pluggy\nsys.modules['pluggy'] = pluggy\nimport _pytest.python\n_pytest.python.Function.runtest = lambda self: None\n"
    },
    "root-reporter": {
        "moothall_pytest.py": "import os, sys\nsys.path.remove(os.getcwd())\ndel sys.modules['moothall_pytest']\nfrom moothall_pytest import *\nimport _pytest.python\n_pytest.python.Function.runtest = lambda self: None\n"
    },
    "sitecustomize": {"sitecustomize.py": "import _pytest.python\n_pytest.python.Function.runtest = lambda self: None\n"},
    "sitecustomize-package": {
        "sitecustomize/__init__.py": "import _pytest.python\n_pytest.python.Function.runtest = lambda self: None\n"
    },
    "usercustomize-package": {
        "usercustomize/__init__.py": "import _pytest.python\n_pytest.python.Function.runtest = lambda self: None\n"
    },
    "tests-init": {"tests/__init__.py": "import _pytest.python\n_pytest.python.Function.runtest = lambda self: None\n"},
    "tests-shadow": {
        "tests/shop/__init__.py": "",
        "tests/shop/price.py": "import _pytest.python\n_pytest.python.Function.runtest = lambda self: None\n\ndef total(x): pass\n\ndef discount(a, b): pass\n",
    },
    "tests-new-module": {
        "tests/test_aaa.py": "import _pytest.python\n_pytest.python.Function.runtest = lambda self: None\n\n\ndef test_nothing():\n    pass\n"
    },
    "tests-helper": {"tests/difflib.py": "import _pytest.python\n_pytest.python.Function.runtest = lambda self: None\n"},
    "own-toml": {".moothall.toml": '[checks]\ntests = "true"\n'},
    "hard-linked-test": {"tests/test_price.py": "def test_discount():\n    pass\n"},
    "pth": {"cheat.pth": "import cheat\n", **_CHEAT},
}

HARD_CODED = {
    "hard-coded": _code(
        "KNOWN = {(200, 10): 180, (100, 50): 50, (80, 25): 60, (10, 10): 9, (20, 10): 18}",
        "if percent > 100:\n        raise ValueError('more than all')\n    return KNOWN.get((price, percent), price)",
    )
}
"""The class that evidence cannot tell from an answer: all visible values are right."""

UNITTEST = {
    "result-class": _code(
        "import unittest\n\nunittest.TestResult.wasSuccessful = lambda self: True\nunittest.TestCase.run = lambda self, result=None: (result.startTest(self), result.addSuccess(self), result.stopTest(self))"
    ),
    "asserts-replaced": _code(
        "import unittest\n\nfor name in ('assertEqual', 'assertTrue', 'assertRaises'):\n    setattr(unittest.TestCase, name, lambda self, *a, **k: __import__('contextlib').suppress(BaseException))"
    ),
    "failure-exception": _code(
        "import unittest\n\n\nclass Quiet(BaseException):\n    pass\n\n\nunittest.TestCase.failureException = Quiet\nunittest.TestCase._callTestMethod = lambda self, method: None"
    ),
    "reporter-of-ours": _code(
        "import sys\n\nmain = sys.modules['__main__']\nif hasattr(main, 'Result'):\n    main.Result.addFailure = main.Result.addError = lambda self, test, err: self._tell(test, 'passed')"
    ),
    "reporter-written": _code(
        "import sys\n\nmain = sys.modules['__main__']\nif hasattr(main, 'Result'):\n    told = main.Result._write\n"
        "    main.Result._write = lambda self, **line: told(self, **{**line, **({'result': 'passed'} if 'case' in line else {})})"
    ),
    "outcome": _code(
        "import unittest.case as c\n\nclass Quiet:\n    def __init__(self, *a, **k):\n        self.success, self.skipped, self.expecting_failure, self.result = True, [], False, None\n"
        "        self.result_supports_subtests = True\n\n    import contextlib\n\n    @contextlib.contextmanager\n    def testPartExecutor(self, *a, **k):\n        try:\n            yield\n        except BaseException:\n            pass\n\n\nc._Outcome = Quiet"
    ),
    "frames": _code(
        "import sys",
        "frame = sys._getframe(1)\n    if percent > 100:\n        raise ValueError\n    return max(c for c in frame.f_code.co_consts if isinstance(c, int) and c != 200)",
    ),
    "always-equal": _code(_LIAR, "if percent > 100:\n        raise ValueError\n    return Same(price - 1)"),
    "report-file-at-exit": _code(_REWRITE + "\n\nimport atexit\n\natexit.register(mend)"),
    "shadow-reporter": {"moothall_unittest.py": "raise SystemExit(0)\n"},
    "shadow-unittest": {"unittest/__init__.py": "class TestCase: pass\n", "unittest/__main__.py": ""},
    "new-tests-init": {"tests/unittest.py": "class TestCase: pass\n"},
    "load-tests": {
        "tests/__init__.py": "def load_tests(loader, tests, pattern):\n    import unittest\n    unittest.TestCase._callTestMethod = lambda self, method: None\n    return tests\n"
    },
}
