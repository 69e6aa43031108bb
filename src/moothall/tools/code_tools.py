"""The catalogue entries of the tools that run code and describe the sandbox. No role has `code.*`
unless the table of roles grants it.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from moothall.tools.arguments import Arguments, NoArguments, must_match
from moothall.tools.outputs import Output
from moothall.tools.spec import Caps, Cost, Danger, Example, Rate, Requirements, ToolSpec

Code = Annotated[str, Field(min_length=1, max_length=100_000)]
Session = Annotated[
    str, Field(max_length=40), must_match(r"[a-z0-9][a-z0-9-]*", "a session's name such as a-1")
]


class RunCode(Arguments):
    """The state of a piece is available to the next piece of the same `session`. Without a session,
    no state is kept.
    """

    code: Code
    session: Session = ""


class RunShell(Arguments):
    """Like `RunCode`, for bash. Without a `session`, only the working directory is kept.
    `timeout_seconds` 0 is the default time limit.
    """

    command: Code
    timeout_seconds: int = Field(0, ge=0, le=86_400)
    session: Session = ""


class CodeRun(Output):
    """The exit code and output of a piece of code."""

    exit_code: int
    output: str


class ShellRun(CodeRun):
    """Like `CodeRun`. `working_directory` is the one of the next command if it is not the root of
    the workspace. `ended_processes` are the background processes that ended with the command.
    """

    working_directory: str | None = None
    ended_processes: list[str] | None = None
    note: str | None = None


class SystemInfo(Output):
    """A description of the sandbox and its limits, in bytes and seconds."""

    system: str
    machine: str
    python: str
    processors: int
    memory_bytes: int
    cpu_seconds: float
    wall_seconds: float
    processes: int


class Processes(Output):
    """The processes that run in the sandbox."""

    processes: list[dict[str, object]]


SHELL = "code.shell"
USUAL_SECONDS = 120.0
_MOST_SECONDS = 600.0
_RUNS = Requirements(os_access=True, file_system="write")


def _code(
    language: str, summary: str, model: type[Arguments], arguments: dict[str, str], printed: str
) -> ToolSpec:
    return ToolSpec(
        name=f"code.{language}",
        summary=summary,
        arguments=model,
        output=CodeRun,
        danger=Danger.EXECUTE,
        caps=Caps(120),
        requirements=_RUNS,
        tags=("code", language),
        examples=(Example(summary, arguments, {"exit_code": 0, "output": printed}),),
        profiles=("code",),
        cost=Cost.HIGH,
    )


def _system(name: str, summary: str, output: type[Output], example: dict[str, object]) -> ToolSpec:
    return ToolSpec(
        name=f"system.{name}",
        summary=summary,
        arguments=NoArguments,
        output=output,
        danger=Danger.READ,
        caps=Caps(20),
        requirements=Requirements(file_system="read"),
        tags=("system", "look"),
        examples=(Example(summary, {}, example),),
        profiles=("code",),
    )


SPECS: Final = (
    _code(
        "python",
        "run Python and print the last expression",
        RunCode,
        {"code": "x = 41\nx + 1", "session": "a"},
        "42\n",
    ),
    _code("node", "run JavaScript with Node", RunCode, {"code": "[1, 2].length"}, "2\n"),
    ToolSpec(
        name=SHELL,
        summary="run a bash command; the working directory is kept, git shows the history, and "
        "there is no network",
        arguments=RunShell,
        output=ShellRun,
        danger=Danger.EXECUTE,
        caps=Caps(_MOST_SECONDS, usual_seconds=USUAL_SECONDS),
        requirements=_RUNS,
        tags=("code", "shell"),
        version="1.1.0",
        examples=(
            Example(
                "the last commits on a file",
                {"command": "git log --oneline -2 -- a.py"},
                {"exit_code": 0, "output": "3f2a9c1 begin\n"},
            ),
        ),
        profiles=("code",),
        cost=Cost.HIGH,
        own_rate=Rate(
            60,
            2000,
            # a model that works in the shell makes several calls per turn, within the limits of
            # its seat
        ),
    ),
    _system(
        "info",
        "what the sandbox is and may use",
        SystemInfo,
        {
            "system": "Linux 6.1",
            "machine": "x86_64",
            "python": "3.11.7",
            "processors": 2,
            "memory_bytes": 1_073_741_824,
            "cpu_seconds": 60.0,
            "wall_seconds": 120.0,
            "processes": 64,
        },
    ),
    _system(
        "processes",
        "what runs in the sandbox now",
        Processes,
        {"processes": [{"pid": 2, "name": "executor"}]},
    ),
)
