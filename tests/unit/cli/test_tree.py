"""All commands of the CLI: their required arguments, and the range of each number."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from moothall.cli import main
from support.commands import leaves

STARTERS = {"demo", "doctor", "open", "serve"}
"""Commands that start a server or check the whole machine: other tests run them."""


COMMANDS = {" ".join(path): command for path, command in leaves(main)}
REQUIRING = [
    name
    for name, command in COMMANDS.items()
    if any(parameter.required for parameter in command.params)
]
NUMBERS = [
    (name, parameter.opts[0], parameter)
    for name, command in COMMANDS.items()
    for parameter in command.params
    if isinstance(parameter.type, click.types.IntParamType | click.types.FloatParamType)
]


@pytest.mark.parametrize("name", REQUIRING)
def test_a_command_without_its_arguments_is_a_usage_error(name: str, tmp_path: Path) -> None:
    called = CliRunner(env={"MOOTHALL_DATA_DIR": str(tmp_path)}).invoke(main, name.split())
    assert called.exit_code == 2
    assert "Error: Missing " in called.output
    assert list(tmp_path.iterdir()) == []


def test_commands_that_change_or_remove_something_require_a_name() -> None:
    changing = {
        "cancel",
        "fork",
        "rm",
        "steer",
        "agents stop",
        "agents pause",
        "agents resume",
        "account remove",
        "token revoke",
        "repo remove",
    }
    assert changing | {
        "story approve",
        "story reject",
        "tools disable",
        "tools revoke",
        "log prune",
    } <= set(REQUIRING)


@pytest.mark.e2e
@pytest.mark.parametrize("name", sorted(set(COMMANDS) - set(REQUIRING) - STARTERS))
def test_a_command_without_required_arguments_ends_without_a_traceback(
    name: str, tmp_path: Path
) -> None:
    called = subprocess.run(
        [sys.executable, "-m", "moothall", *name.split()],
        cwd=tmp_path,
        env=os.environ | {"MOOTHALL_DATA_DIR": str(tmp_path / "data")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert called.returncode in {0, 1, 2}, called.stderr
    assert "Traceback" not in called.stderr


@pytest.mark.parametrize("command", ["cancel", "rm", "steer", "fork --turn 1"])
def test_an_empty_task_is_refused(command: str, tmp_path: Path) -> None:
    """A script's unset variable must not mean the latest task."""
    arguments = ["Use a set."] if command == "steer" else []
    called = CliRunner(env={"MOOTHALL_DATA_DIR": str(tmp_path)}).invoke(
        main, [*command.split(), "", *arguments]
    )
    assert called.exit_code == 2
    assert "'' is not an id" in called.output


@pytest.mark.parametrize(("name", "option", "parameter"), NUMBERS)
def test_a_number_below_its_range_and_nan_are_refused(
    name: str, option: str, parameter: click.Parameter, tmp_path: Path
) -> None:
    kind = parameter.type
    assert isinstance(kind, click.IntRange | click.FloatRange)
    assert kind.min is not None
    required = [
        text
        for param in COMMANDS[name].params
        if param.required
        for text in _sample_arguments(param, option)
    ]
    for value in (str(kind.min - 1), "nan", "inf", "9" * 30):
        if value.isdecimal() and isinstance(kind, click.FloatRange):
            continue
        called = CliRunner(env={"MOOTHALL_DATA_DIR": str(tmp_path)}).invoke(
            main, [*name.split(), *required, option, value]
        )
        assert called.exit_code == 2, value
        assert f"Invalid value for '{option}'" in called.output


def _sample_arguments(parameter: click.Parameter, but: str) -> list[str]:
    """Return a value for a required parameter."""
    if isinstance(parameter, click.Argument):
        return ["x"]
    return [] if parameter.opts[0] == but else [parameter.opts[0], "1"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["deliberate", "--agents", "0", "x"], "0 is not in the range"),
        (
            ["deliberate", "--agents", "17", "x"],
            "17 is not in the range 1 to 16. The upper bound is the setting limits.agents.",
        ),
        (["deliberate", "--rounds", "9", "x"], "0<=x<=8"),
        (["deliberate", "--turns", "101", "x"], "limits.turns"),
        (["deliberate", "--timeout", "1801", "x"], "limits.deliberation_seconds"),
        (["ask", "--timeout", "0", "x"], "0 is not in the range"),
        (["ask", "--turns", "101", "x"], "limits.turns"),
        (["demo", "--agents", "17"], "limits.agents"),
        (["tools", "run", "--repo", ".", "--ttl", "3601", "x"], "1<=x<=3600"),
    ],
)
def test_a_number_above_its_setting_is_refused_before_anything_starts(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    (tmp_path / "x").write_text("{}")
    called = CliRunner(env={"MOOTHALL_DATA_DIR": str(tmp_path / "data")}).invoke(main, arguments)
    assert called.exit_code == 2
    assert message in " ".join(called.output.split())
    assert not (tmp_path / "data").exists()


def test_story_add_is_an_alias_of_story_new() -> None:
    assert COMMANDS["story add"].callback is COMMANDS["story new"].callback
