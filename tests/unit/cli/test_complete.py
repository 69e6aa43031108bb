from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from moothall.cli.complete import remember


def completed(data_dir: Path, *words: str) -> list[str]:
    """What a shell would be offered after these words, the last of which is not finished."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("MOOTHALL_")}
    env |= {
        "MOOTHALL_DATA_DIR": str(data_dir),
        "_MOOTHALL_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(("moothall", *words)),
        "COMP_CWORD": str(len(words)),
    }
    code = "from moothall.cli import main; main(prog_name='moothall')"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    (tmp_path / "repositories").mkdir()
    for name in ("app-1", "lib-2", ".half-made"):
        (tmp_path / "repositories" / f"{name}.json").touch()
    remember(tmp_path, "task-old")
    remember(tmp_path, "task-new", "other")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("de",), ["deliberate", "demo"]),
        (("repo", "remove", ""), ["app-1", "lib-2"]),
        (("deliberate", "--repo", "l"), ["lib-2"]),
        (("deliberate", "--protocol", "t"), ["tests_then_verify"]),
        (("ask", "--role", "d"), ["dev", "devops", "data"]),
        (("show", "task"), ["task-new", "task-old"]),
        (("completion", "z"), ["zsh"]),
        (("list", "--st"), ["--state"]),
    ],
)
def test_names_and_values_are_completed(data_dir: Path, words: tuple[str, ...], wanted: list[str]) -> None:
    assert completed(data_dir, *words) == wanted


def test_nothing_known_is_nothing_offered(tmp_path: Path) -> None:
    assert completed(tmp_path / "absent", "show", "") == []
    remember(tmp_path / "absent", "task")  # cannot be written: left


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(shell: str) -> None:
    done = subprocess.run([sys.executable, "-m", "moothall", "completion", shell], capture_output=True, text=True, check=True)
    assert f"_MOOTHALL_COMPLETE={shell}_complete" in done.stdout
