"""Run commands and save what a terminal shows of them as an SVG picture.

Use: `python scripts/record.py PICTURE.svg FOLDER COMMAND...`. Each command is a line of shell that
runs in FOLDER. Its standard output is a terminal, so that it has colours; its standard error is
not, so that progress comes as lines.
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH = 100


def output_of(command: str, folder: Path) -> str:
    """Return what a command writes to its terminal and to standard error, in that order of time."""
    terminal, other_end = pty.openpty()
    environment = os.environ | {"COLUMNS": str(WIDTH), "TERM": "xterm-256color"}
    process = subprocess.Popen(  # noqa: S602 - the caller's own line
        command,
        shell=True,
        executable="/bin/bash",
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=other_end,
        stderr=subprocess.PIPE,
        env=environment,
    )
    os.close(other_end)
    assert process.stderr is not None  # noqa: S101 - it is a pipe
    progress = process.stderr.read().decode()  # a command prints its result after its progress
    result = b""
    while chunk := _read(terminal):
        result += chunk
    process.wait()
    return progress + result.decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # the other end is closed
        return b""


def main(picture: Path, folder: Path, commands: list[str]) -> None:
    """Run the commands in order and write the picture."""
    console = Console(record=True, width=WIDTH, file=sys.stderr, force_terminal=True)
    for command in commands:
        console.print(f"[bold green]$[/] [bold]{command.replace('[', chr(92) + '[')}[/]")
        console.print(Text.from_ansi(output_of(command, folder).rstrip("\n")))
    svg = console.export_svg(title=folder.name)
    svg = re.sub(r"@font-face \{.*?\}\n?", "", svg, flags=re.DOTALL)  # they load from a network
    svg = svg.replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, monospace")
    svg = "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"
    picture.write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
