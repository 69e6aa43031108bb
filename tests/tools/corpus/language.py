"""Escapes of the Python language: there is no language sandbox here, so each must be stopped by the
kernel's.
"""

from __future__ import annotations

from corpus.attempt import python

_TRY = (
    "try:\n    print('REACHED', {act})\nexcept BaseException as e:\n    print('HELD', "
    "type(e).__name__)"
)
_GONE = "HELD (FileNotFoundError|PermissionError|NotADirectoryError|OSError)"


def _acts(act: str) -> str:
    return _TRY.format(act=act)


ATTEMPTS = (
    python(
        "dunder-walk-to-os",
        "found = [c for c in ().__class__.__base__.__subclasses__() if c.__name__ == "
        "'_wrap_close'][0]\n"
        + _acts("found.__init__.__globals__['popen']('cat @OUTSIDE@').read() or open('@OUTSIDE@')"),
        _GONE,
    ),
    python(
        "dunder-builtins-from-generator",
        "g = (x for x in ())\n" + _acts("g.gi_frame.f_builtins['open']('@OUTSIDE@').read()"),
        _GONE,
    ),
    python(
        "str-format-globals",
        "import os\ndef f(): pass\nf.__globals__['os'] = os\n"
        "print('{0.__globals__[os].environ}'.format(f))",
        r"PATH",
    ),
    python(
        "format-map-environment",
        "import os, sys\nprint('{m[os].environ}'.format_map({'m': sys.modules}), os.environb)",
        r"HOME",
    ),
    python(
        "frame-walk",
        "import sys\nf = sys._getframe()\nseen = []\nwhile f:\n    seen += [f'{k}={v!r:.300}' for "
        "k, v in f.f_globals.items()]\n    f = f.f_back\nprint(len(seen), seen)",
        r"\d+",
    ),
    python(
        "traceback-frames",
        "try:\n    1 / 0\nexcept Exception as e:\n    t = e.__traceback__\n    while t.tb_next: t "
        "= t.tb_next\n    print(sorted(t.tb_frame.f_globals)[:50])",
        "__name__",
    ),
    python(
        "generator-frame-escape",
        "def g():\n    yield x.gi_frame.f_back.f_back\nx = g()\nfor f in x:\n    "
        "print(f.f_builtins['open'])\n" + _acts("open('@OUTSIDE@')"),
        _GONE,
    ),
    python(
        "coroutine-frame",
        "async def c(): pass\nk = c()\nb = k.cr_frame.f_builtins\nk.close()\n"
        + _acts("b['open']('@OUTSIDE@').read()"),
        _GONE,
    ),
    python(
        "code-object-forged",
        "def f(): pass\nf.__code__ = f.__code__.replace(co_code=bytes([1, 250] * 500), "
        "co_consts=(None,), co_stacksize=0)\nf()",
        r"-?\d+",
        statuses=("success",),
    ),
    python(
        "ctypes-read",
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nfd = libc.open(b'@OUTSIDE@', "
        "0)\nprint('fd', fd, ctypes.get_errno())",
        "fd -1",
    ),
    python("ctypes-null", "import ctypes\nctypes.string_at(0)", r'"exit_code": -11'),
    python(
        "ctypes-setuid",
        "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\nprint('set', "
        "libc.setresuid(0, 0, 0), os.getuid())",
        r"set -1 1000",
    ),
    python(
        "pickle-reduce",
        "import pickle, os\nclass P:\n    def __reduce__(self): return os.system, ('cat "
        "@OUTSIDE@; echo ran',)\nprint(pickle.loads(pickle.dumps(P())))",
        "ran",
    ),
    python(
        "marshal-bytecode",
        "import marshal, types\nc = marshal.loads(marshal.dumps(compile(\"open('@OUTSIDE@')\", "
        "'x', 'exec')))\n" + _acts("types.FunctionType(c, globals())()"),
        _GONE,
    ),
    python(
        "session-pickle-poisoned",
        "import os, pickle\nos.makedirs('/tmp/moothall-sessions', exist_ok=True)\n"
        "class P:\n    def __reduce__(self): return os.system, ('touch /tmp/@MARK@; cat "
        "@OUTSIDE@',)\n"
        "open('/tmp/moothall-sessions/python-a', 'wb').write(pickle.dumps(([], {'x': "
        "pickle.dumps(P())})))\nprint('poisoned')",
        "poisoned",
    ),
    python(
        "import-hook",
        "import sys, importlib.abc\nclass F(importlib.abc.MetaPathFinder):\n    def "
        "find_spec(self, n, p=None, t=None):\n        print('asked', n)\n"
        "sys.meta_path.insert(0, F())\ntry:\n    import moothall.config\nexcept ImportError as e: "
        "print('HELD', e)\n",
        "HELD",
    ),
    python(
        "our-own-package",
        "import sys\nsys.path.insert(0, '/opt/moothall')\n"
        "try:\n    import moothall.config.settings as s\n    print(s.load_settings())\nexcept "
        "BaseException as e: print('HELD', type(e).__name__)",
        "HELD",
    ),
    python(
        "overwrite-our-code",
        "import glob\nn = 0\nfor f in glob.glob('/opt/moothall/**/*', recursive=True):\n    try:\n"
        "        open(f, 'a').write('#')\n        n += 1\n"
        "    except OSError: pass\nprint('changed', n)",
        "changed 0",
    ),
    python(
        "overwrite-the-standard-library",
        "import os, json\nfor act in (lambda: open(os.__file__, 'a'), lambda: open(json.__file__, "
        "'w'), lambda: open('/usr/lib/@MARK@', 'w')):\n"
        "    try:\n        act()\n        print('REACHED')\n    except OSError as e: "
        "print('HELD', e.errno)",
        r"HELD \d+.*HELD \d+.*HELD \d+",
    ),
    python(
        "sitecustomize",
        "import os, subprocess, sys\nos.makedirs('/tmp/s', exist_ok=True)\n"
        "open('/tmp/s/sitecustomize.py', 'w').write(\"print(open('@OUTSIDE@').read())\")\n"
        "r = subprocess.run([sys.executable, '-c', '1'], env={'PYTHONPATH': '/tmp/s'}, "
        "capture_output=True, text=True)\nprint(r.stderr)",
        "FileNotFoundError|No such file",
    ),
    python(
        "eval-deep", "eval('(' * 100000 + ')' * 100000)", "Error", statuses=("success", "memory")
    ),
    python(
        "recursion",
        "import sys\nsys.setrecursionlimit(10**9)\ndef f(): return f() + 1\nf()",
        statuses=("success", "memory"),
    ),
    python(
        "recursion-in-repr",
        "x = []\nfor n in range(200000): x = [x]\nprint(repr(x)[:10])",
        statuses=("success",),
    ),
    python("regex-bomb", "import re\nre.match(r'(a+)+$', 'a' * 60 + 'b')", statuses=("cpu",)),
    python(
        "huge-integer", "x = 10 ** (10 ** 9)\nprint(x.bit_length())", statuses=("cpu", "memory")
    ),
    python(
        "huge-integer-as-text",
        "import sys\nsys.set_int_max_str_digits(0)\nprint(len(str(7 ** (10 ** 7))))",
        statuses=("cpu", "timeout", "success"),
    ),
    # Refused at once, or killed at the limit if the kernel overcommits memory (as on every
    # Kubernetes node).
    python(
        "huge-allocation",
        "x = bytearray(10 ** 12)",
        r'MemoryError|"exit_code": -9',
        statuses=("memory",),
    ),
    python(
        "memory-of-many", "x = [bytearray(1_000_000) for _ in range(4000)]", statuses=("memory",)
    ),
    python("deep-json", "import json\njson.loads('[' * 1_000_000)", "RecursionError|Error"),
    python("endless-output", "while True: print('x' * 100_000)", statuses=("output",)),
    python(
        "output-with-marks",
        "print('\\x1b]0;x\\x07\\x00\\ud800'.encode('utf-8', 'surrogatepass'))\nimport os\n"
        "os.write(1, bytes(range(256)) * 20)",
        "",
    ),
    python(
        "exit-from-a-thread",
        "import os, threading\nthreading.Thread(target=os._exit, args=(7,)).start()\nimport time\n"
        "time.sleep(5)",
        '"exit_code": 7',
    ),
)
