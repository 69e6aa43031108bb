"""Commands with a verdict: what is run for a check, in which environment, and what its result
means.

Standard library only: the executor reads the result. How the cases are told is written in
`tools.cases`.
"""

from __future__ import annotations

import os
import re
import shlex

from moothall.sandbox_runtime.cases import ERRORED, FAILED, FOLDER, PASSED, RED

TYPE_CHECKING = False  # the real one is in `typing`, which costs the executor start time
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MISSING = "missing"
PLUGINS = "/opt/moothall/plugins"
"""Where our reporters lie in a sandbox."""
SITE = "/tmp/moothall-site"  # noqa: S108 - inside the sandbox
"""Where a build installs a package that cannot be built in place. If a project's build names this
folder, it comes before the environment on the path of Python."""
_GO_FACTOR = 6  # Go's limit is of a package's tests, not of one
_PYTEST_FAILED, _PYTEST_NO_TESTS = 1, 5
_NO_PROGRAM = (126, 127)
_MAIN, _UNITTEST, _SCRIPT = "moothall_main", "moothall_unittest", "moothall_script"
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*")
_DJANGO = frozenset({"manage.py", "django-admin", "django-admin.py"})
_RUNNERS = frozenset({"mocha", "jest", "vitest", "borp"})
_SCRIPTS = (".js", ".mjs", ".cjs", ".jsx", ".ts", ".mts", ".cts", ".tsx")
_NODE = frozenset({"npm", "pnpm", "yarn", "npx", "node"})

# What the tools tests.* run where the profile says nothing better.
DEFAULTS: Mapping[str, tuple[str, ...]] = {
    "tests.pytest": ("python3", "-m", "pytest"),
    "tests.npm": ("npm", "test"),
    "tests.go": ("go", "test", "./..."),
    "tests.cargo": ("cargo", "test"),
    "tests.make": ("make",),
}


def is_pytest(argv: Sequence[str]) -> bool:
    """Whether a command is pytest."""
    words = tuple(argv[:8])
    if any(_program(word) in {"pytest", "py.test"} for word in words[:1]):
        return True
    if words[1:2] == ("run",) and any(
        _program(word) in {"pytest", "py.test"} for word in words[2:4]
    ):
        return True  # uv run pytest, poetry run pytest
    return any(
        words[at] == "-m" and words[at + 1] in {"pytest", _MAIN} for at in range(1, len(words) - 1)
    )


def _is_unittest(argv: Sequence[str]) -> bool:
    return any(
        tuple(argv[at : at + 2]) == ("-m", "unittest") for at in range(1, min(len(argv), 8) - 1)
    )


def _django(argv: Sequence[str]) -> int:
    """Return the index of the word that starts Django's test runner or a runtests.py, or -1."""
    words = tuple(argv[:8])
    for at, word in enumerate(words):
        if word == _SCRIPT:
            return -1
        program, after = _program(word), words[at + 1 : at + 2]
        if (program in _DJANGO and after == ("test",)) or program == "runtests.py":
            return at
        if words[at : at + 3] == ("-m", "django", "test"):
            return at
    return -1


def _is(argv: Sequence[str], program: str, *commands: str) -> bool:
    return bool(argv) and _program(argv[0]) == program and argv[1:2] != () and argv[1] in commands


def tells_cases(argv: Sequence[str]) -> bool:
    """Whether a command always tells its cases, so that a run without any tested nothing."""
    return (
        is_pytest(argv)
        or _is_unittest(argv)
        or _is(argv, "go", "test")
        or _is(argv, "cargo", "test", "t", "nextest")
    )


def may_tell_cases(argv: Sequence[str]) -> bool:
    """Whether a command may tell its cases as they end, and so which one hangs. A script, or make,
    is one case that ends or does not.
    """
    return tells_cases(argv) or (bool(argv) and _program(argv[0]) in _NODE)


def _program(word: str) -> str:
    return word.rpartition("/")[2]


def _operands(paths: Sequence[str]) -> tuple[str, ...]:
    """Return paths so that none reads as an option, also for programs that know no '--'."""
    return tuple(f"./{path}" if path.startswith(("-", "@", ":")) else path for path in paths)


def command(
    argv: Sequence[str],
    paths: Sequence[str] = (),
    keyword: str = "",
    *,
    cases: Sequence[str] = (),
    seconds: float = 0.0,
) -> tuple[str, ...]:
    """Return the command of a check so that its cases can be read; of tests, narrowed to test files
    or cases where its program can be. `seconds` are the limit of a case.
    """
    argv = tuple(
        f"{part}:{PLUGINS}" if part.startswith("PYTHONPATH=") else part for part in argv
    )  # after `env`
    if is_pytest(argv):
        return _pytest(argv, cases or paths, keyword)
    if not {*cases}.isdisjoint(paths):
        # A new test file among the cases has no cases yet: the files are run whole.
        cases = [case for case in cases if case not in paths and _is(argv, "go", "test")]
    if _is_unittest(argv) or _django(argv) >= 0:
        return _unittest(argv, paths, cases)
    if _is(argv, "go", "test"):
        return _go(argv, paths, cases, seconds)
    if _is(argv, "cargo", "test", "t", "nextest"):
        return _cargo(argv, paths, cases)
    return _node(argv, paths) if paths else argv


def _split(argv: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    at = argv.index("--") if "--" in argv else len(argv)
    return argv[:at], argv[at + 1 :]


def _pytest(argv: tuple[str, ...], paths: Sequence[str], keyword: str) -> tuple[str, ...]:
    before, after = _split(_safe(argv))
    if before[1:2] == ("run",) and _program(before[0]) == "poetry":
        before = (*before[:2], "--", *before[2:])  # or it takes the next '--' for its own
    options = ("-q", "--rootdir=.", *((f"-k={keyword}",) if keyword else ()))
    return (*before, *options, "--", *(_operands(paths) if paths else after))


def _safe(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Start pytest by our own module, which loads it before anything of the working directory; see
    `moothall_main`.
    """
    for at in range(1, min(len(argv), 8) - 1):
        if argv[at : at + 2] == ("-m", "pytest") and _PYTHON.fullmatch(_program(argv[at - 1])):
            return (*argv[: at + 1], _MAIN, *argv[at + 2 :])
    return argv


def _unittest(argv: tuple[str, ...], paths: Sequence[str], cases: Sequence[str]) -> tuple[str, ...]:
    if (own := _django(argv)) >= 0:
        return _own_runner(argv, own, paths, cases)
    at = argv.index("unittest")
    said = argv[at + 1 :] if not paths else _operands(paths)
    return (*argv[:at], _UNITTEST, *said, *(word for case in cases for word in ("-k", case)))


def _own_runner(
    argv: tuple[str, ...], at: int, paths: Sequence[str], cases: Sequence[str]
) -> tuple[str, ...]:
    """Start a script that runs unittest's runner through our module, which reports the cases."""
    script = argv[at:]
    if _program(argv[at]).startswith("django-admin"):
        script = ("-m", "django", *argv[at + 1 :])
    python = () if any(_PYTHON.fullmatch(_program(word)) for word in argv[:at]) else ("python",)
    folder = next(
        (f"{word[8:].strip('/')}/" for word in argv[:at] if word.startswith("--chdir=")), ""
    )
    inner = (path.removeprefix(folder).removesuffix(".py").strip("/") for path in paths)
    labels = () if cases else tuple(path.replace("/", ".") for path in inner)
    return (
        *argv[:at],
        *python,
        "-m",
        _SCRIPT,
        *script,
        *labels,
        *(word for case in cases for word in ("-k", case)),
    )


def _go(
    argv: tuple[str, ...], paths: Sequence[str], cases: Sequence[str], seconds: float
) -> tuple[str, ...]:
    said = argv[2:]
    options = [] if "-json" in said else ["-json"]
    if seconds and not any(part.startswith("-timeout") for part in said):
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
        *((part for part in said if part != "./...") if packages else said),
        *packages,
    )


def _node(argv: tuple[str, ...], paths: Sequence[str]) -> tuple[str, ...]:
    if (
        argv[:2] == ("npm", "exec") and "--call" in argv
    ):  # what follows its command is no argument of that command
        at = argv.index("--call") + 1
        return (*argv[:at], f"{argv[at]} {shlex.join(_operands(paths))}", *argv[at + 1 :])
    if argv and _program(argv[0]) in _NODE - {"node", "npx"}:
        return (*argv, "--", *_operands(paths)) if "--" not in argv else (*argv, *_operands(paths))
    return argv


def _cargo(argv: tuple[str, ...], paths: Sequence[str], cases: Sequence[str]) -> tuple[str, ...]:
    before, after = _split(argv)
    options = [] if "--no-fail-fast" in before else ["--no-fail-fast"]
    for path in paths:
        folder, _, file = path.rpartition("/")
        if folder.rpartition("/")[2] == "tests" and file.endswith(".rs"):
            options += ["--test", file.removesuffix(".rs")]
    names = tuple(
        dict.fromkeys(case.partition("::")[2].partition(" #")[0] for case in cases if "::" in case)
    )
    last = (*after, *(name for name in names if not name.startswith("-")))
    return (*before, *options, *(("--", *last) if last else ()))


def variables(
    argv: Sequence[str] = (),
    *,
    seconds: float,
    cases: Sequence[str] = (),
    plugins: str = PLUGINS,
    folder: str = FOLDER,
) -> dict[str, str]:
    """Return what the environment of the command `argv` holds beside the usual: whichever runner it
    starts is told to report to `folder`, by the reporters in `plugins`, and to end a case after
    `seconds`.
    """
    pytest = (
        "-p moothall_pytest",
        "--continue-on-collection-errors",
        "--tb=short",
        f"-o cache_dir={folder}-cache",
    )
    found = {
        "MOOTHALL_REPORTS": folder,
        "MOOTHALL_CASE_SECONDS": f"{seconds:g}",
        "PYTHONPATH": plugins,
        "PYTEST_ADDOPTS": " ".join(pytest),
        "PYTEST_PLUGINS": "moothall_pytest",  # also where a command sets PYTEST_ADDOPTS itself
        "NODE_OPTIONS": f"--require={plugins}/moothall_node.cjs",
        # For `plugins/bin/node`: a script may set NODE_OPTIONS itself.
        "MOOTHALL_NODE": f"--require={plugins}/moothall_node.cjs",
        "GOFLAGS": "-count=1",  # what was green is run, not remembered
        "RUFF_OUTPUT_FORMAT": "concise",
    }
    if {_MAIN, _UNITTEST, _SCRIPT} & {*argv[:12]}:
        found["PYTHONSAFEPATH"] = (
            "1"  # they put the working directory on the path themselves, once the runner is loaded
        )
    titles = [case.partition("::")[2] or case for case in cases]
    if titles:
        found["MOOTHALL_ONLY"] = "|".join(
            f"{_title_pattern(title.replace(' > ', ' '))}$" for title in titles
        )
        found["MOOTHALL_ONLY_LAST"] = "|".join(
            f"^{_title_pattern(title.rpartition(' > ')[2])}$" for title in titles
        )
    return found


def with_reporters_path(path: str, plugins: str = PLUGINS) -> str:
    """Return a PATH on which our `node`, which keeps the reporter, comes first; unchanged if there
    is no `node`.
    """
    there = any(os.access(f"{folder}/node", os.X_OK) for folder in path.split(os.pathsep))
    return f"{plugins}/bin{os.pathsep}{path}" if there else path


def _title_pattern(title: str) -> str:
    """Return a pattern of a title, whose last number may be one that a reporter of ours gave to
    cases of one name.
    """
    said, mark, number = title.rpartition(" #")
    return f"{re.escape(said)}(?: #{number})?" if mark and number.isdecimal() else re.escape(title)


def verdict(argv: Sequence[str], exit_code: int, cases: Mapping[str, str]) -> str:
    """Return what a command that ran to its end says. A run that tested nothing is `missing`,
    whatever the exit code.
    """
    results = set(cases.values())
    if not results:
        return _of_exit_code(argv, exit_code)
    red = bool(results & set(RED))
    if exit_code == 0:
        return (
            PASSED
            if PASSED in results and not red
            else MISSING
            if is_pytest(argv) or not red
            else FAILED
        )
    if is_pytest(argv):
        return (
            MISSING
            if exit_code == _PYTEST_NO_TESTS
            else FAILED
            if red and exit_code == _PYTEST_FAILED
            else ERRORED
        )
    return FAILED if red else ERRORED


def _of_exit_code(argv: Sequence[str], exit_code: int) -> str:
    if exit_code in _NO_PROGRAM:
        return ERRORED
    if not tells_cases(argv):
        return PASSED if exit_code == 0 else FAILED
    if exit_code in {0, _PYTEST_NO_TESTS}:
        return MISSING
    return ERRORED if is_pytest(argv) else FAILED
