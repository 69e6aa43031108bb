"""Commands with a verdict: the command and environment of a check, and the meaning of its
result. The result of a command in the sandbox.
"""

from __future__ import annotations

import os
import re
import shlex

from moothall.sandbox_runtime.cases import ERRORED, FAILED, FAILED_RESULTS, FOLDER, PASSED

TYPE_CHECKING = False  # the real one is in `typing`, which costs the executor start time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any


# The result of a command in the sandbox. Standard library only: part of the executor.


class CommandResult:
    """`status` is a tool status. `output` is the head and tail of the output, `total` its size in
    bytes. `contended`: the seconds spent waiting for a core. `left`: the processes that had to be
    killed with the command.
    """

    __slots__ = (
        "contended",
        "cpu_ms",
        "exit_code",
        "max_rss_bytes",
        "output",
        "running_processes",
        "seconds",
        "status",
        "total",
    )

    def __init__(
        self,
        *,
        status: str,
        exit_code: int,
        output: bytes,
        total: int,
        seconds: float,
        cpu_ms: int,
        max_rss_bytes: int,
        contended: float = 0.0,
        running_processes: tuple[str, ...] = (),
    ) -> None:
        self.status, self.exit_code, self.output, self.total = status, exit_code, output, total
        self.seconds, self.cpu_ms, self.max_rss_bytes = seconds, cpu_ms, max_rss_bytes
        self.contended, self.running_processes = contended, running_processes

    def usage(self) -> dict[str, int]:
        """Return the kernel's measurements, children included."""
        return {"cpu_ms": self.cpu_ms, "max_rss_bytes": self.max_rss_bytes}

    def document(self) -> dict[str, Any]:
        """Return the result as a message."""
        return {
            "status": self.status,
            "exit_code": self.exit_code,
            "output": self.output.decode("utf-8", "replace"),
            "output_bytes": self.total,
            "duration_ms": round(self.seconds * 1000),
            "contended_ms": round(self.contended * 1000),
            "usage": self.usage(),
        }


# Commands with a verdict: the command and environment of a check, and the meaning of its result.
#
# Standard library only: the executor reads the result. `tools.cases` describes how cases are
# reported.


MISSING = "missing"
PLUGINS = "/opt/moothall/plugins"
"""The folder of our reporters in a sandbox."""
SITE = "/tmp/moothall-site"  # noqa: S108 - inside the sandbox
"""Where a build installs a package that cannot be built in place. If a project's build names this
folder, it comes before the environment on the path of Python."""
_GO_FACTOR = 6  # Go's limit is for all tests of a package
_PYTEST_FAILED, _PYTEST_NO_TESTS = 1, 5
_NOT_EXECUTABLE_CODES = (126, 127)
_PYTEST_MODULE, _UNITTEST_MODULE, _SCRIPT_MODULE = (
    "moothall_main",
    "moothall_unittest",
    "moothall_script",
)
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*")
_DJANGO_PROGRAMS = frozenset({"manage.py", "django-admin", "django-admin.py"})
_RUNNERS = frozenset({"mocha", "jest", "vitest", "borp"})
_SCRIPTS = (".js", ".mjs", ".cjs", ".jsx", ".ts", ".mts", ".cts", ".tsx")
_NODE_PROGRAMS = frozenset({"npm", "pnpm", "yarn", "npx", "node"})

# The default commands of the tools tests.*.
DEFAULTS: Mapping[str, tuple[str, ...]] = {
    "tests.pytest": ("python3", "-m", "pytest"),
    "tests.npm": ("npm", "test"),
    "tests.go": ("go", "test", "./..."),
    "tests.cargo": ("cargo", "test"),
    "tests.make": ("make",),
}


def is_pytest(argv: Sequence[str]) -> bool:
    """Return whether a command is pytest."""
    words = tuple(argv[:8])
    if any(_program(word) in {"pytest", "py.test"} for word in words[:1]):
        return True
    if words[1:2] == ("run",) and any(
        _program(word) in {"pytest", "py.test"} for word in words[2:4]
    ):
        return True  # uv run pytest, poetry run pytest
    return any(
        words[index] == "-m" and words[index + 1] in {"pytest", _PYTEST_MODULE}
        for index in range(1, len(words) - 1)
    )


def _is_unittest(argv: Sequence[str]) -> bool:
    return any(
        tuple(argv[index : index + 2]) == ("-m", "unittest")
        for index in range(1, min(len(argv), 8) - 1)
    )


def _own_runner_index(argv: Sequence[str]) -> int:
    """Return the index of the word that starts Django's test runner or a runtests.py, or -1."""
    words = tuple(argv[:8])
    for index, word in enumerate(words):
        if word == _SCRIPT_MODULE:
            return -1
        program, next_words = _program(word), words[index + 1 : index + 2]
        if (program in _DJANGO_PROGRAMS and next_words == ("test",)) or program == "runtests.py":
            return index
        if words[index : index + 3] == ("-m", "django", "test"):
            return index
    return -1


def _is_command(argv: Sequence[str], program: str, *commands: str) -> bool:
    return bool(argv) and _program(argv[0]) == program and argv[1:2] != () and argv[1] in commands


def reports_cases(argv: Sequence[str]) -> bool:
    """Return whether a command always reports its cases, so that a run without cases tested
    nothing.
    """
    return (
        is_pytest(argv)
        or _is_unittest(argv)
        or _is_command(argv, "go", "test")
        or _is_command(argv, "cargo", "test", "t", "nextest")
    )


def may_report_cases(argv: Sequence[str]) -> bool:
    """Return whether a command may report its cases as they end, so that a hanging case is known. A
    script, or make, is one case.
    """
    return reports_cases(argv) or (bool(argv) and _program(argv[0]) in _NODE_PROGRAMS)


def _program(word: str) -> str:
    return word.rpartition("/")[2]


def _operands(paths: Sequence[str]) -> tuple[str, ...]:
    """Return paths that cannot be read as options, also by programs without '--'."""
    return tuple(f"./{path}" if path.startswith(("-", "@", ":")) else path for path in paths)


def command(
    argv: Sequence[str],
    paths: Sequence[str] = (),
    keyword: str = "",
    *,
    cases: Sequence[str] = (),
    seconds: float = 0.0,
) -> tuple[str, ...]:
    """Return the command of a check with reporting of cases, restricted to test files or cases if
    the program supports that. `seconds` is the limit of a case.
    """
    argv = tuple(
        f"{part}:{PLUGINS}" if part.startswith("PYTHONPATH=") else part for part in argv
    )  # after `env`
    if is_pytest(argv):
        return _pytest_command(argv, cases or paths, keyword)
    if not {*cases}.isdisjoint(paths):
        # A new test file among the cases has no cases yet, so whole files are run.
        cases = [case for case in cases if case not in paths and _is_command(argv, "go", "test")]
    if _is_unittest(argv) or _own_runner_index(argv) >= 0:
        return _unittest_command(argv, paths, cases)
    if _is_command(argv, "go", "test"):
        return _go_command(argv, paths, cases, seconds)
    if _is_command(argv, "cargo", "test", "t", "nextest"):
        return _cargo_command(argv, paths, cases)
    return _node_command(argv, paths) if paths else argv


def _split(argv: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    separator = argv.index("--") if "--" in argv else len(argv)
    return argv[:separator], argv[separator + 1 :]


def _pytest_command(argv: tuple[str, ...], paths: Sequence[str], keyword: str) -> tuple[str, ...]:
    before, after = _split(_use_own_pytest_module(argv))
    if before[1:2] == ("run",) and _program(before[0]) == "poetry":
        before = (
            *before[:2],
            "--",
            *before[2:],
        )  # otherwise poetry takes the next '--' for its own
    options = ("-q", "--rootdir=.", *((f"-k={keyword}",) if keyword else ()))
    return (*before, *options, "--", *(_operands(paths) if paths else after))


def _use_own_pytest_module(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Start pytest by our module, which loads it before anything from the working directory; see
    `moothall_main`.
    """
    for index in range(1, min(len(argv), 8) - 1):
        if argv[index : index + 2] == ("-m", "pytest") and _PYTHON.fullmatch(
            _program(argv[index - 1])
        ):
            return (*argv[: index + 1], _PYTEST_MODULE, *argv[index + 2 :])
    return argv


def _unittest_command(
    argv: tuple[str, ...], paths: Sequence[str], cases: Sequence[str]
) -> tuple[str, ...]:
    if (runner_index := _own_runner_index(argv)) >= 0:
        return _report_own_runner(argv, runner_index, paths, cases)
    module_index = argv.index("unittest")
    arguments = argv[module_index + 1 :] if not paths else _operands(paths)
    return (
        *argv[:module_index],
        _UNITTEST_MODULE,
        *arguments,
        *(word for case in cases for word in ("-k", case)),
    )


def _report_own_runner(
    argv: tuple[str, ...], runner_index: int, paths: Sequence[str], cases: Sequence[str]
) -> tuple[str, ...]:
    """Start a script that runs unittest's runner through our module, which reports the cases."""
    script = argv[runner_index:]
    if _program(argv[runner_index]).startswith("django-admin"):
        script = ("-m", "django", *argv[runner_index + 1 :])
    python = (
        ()
        if any(_PYTHON.fullmatch(_program(word)) for word in argv[:runner_index])
        else ("python",)
    )
    folder = next(
        (f"{word[8:].strip('/')}/" for word in argv[:runner_index] if word.startswith("--chdir=")),
        "",
    )
    relative_paths = (path.removeprefix(folder).removesuffix(".py").strip("/") for path in paths)
    labels = () if cases else tuple(path.replace("/", ".") for path in relative_paths)
    return (
        *argv[:runner_index],
        *python,
        "-m",
        _SCRIPT_MODULE,
        *script,
        *labels,
        *(word for case in cases for word in ("-k", case)),
    )


def _go_command(
    argv: tuple[str, ...], paths: Sequence[str], cases: Sequence[str], seconds: float
) -> tuple[str, ...]:
    arguments = argv[2:]
    options = [] if "-json" in arguments else ["-json"]
    if seconds and not any(part.startswith("-timeout") for part in arguments):
        options.append(f"-timeout={max(1, round(_GO_FACTOR * seconds))}s")
    tests = [case.partition("::") for case in cases if re.fullmatch(r"[\w.~/-]+(::.+)?", case)]
    folders = ("./" + path.rpartition("/")[0].removeprefix("./") for path in paths)
    packages = tuple(dict.fromkeys((*(package for package, _, _ in tests), *folders)))
    if tests and not paths:
        names = dict.fromkeys(name.partition("/")[0] for _, _, name in tests if name)
        if names:
            options.append(f"-run=^({'|'.join(re.escape(name) for name in names)})$")
    return (
        *argv[:2],
        *options,
        *((part for part in arguments if part != "./...") if packages else arguments),
        *packages,
    )


def _node_command(argv: tuple[str, ...], paths: Sequence[str]) -> tuple[str, ...]:
    if (
        argv[:2] == ("npm", "exec") and "--call" in argv
    ):  # later arguments would not reach the command in --call
        call_index = argv.index("--call") + 1
        return (
            *argv[:call_index],
            f"{argv[call_index]} {shlex.join(_operands(paths))}",
            *argv[call_index + 1 :],
        )
    if argv and _program(argv[0]) in _NODE_PROGRAMS - {"node", "npx"}:
        return (*argv, "--", *_operands(paths)) if "--" not in argv else (*argv, *_operands(paths))
    return argv


def _cargo_command(
    argv: tuple[str, ...], paths: Sequence[str], cases: Sequence[str]
) -> tuple[str, ...]:
    before, after = _split(argv)
    options = [] if "--no-fail-fast" in before else ["--no-fail-fast"]
    for path in paths:
        folder, _, file = path.rpartition("/")
        if folder.rpartition("/")[2] == "tests" and file.endswith(".rs"):
            options += ["--test", file.removesuffix(".rs")]
    names = tuple(
        dict.fromkeys(case.partition("::")[2].partition(" #")[0] for case in cases if "::" in case)
    )
    test_arguments = (*after, *(name for name in names if not name.startswith("-")))
    return (*before, *options, *(("--", *test_arguments) if test_arguments else ()))


def variables(
    argv: Sequence[str] = (),
    *,
    seconds: float,
    cases: Sequence[str] = (),
    plugins: str = PLUGINS,
    folder: str = FOLDER,
) -> dict[str, str]:
    """Return the additional environment of the command `argv`. Its test runner reports to `folder`,
    with the reporters in `plugins`, and ends a case after `seconds`.
    """
    pytest = (
        "-p moothall_pytest",
        "--continue-on-collection-errors",
        "--tb=short",
        f"-o cache_dir={folder}-cache",
    )
    environment = {
        "MOOTHALL_REPORTS": folder,
        "MOOTHALL_CASE_SECONDS": f"{seconds:g}",
        "PYTHONPATH": plugins,
        "PYTEST_ADDOPTS": " ".join(pytest),
        "PYTEST_PLUGINS": "moothall_pytest",  # also where a command sets PYTEST_ADDOPTS itself
        "NODE_OPTIONS": f"--require={plugins}/moothall_node.cjs",
        # For `plugins/bin/node`: a script may set NODE_OPTIONS itself.
        "MOOTHALL_NODE": f"--require={plugins}/moothall_node.cjs",
        "GOFLAGS": "-count=1",  # passed tests run again instead of being cached
        "RUFF_OUTPUT_FORMAT": "concise",
    }
    if {_PYTEST_MODULE, _UNITTEST_MODULE, _SCRIPT_MODULE} & {*argv[:12]}:
        environment["PYTHONSAFEPATH"] = (
            "1"  # our modules add the working directory to the path after loading the runner
        )
    titles = [case.partition("::")[2] or case for case in cases]
    if titles and not any("\0" in title for title in titles):  # no variable can hold a NUL
        environment["MOOTHALL_ONLY"] = "|".join(
            f"{_title_pattern(title.replace(' > ', ' '))}$" for title in titles
        )
        environment["MOOTHALL_ONLY_LAST"] = "|".join(
            f"^{_title_pattern(title.rpartition(' > ')[2])}$" for title in titles
        )
    return environment


def with_reporters_path(path: str, plugins: str = PLUGINS) -> str:
    """Return a PATH on which our `node`, which keeps the reporter, comes first. Unchanged if there
    is no `node`.
    """
    has_node = any(os.access(f"{folder}/node", os.X_OK) for folder in path.split(os.pathsep))
    return f"{plugins}/bin{os.pathsep}{path}" if has_node else path


def _title_pattern(title: str) -> str:
    """Return a pattern for a title, whose last number may be one that our reporter added to a
    duplicate name.
    """
    name, mark, number = title.rpartition(" #")
    return f"{re.escape(name)}(?: #{number})?" if mark and number.isdecimal() else re.escape(title)


def verdict(argv: Sequence[str], exit_code: int, cases: Mapping[str, str]) -> str:
    """Return the verdict of a command that has ended. A run that tested nothing is `missing`,
    whatever the exit code.
    """
    results = set(cases.values())
    if not results:
        return _verdict_of_exit_code(argv, exit_code)
    has_failures = bool(results & set(FAILED_RESULTS))
    if exit_code == 0:
        return (
            PASSED
            if PASSED in results and not has_failures
            else MISSING
            if is_pytest(argv) or not has_failures
            else FAILED
        )
    if is_pytest(argv):
        return (
            MISSING
            if exit_code == _PYTEST_NO_TESTS
            else FAILED
            if has_failures and exit_code == _PYTEST_FAILED
            else ERRORED
        )
    return FAILED if has_failures else ERRORED


def _verdict_of_exit_code(argv: Sequence[str], exit_code: int) -> str:
    if exit_code in _NOT_EXECUTABLE_CODES:
        return ERRORED
    if not reports_cases(argv):
        return PASSED if exit_code == 0 else FAILED
    if exit_code in {0, _PYTEST_NO_TESTS}:
        return MISSING
    return ERRORED if is_pytest(argv) else FAILED
