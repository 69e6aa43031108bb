from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from moothall.cli import main
from moothall.cli.options import remember


def completions_of(data_dir: Path, *arguments: str) -> list[str]:
    """Return a shell's completions for these words, the last of which is unfinished."""
    result = CliRunner().invoke(
        main, env=completion_environment(data_dir, *arguments), prog_name="moothall"
    )
    assert (result.exit_code, result.stderr) == (0, "")
    return [line.partition(",")[2] for line in result.stdout.splitlines() if line]


def completion_environment(data_dir: Path, *arguments: str) -> dict[str, str]:
    return {
        "MOOTHALL_DATA_DIR": str(data_dir),
        "_MOOTHALL_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(("moothall", *arguments)),
        "COMP_CWORD": str(len(arguments)),
    }


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    (tmp_path / "repositories").mkdir()
    for name in ("app-1", "lib-2", ".half-made"):
        (tmp_path / "repositories" / f"{name}.json").touch()
    remember(tmp_path, "task-old")
    remember(tmp_path, "task-new", "other")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("de",), ["deliberate", "demo"]),
        (("repo", "remove", ""), ["app-1", "lib-2"]),
        (("deliberate", "--repo", "l"), ["lib-2"]),
        (("deliberate", "--protocol", "te"), ["tests_then_verify"]),
        (("ask", "--role", "d"), ["dev", "devops", "data"]),
        (("show", "task"), ["task-new", "task-old"]),
        (("completion", "z"), ["zsh"]),
        (("list", "--st"), ["--state"]),
    ],
)
def test_names_and_values_are_completed(
    data_dir: Path, arguments: tuple[str, ...], expected: list[str]
) -> None:
    assert completions_of(data_dir, *arguments) == expected


def test_no_completions_are_offered_without_data(tmp_path: Path) -> None:
    assert completions_of(tmp_path / "absent", "show", "") == []
    remember(tmp_path / "absent", "task")  # cannot be written, so it is skipped


def test_a_shell_gets_completions_from_a_process() -> None:
    command = [sys.executable, "-c", "from moothall.cli import main; main(prog_name='moothall')"]
    completed = subprocess.run(
        command,
        env=os.environ | completion_environment(Path("/nowhere"), "de"),
        capture_output=True,
        text=True,
        check=True,
    )
    assert (completed.stdout, completed.stderr) == ("plain,deliberate\nplain,demo\n", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(shell: str) -> None:
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0
    assert f"_MOOTHALL_COMPLETE={shell}_complete" in result.stdout
