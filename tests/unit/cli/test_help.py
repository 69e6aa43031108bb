from __future__ import annotations

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from moothall.cli import main
from support.commands import leaves

WIDTH = 80


def test_the_overview_has_each_command_once_on_one_line() -> None:
    overview = CliRunner().invoke(main, ["--help"], terminal_width=WIDTH).output.splitlines()
    listed = [
        line.split()[0]
        for line in overview
        if line.startswith("  ") and line.rstrip().endswith(".") and line[2] != " "
    ]
    for name in main.list_commands(click.Context(main)):
        assert listed.count(name) == 1, name


@pytest.mark.parametrize(
    ("path", "command"),
    list(leaves(main)),
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_each_commands_help_has_a_description_and_a_short_example(
    path: tuple[str, ...], command: click.Command
) -> None:
    result = CliRunner().invoke(main, [*path, "--help"], terminal_width=WIDTH)
    assert result.exit_code == 0
    assert command.help
    _, separator, example = result.output.partition("Example:\n")
    assert separator
    assert example.strip().startswith(("moothall ", "eval "))
    assert " ".join(path) in example
    assert all(len(line) <= 100 for line in example.splitlines())


def test_a_mistyped_command_is_reported_with_the_nearest_one() -> None:
    result = CliRunner().invoke(main, ["deliberat", "x"])
    assert result.exit_code == 2
    assert "no such command 'deliberat'; did you mean deliberate?" in result.output


def test_the_overview_does_not_import_commands() -> None:
    code = (
        "import sys\nfrom moothall.cli import main\n"
        "main(['--help'], standalone_mode=False)\n"
        "print([name for name in sys.modules if name.startswith(('moothall.cli.', "
        "'moothall.config', 'pydantic', 'rich'))])"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert process.stdout.splitlines()[-1] == "[]"
