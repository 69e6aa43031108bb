"""A requirements file that can be installed only in part, by a real pip without an index."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from moothall.sandbox_runtime.plugins import FOLDER
from moothall.sandbox_runtime.plugins.moothall_requirements import read_lines
from support.wheels import make_part


def install(folder: Path, mode: str, text: str) -> tuple[int, list[str], set[str]]:
    """Return the exit code, the omitted requirements and the installed packages."""
    wheels, target = folder / "wheels", folder / "target"
    wheels.mkdir()
    for number in (1, 2):
        make_part(wheels, number, b"x")
    (folder / "more.txt").write_text("some-part2==1.0\n", encoding="utf-8")
    (folder / "all.txt").write_text(text, encoding="utf-8")
    program = (sys.executable, "-I", str(FOLDER / "moothall_requirements.py"), mode, "all.txt")
    env = {
        **os.environ,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
        "PIP_TARGET": str(target),
        "PIP_CONFIG_FILE": os.devnull,
    }
    process = subprocess.run(
        program, cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    names = [
        line.split(" ")[2] for line in process.stdout.splitlines() if line.startswith("left out: ")
    ]
    return process.returncode, names, {path.name for path in target.glob("some_part?")}


@pytest.mark.e2e  # several runs of pip
def test_development_tools_and_ssh_sources_are_left_out_by_name(tmp_path: Path) -> None:
    text = (
        "some-part1==1.0  # why\n-r more.txt\ntwine==99\ngit+ssh://git@localhost:1/a/b.git#egg=b\n"
    )
    code, left, installed = install(tmp_path, "must", text)
    assert (code, installed) == (0, {"some_part1", "some_part2"})
    assert left == ["twine==99", "git+ssh://git@localhost:1/a/b.git#egg=b"]


@pytest.mark.e2e  # several runs of pip
def test_a_requirement_of_the_project_is_not_left_out(tmp_path: Path) -> None:
    code, left, _ = install(tmp_path, "must", "some-part1==1.0\nno-such-package==1\n")
    assert (code, left) == (1, [])


@pytest.mark.e2e  # several runs of pip
def test_every_installable_requirement_of_an_optional_file_is_installed(tmp_path: Path) -> None:
    code, left, installed = install(tmp_path, "may", "some-part1==1.0\nno-such-package==1\n")
    assert (code, left, installed) == (0, ["no-such-package==1"], {"some_part1"})


def test_a_file_is_read_with_its_included_files(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.txt").write_text(
        "--index-url x\n-r ../b.txt\nsix \\\n  ; os_name == 'posix'\n-e .\n", encoding="utf-8"
    )
    (tmp_path / "b.txt").write_text(
        "-c held.txt\n-r sub/a.txt\n# nothing\nattrs==1 # why\n", encoding="utf-8"
    )
    lines = list(dict.fromkeys(read_lines(str(tmp_path / "sub" / "a.txt"))))
    assert [line for line, is_option in lines if is_option] == [
        "--index-url x",
        f"-c {tmp_path}/held.txt",
    ]
    assert {line for line, is_option in lines if not is_option} == {
        "six    ; os_name == 'posix'",
        "-e .",
        "attrs==1",
    }
