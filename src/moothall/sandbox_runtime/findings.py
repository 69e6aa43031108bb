"""Findings of linters and type checkers, one line each, without line numbers: `path: message`.

Standard library only; read inside the sandbox. Output is hostile, and never makes reading fail.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False  # the real one is in `typing`, which costs the executor start time
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAX_FINDINGS = 5000
_MAX_FINDING_CHARS = 1000
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
_LOCATED = re.compile(
    r"(?P<path>[^\s:()][^:()\n]{0,300}?)(?::\d+(?::\d+)?(?:-\d+(?::\d+)?)?:?|\(\d+(?:,\d+)?\):) "
    r"*(?:-\s*)?(?P<message>\S.*)$"
)
_ARROW = re.compile(r"\s*--> (?P<path>[^:\n]{1,300}):\d+")
_MESSAGE = re.compile(r"(?:error|warning|[A-Z]{1,4}\d{2,5})\b.*$")
_INDENTED_MESSAGE = re.compile(r"\s+\d+:\d+\s+(?P<message>(?:error|warning|info)\b.*|\S.*)$")
_FILE_HEADING = re.compile(r"\s*(?P<path>[\w@./\\-]{1,300}\.\w{1,6})$")
_UNFORMATTED = re.compile(
    r"(?:[Ww]ould reformat:?|ERROR:|\[warn\]|Diff in) (?P<path>[\w@./\\-]+\.\w{1,6})(?::\d+:?| "
    r".*)?$"
)
_LINE_NUMBER = re.compile(r"\b(line|column|col) \d+\b")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def is_linter(argv: Sequence[str]) -> bool:
    """Return whether a command is a known linter, formatter or type checker."""
    words = [word.rpartition("/")[2] for word in argv[:8]]
    if words[:2] in (["go", "vet"], ["cargo", "clippy"], ["cargo", "fmt"], ["go", "fmt"]):
        return True
    program = next(
        (word for word in words if word not in _RUNNERS and not word.startswith("-")), ""
    )
    return program in _PROGRAMS


def findings(output: str) -> list[str]:
    """Return the findings, in the order of the output."""
    lines: list[str] = []
    for path, message in _read_findings(output):
        if len(lines) >= MAX_FINDINGS:
            break
        relative_path = (
            path.strip().replace("\\", "/").removeprefix("/workspace/").removeprefix("./")
        )
        lines.append(
            f"{relative_path}: {_LINE_NUMBER.sub('line', ' '.join(message.split()))}"[
                :_MAX_FINDING_CHARS
            ]
        )
    return lines


def _read_findings(output: str) -> Iterator[tuple[str, str]]:  # noqa: C901 - one branch for each form of a line
    message = heading_path = ""
    for raw_line in output.split("\n"):
        line = _COLOUR.sub("", raw_line[: 2 * _MAX_FINDING_CHARS]).rstrip()
        if match := _ARROW.match(line):
            if message:
                yield match["path"], message
            message = ""
        elif match := _UNFORMATTED.match(line):
            yield match["path"], "is not formatted"
        elif heading_path and (match := _INDENTED_MESSAGE.match(line)):
            yield heading_path, match["message"]
        elif match := _LOCATED.match(line):
            if not match["message"].startswith("note:"):
                yield match["path"], match["message"]
        elif match := _FILE_HEADING.match(line):
            heading_path = match["path"]
        elif _MESSAGE.match(line):
            message = line
        elif not line:
            heading_path = ""
