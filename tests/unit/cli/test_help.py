from __future__ import annotations

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from moothall.cli import main


@pytest.mark.parametrize("name", main.list_commands(click.Context(main)))
def test_the_overview_says_what_each_command_says(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    overview = CliRunner().invoke(main, ["--help"]).output
    assert f"{name} {command.get_short_help_str(limit=75)}" in " ".join(overview.split())


def test_the_overview_imports_no_command() -> None:
    code = (
        "import sys\nfrom moothall.cli import main\n"
        "main(['--help'], standalone_mode=False)\n"
        "print([name for name in sys.modules if name.startswith(('moothall.cli.', 'moothall.config', 'pydantic', 'rich'))])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "[]"
