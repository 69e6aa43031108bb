"""What linters and type checkers find, one line each, without line numbers: `path: message`.

Standard library only, and read inside the sandbox; output is hostile, and never makes reading fail.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False  # the real one is in `typing`, which costs the executor start time
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAX_FINDINGS = 5000
_LONGEST = 1000
_PROGRAMS = frozenset(
    {
        "ruff",
        "flake8",
        "pylint",
        "mypy",
        "pyright",
        "basedpyright",
        "pycodestyle",
        "pydocstyle",
        "pyflakes",
        "black",
        "isort",
        "bandit",
        "vulture",
        "ty",
        "pyrefly",
        "eslint",
        "tsc",
        "biome",
        "prettier",
        "standard",
        "xo",
        "oxlint",
        "stylelint",
        "golangci-lint",
        "staticcheck",
        "gofmt",
        "goimports",
        "rustfmt",
        "shellcheck",
        "yamllint",
        "codespell",
        "cpplint",
        "clang-tidy",
        "lint-imports",
    }
)
_RUNNERS = frozenset(
    {
        "npx",
        "uv",
        "uvx",
        "poetry",
        "pdm",
        "hatch",
        "pnpm",
        "yarn",
        "npm",
        "exec",
        "run",
        "python",
        "python3",
        "-m",
    }
)
_AT = re.compile(
    r"(?P<path>[^\s:()][^:()\n]{0,300}?)(?::\d+(?::\d+)?(?:-\d+(?::\d+)?)?:?|\(\d+(?:,\d+)?\):) "
    r"*(?:-\s*)?(?P<said>\S.*)$"
)
_ARROW = re.compile(r"\s*--> (?P<path>[^:\n]{1,300}):\d+")
_SAID = re.compile(r"(?:error|warning|[A-Z]{1,4}\d{2,5})\b.*$")
_UNDER = re.compile(r"\s+\d+:\d+\s+(?P<said>(?:error|warning|info)\b.*|\S.*)$")
_FILE = re.compile(r"\s*(?P<path>[\w@./\\-]{1,300}\.\w{1,6})$")
_FORMAT = re.compile(
    r"(?:[Ww]ould reformat:?|ERROR:|\[warn\]|Diff in) (?P<path>[\w@./\\-]+\.\w{1,6})(?::\d+:?| "
    r".*)?$"
)
_NUMBER = re.compile(r"\b(line|column|col) \d+\b")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def is_linter(argv: Sequence[str]) -> bool:
    """Whether a command is a linter, formatter or type checker that we know."""
    words = [word.rpartition("/")[2] for word in argv[:8]]
    if words[:2] in (["go", "vet"], ["cargo", "clippy"], ["cargo", "fmt"], ["go", "fmt"]):
        return True
    program = next(
        (word for word in words if word not in _RUNNERS and not word.startswith("-")), ""
    )
    return program in _PROGRAMS


def findings(output: str) -> list[str]:
    """Return what was found, in the order of the output."""
    found: list[str] = []
    for path, said in _find(output):
        if len(found) >= MAX_FINDINGS:
            break
        place = path.strip().replace("\\", "/").removeprefix("/workspace/").removeprefix("./")
        found.append(f"{place}: {_NUMBER.sub('line', ' '.join(said.split()))}"[:_LONGEST])
    return found


def _find(output: str) -> Iterator[tuple[str, str]]:  # noqa: C901 - one branch for each form of a line
    said = file = ""
    for raw in output.split("\n"):
        line = _COLOUR.sub("", raw[: 2 * _LONGEST]).rstrip()
        if match := _ARROW.match(line):
            if said:
                yield match["path"], said
            said = ""
        elif match := _FORMAT.match(line):
            yield match["path"], "is not formatted"
        elif file and (match := _UNDER.match(line)):
            yield file, match["said"]
        elif match := _AT.match(line):
            if not match["said"].startswith("note:"):
                yield match["path"], match["said"]
        elif match := _FILE.match(line):
            file = match["path"]
        elif _SAID.match(line):
            said = line
        elif not line:
            file = ""
