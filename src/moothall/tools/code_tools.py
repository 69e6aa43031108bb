"""What the catalogue says of the tools that run code and tell of the sandbox. No role has `code.*` unless the table says so."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from moothall.tools.arguments import Arguments, NoArguments, must_match
from moothall.tools.outputs import Output
from moothall.tools.spec import Caps, Cost, Danger, Example, Requirements, ToolSpec

Code = Annotated[str, Field(min_length=1, max_length=100_000)]
Session = Annotated[str, Field(max_length=40), must_match(r"[a-z0-9][a-z0-9-]*", "a session's name such as a-1")]


class RunCode(Arguments):
    """What a piece leaves is there for the next of the same `session`; without one, nothing is kept."""

    code: Code
    session: Session = ""


class RunShell(Arguments):
    """As code, for bash."""

    command: Code
    session: Session = ""


class CodeRun(Output):
    """How a piece of code ended, and what it printed."""

    exit_code: int
    output: str


class SystemInfo(Output):
    """What the sandbox is, and what it may use. Bytes and seconds."""

    system: str
    machine: str
    python: str
    processors: int
    memory_bytes: int
    cpu_seconds: float
    wall_seconds: float
    processes: int


class Processes(Output):
    """What runs in the sandbox now."""

    processes: list[dict[str, object]]


_RUNS = Requirements(os_access=True, file_system="write")


def _code(language: str, summary: str, model: type[Arguments], arguments: dict[str, str], printed: str) -> ToolSpec:
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
    _code("python", "run Python and print the last expression", RunCode, {"code": "x = 41\nx + 1", "session": "a"}, "42\n"),
    _code("node", "run JavaScript with Node", RunCode, {"code": "[1, 2].length"}, "2\n"),
    _code("shell", "run a bash command", RunShell, {"command": "wc -l *.py"}, "12 a.py\n"),
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
    _system("processes", "what runs in the sandbox now", Processes, {"processes": [{"pid": 2, "name": "executor"}]}),
)
