"""Run commands and save their output as an SVG picture of a terminal.

Use: `python scripts/record.py PICTURE.svg FOLDER COMMAND...`. Each command is a shell command line
that runs in FOLDER. Its standard output is a terminal, so the result has colours. Its standard
error is a file, so progress is printed as lines.
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH = 100


def output_of(command: str, folder: Path) -> str:
    """Return the standard error of a command, and then its standard output: commands print their
    progress before their result.
    """
    terminal, other_end = pty.openpty()
    environment = os.environ | {"COLUMNS": str(WIDTH), "TERM": "xterm-256color"}
    with tempfile.TemporaryFile() as progress:
        process = subprocess.Popen(  # noqa: S602 - the command of the caller
            command,
            shell=True,
            executable="/bin/bash",
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=other_end,
            stderr=progress,
            env=environment,
        )
        os.close(other_end)
        result = b""
        while chunk := _read_output(terminal):
            result += chunk
        process.wait()
        os.close(terminal)
        progress.seek(0)
        return (progress.read() + result.replace(b"\r\n", b"\n")).decode()


def _read_output(terminal: int) -> bytes:
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
    # Fonts would be loaded from the network.
    svg = re.sub(r"@font-face \{.*?\}\n?", "", svg, flags=re.DOTALL)
    svg = svg.replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, monospace")
    svg = "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"
    picture.write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
