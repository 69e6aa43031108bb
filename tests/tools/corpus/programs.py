"""Escapes by programs that tools start: their options, their configuration in the tree, and code
that runs before the tests.
"""

from __future__ import annotations

from corpus.attempt import MARK, OUTSIDE, Attempt, shell

_NO = ("invalid", "blocked", "error")
_RAN = ("success",)
_SLOW = (
    "success",
    "error",
    "cpu",
    "timeout",
    "processes",
)  # three starts of npm take seconds on a busy machine
_OUT = f"open('{OUTSIDE}').read()"
_WRITES = f"open('/etc/{MARK}', 'w')"
_REPORT = "/tmp/moothall-report.xml"
_GREEN = (
    '<testsuites><testsuite><testcase classname="tests.test_app" name="test_two" '
    'file="tests/test_app.py"/></testsuite></testsuites>'
)


def _pytest(
    name: str,
    plants: dict[str, str],
    expected_output: str = "",
    statuses: tuple[str, ...] = _RAN,
    **arguments: object,
) -> Attempt:
    return Attempt(
        f"pytest-{name}", "tests.pytest", arguments, statuses, expected_output, plants=plants
    )


def _first(
    name: str, first: str, expected_output: str = "", statuses: tuple[str, ...] = _RAN
) -> Attempt:
    return Attempt(f"pytest-{name}", "tests.pytest", {}, statuses, expected_output, first=first)


_NOT_PASSED = '"verdict": "(failed|errored|missing)"'
_BOMB = (
    '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">'
    + "".join(f'<!ENTITY {chr(98 + n)} "{f"&{chr(97 + n)};" * 10}">' for n in range(9))
    + "]><testsuites><testcase name='&j;'/></testsuites>"
)

ATTEMPTS = (
    _pytest(
        "conftest-reads",
        {"conftest.py": f"print({_OUT})"},
        "No such file.*" + _NOT_PASSED + "|" + _NOT_PASSED,
    ),
    _pytest("conftest-writes", {"conftest.py": _WRITES}, _NOT_PASSED),
    _pytest("conftest-exits", {"conftest.py": "import os\nos._exit(0)"}, _NOT_PASSED),
    _pytest(
        "conftest-stops-the-session",
        {"conftest.py": "import pytest\npytest.exit('done', returncode=0)"},
        _NOT_PASSED,
    ),
    _pytest(
        "conftest-forks-away",
        {
            "conftest.py": (
                "import os\nif os.fork(): os._exit(0)\nos.setsid()\nimport time\ntime.sleep(60)"
            )
        },
        _NOT_PASSED,
    ),
    _pytest("module-exits", {"src/app.py": "import os\nos._exit(0)"}, _NOT_PASSED),
    _pytest(
        "plugin-named",
        {
            "evil.py": f"def pytest_configure(config): {_WRITES}",
            "conftest.py": "import sys\nsys.path.insert(0, '.')\npytest_plugins = ['evil']",
        },
        "",
    ),
    _pytest(
        "configuration-with-options",
        {
            "pytest.ini": (
                f"[pytest]\naddopts = --basetemp=/etc/{MARK} --junitxml=/etc/{MARK} -p evil "
                "--rootdir=/ --confcutdir=/\n"
            )
        },
        "",
    ),
    _pytest(
        "configuration-with-a-cache-outside",
        {
            "pytest.ini": (
                f"[pytest]\ncache_dir = /etc/{MARK}\nlog_file = /etc/{MARK}\npythonpath = /\n"
            )
        },
        "",
    ),
    _pytest("no-tests", {"pytest.ini": "[pytest]\naddopts = --collect-only\n"}, _NOT_PASSED),
    _pytest("all-deselected", {"pytest.ini": "[pytest]\naddopts = -k nothing\n"}, _NOT_PASSED),
    _pytest(
        "all-skipped",
        {"conftest.py": "import pytest\n@pytest.fixture(autouse=True)\ndef no(): pytest.skip('x')"},
        _NOT_PASSED,
    ),
    _pytest(
        "network",
        {
            "tests/test_net.py": (
                "import socket\ndef test_net():\n    socket.create_connection(('127.0.0.1', "
                "@PORT@), 1)"
            )
        },
        _NOT_PASSED,
    ),
    _pytest(
        "report-then-exit",
        {"src/app.py": f"import os\nopen('{_REPORT}', 'w').write('''{_GREEN}''')\nos._exit(1)"},
        _NOT_PASSED,
    ),
    _pytest(
        "report-of-an-entity-bomb",
        {"conftest.py": f"import os\nopen('{_REPORT}', 'w').write('''{_BOMB}''')\nos._exit(0)"},
        _NOT_PASSED,
    ),
    _pytest(
        "report-without-end",
        {
            "conftest.py": (
                f"import os\nf = open('{_REPORT}', 'w')\nf.write('<testsuites>' + "
                "''.join('<testcase name=\"x%d\"/>' % n for n in range(900000)))\nos._exit(1)"
            )
        },
        _NOT_PASSED,
    ),
    _pytest(
        "report-that-is-a-pipe",
        {"conftest.py": f"import os\nos.mkfifo('{_REPORT}')\nos._exit(0)"},
        _NOT_PASSED,
    ),
    _pytest(
        "report-that-is-a-link",
        {"conftest.py": f"import os\nos.symlink('/dev/zero', '{_REPORT}')\nos._exit(0)"},
        _NOT_PASSED,
    ),
    _pytest(
        "report-that-is-a-folder",
        {"conftest.py": f"import os\nos.makedirs('{_REPORT}/x')\nos._exit(0)"},
        _NOT_PASSED,
    ),
    _first(
        "report-made-before",
        f"echo '{_GREEN}' > {_REPORT}; echo 'import os; os._exit(0)' > conftest.py",
        _NOT_PASSED,
    ),
    _first(
        "report-that-is-a-deep-folder",
        f'mkdir -p {_REPORT}; cd {_REPORT}; python3 -c "import os\nfor n in range(3000): '
        "os.mkdir('d'); os.chdir('d')\"",
        '"verdict": "passed"',
    ),
    _pytest(
        "report-of-millions-of-elements",
        {
            "conftest.py": (
                f"import os\nopen('{_REPORT}', 'w').write('<t>' + '<a/>' * 7000000)\nos._exit(0)"
            )
        },
        _NOT_PASSED,
    ),
    _pytest(
        "report-that-is-deep",
        {"conftest.py": f"import os\nopen('{_REPORT}', 'w').write('<a>' * 9000000)\nos._exit(0)"},
        _NOT_PASSED,
    ),
    _pytest(
        "report-of-one-word",
        {
            "conftest.py": (
                f"import os\nopen('{_REPORT}', 'w').write('<a x=\"' + 'y' * 29000000)\nos._exit(0)"
            )
        },
        _NOT_PASSED,
    ),
    _first("report-blocked-before", f"mkdir -p {_REPORT}/x", '"verdict": "passed"'),
    _first(
        "report-by-a-daemon",
        "echo 'import os; os._exit(0)' > conftest.py; (setsid bash -c 'sleep 1; echo "
        f'"{_GREEN}" > {_REPORT}\' >/dev/null 2>&1 &) ; true',
        _NOT_PASSED,
    ),
    _first(
        "python-in-the-way",
        "printf '#!/bin/sh\\nexit 0\\n' > python3; cp python3 pytest; cp python3 env; chmod +x "
        "python3 pytest env",
        '"verdict": "passed"',
    ),
    _first(
        "modules-in-the-way",
        "for m in pytest _pytest json os pluggy; do echo 'raise SystemExit(0)' > $m.py; done",
        "",
    ),
    *(
        Attempt(f"pytest-path-{n}", "tests.pytest", {"paths": [path]}, statuses, expected_output)
        for n, (path, statuses, expected_output) in enumerate(
            (
                ("--junitxml=/etc/@MARK@", _NO, "option"),
                ("-p", _NO, "option"),
                ("@OUTSIDE@", _NO, "absolute"),
                ("../outside", _NO, "leaves"),
                ("@args.txt", _RAN, _NOT_PASSED),
                (":x", _RAN, _NOT_PASSED),
                ("tests/test_app.py::../../x[@OUTSIDE@]", _NO, "leaves"),
                ("tests/test_app.py\x00", _NO, "control|NUL|string"),
            ),
            1,
        )
    ),
    *(
        Attempt(
            f"pytest-keyword-{n}", "tests.pytest", {"keyword": keyword}, statuses, expected_output
        )
        for n, (keyword, statuses, expected_output) in enumerate(
            (
                ("-p evil --junitxml=/etc/@MARK@", (*_NO, "success"), ""),
                ("__import__('os').system('touch /workspace/x')", (*_NO, "success"), ""),
                ("not " * 20_000 + "x", (*_NO, "success"), ""),
                ("(" * 300 + "x" + ")" * 300, (*_NO, "success"), ""),
            ),
            1,
        )
    ),
    *(
        Attempt(f"make-target-{n}", "tests.make", {"target": target}, _NO, "target")
        for n, target in enumerate(
            (
                "SHELL=/workspace/x",
                "--eval=$(shell id)",
                "-f@OUTSIDE@",
                "-C/",
                "x;id",
                "a b",
                "../x\n",
                "$(shell id)",
            ),
            1,
        )
    ),
    Attempt(
        "make-reads-outside",
        "tests.make",
        {"target": "test"},
        _RAN,
        "No such file|cannot",
        plants={
            "Makefile": (
                "include @OUTSIDE@\nX := $(shell cat @OUTSIDE@; touch /etc/@MARK@)\ntest:\n\tcat "
                "@OUTSIDE@\n"
            )
        },
    ),
    Attempt(
        "make-without-end",
        "tests.make",
        {"target": "test"},
        ("processes", "cpu", "timeout", "success", "output"),
        "",
        plants={"Makefile": "test:\n\t$(MAKE) -j test test2 & $(MAKE) test\ntest2: test\n"},
    ),
    Attempt(
        "npm-scripts",
        "tests.npm",
        {},
        _RAN,
        "No such file",
        plants={
            "package.json": (
                '{"name": "x", "scripts": {"pretest": "cat @OUTSIDE@; touch /etc/@MARK@", "test": '
                '"true", "posttest": "cat @OUTSIDE@"}}'
            )
        },
    ),
    Attempt(
        "npm-configuration",
        "tests.npm",
        {},
        _SLOW,
        "",
        plants={
            ".npmrc": (
                "script-shell=/workspace/evil.sh\nnode-options=--require=/workspace/evil.js\n"
                "userconfig=@OUTSIDE@\nregistry=http://127.0.0.1:@PORT@/\ncache=/etc/@MARK@\n"
            ),
            "evil.js": "require('fs').writeFileSync('/etc/@MARK@', 'x')",
        },
    ),
    Attempt(
        "npm-fetches",
        "tests.npm",
        {},
        _SLOW,
        "",
        plants={
            "package.json": (
                '{"name": "x", "scripts": {"test": "npm install '
                "--registry=http://127.0.0.1:@PORT@/ left-pad; npx --yes "
                '--registry=http://127.0.0.1:@PORT@/ x"}}'
            )
        },
    ),
    Attempt(
        "go-tools",
        "tests.go",
        {},
        (*_RAN, "error", "processes", "timeout", "cpu", "memory", "disk"),
        "",
        plants={
            "go.mod": "module x\n\ngo 1.99\n\ntoolchain go1.99.9\n",
            "x_test.go": (
                'package x\n\nimport (\n\t"os"\n\t"testing"\n)\n\nfunc TestX(t *testing.T) {\n'
                '\tos.WriteFile("/etc/@MARK@", nil, 0o644)\n}\n'
            ),
        },
    ),
    Attempt(
        "go-flags",
        "tests.go",
        {},
        (*_RAN, "error", "processes", "timeout", "cpu", "memory", "disk"),
        "",
        plants={
            "go.mod": "module x\n",
            "go.env": "GOFLAGS=-toolexec=/workspace/evil.sh\nGOPROXY=http://127.0.0.1:@PORT@\n",
            "x.go": (
                "package x\n\n// #cgo LDFLAGS: -Wl,-rpath,/etc/@MARK@ "
                '-fplugin=/workspace/evil.so\nimport "C"\n'
            ),
        },
    ),
    Attempt(
        "cargo-builds",
        "tests.cargo",
        {},
        (*_RAN, "error", "processes", "timeout", "cpu"),
        "",
        plants={
            "Cargo.toml": '[package]\nname = "x"\nversion = "0.1.0"\nbuild = "build.rs"\n',
            "build.rs": 'fn main() { std::fs::write("/etc/@MARK@", "x").unwrap(); }',
            "src/lib.rs": "",
            ".cargo/config.toml": '[build]\nrustc-wrapper = "/workspace/evil.sh"\n',
        },
    ),
    *(
        Attempt(f"session-{n}", tool, {code: "1", "session": session}, _NO, "session")
        for n, (tool, code, session) in enumerate(
            (
                ("code.python", "code", "../../etc/@MARK@"),
                ("code.python", "code", "/etc/@MARK@"),
                ("code.shell", "command", "a; touch /etc/@MARK@"),
                ("code.shell", "command", "$(id)"),
                ("code.node", "code", "-e"),
                ("code.node", "code", "a\nb"),
                ("code.python", "code", "a" * 300),
            ),
            1,
        )
    ),
    Attempt(
        "node-reads",
        "code.node",
        {"code": "require('fs').readFileSync('@OUTSIDE@', 'utf8')"},
        _RAN,
        "ENOENT",
    ),
    Attempt(
        "node-binding",
        "code.node",
        {
            "code": (
                "process.binding('spawn_sync'); require('child_process').execSync('cat @OUTSIDE@; "
                "touch /etc/@MARK@').toString()"
            )
        },
        _RAN,
        "No such file|Command failed",
    ),
    Attempt(
        "node-constructor",
        "code.node",
        {
            "code": (
                "this.constructor.constructor('return process')().mainModule; "
                "globalThis.constructor.constructor('return process.env')()"
            )
        },
        _RAN,
        "PATH",
    ),
    Attempt(
        "node-inspector",
        "code.node",
        {
            "code": (
                "require('inspector').open(0, '0.0.0.0'); require('net').connect(@PORT@, "
                "'127.0.0.1').on('error', e => console.log('HELD', e.code))"
            )
        },
        _RAN,
        "HELD",
    ),
    Attempt(
        "node-memory",
        "code.node",
        {"code": "const a = []; while (true) a.push(Buffer.alloc(4000000, 1))"},
        ("memory", "cpu"),
    ),
    Attempt(
        "node-signals",
        "code.node",
        {
            "code": (
                "for (const p of [1, 2, -1]) try { process.kill(p, 'SIGKILL') } catch (e) { "
                "console.log('HELD', p, e.code) }"
            )
        },
        _RAN,
        "HELD 2 EPERM.*HELD -1 EPERM",
    ),
    shell("code-like-an-option", "-c id", "command not found|No such file|invalid option"),
    shell(
        "bash-environment",
        "export BASH_ENV=@OUTSIDE@ LD_PRELOAD=/workspace/x.so PYTHONSTARTUP=@OUTSIDE@; bash -c "
        "true; python3 -c 'print(1)'; echo END",
        "END",
    ),
    shell(
        "network-of-all-kinds",
        "for h in 127.0.0.1 ::1 0.0.0.0 169.254.169.254 10.0.0.1; do (exec 3<>/dev/tcp/$h/@PORT@) "
        "2>&1 | head -c 100; done; ip a 2>/dev/null; cat /etc/resolv.conf /etc/hosts 2>&1 | head "
        "-2; cat /proc/net/tcp | wc -l; echo END",
        "END",
    ),
    shell(
        "package-managers",
        "python3 -m pip install --index-url http://127.0.0.1:@PORT@/simple x 2>&1 | tail -1; curl "
        "-s http://127.0.0.1:@PORT@/ 2>&1; git ls-remote git://127.0.0.1:@PORT@/x 2>&1 | tail -1; "
        "echo END",
        "END",
    ),
)
