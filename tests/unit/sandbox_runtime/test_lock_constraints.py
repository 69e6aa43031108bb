from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from moothall.sandbox_runtime.plugins import FOLDER

UV = """version = 1
requires-python = ">=3.10"

[[package]]
name = "Ruamel.Yaml"
version = "0.18.1"
source = { registry = "https://index.example/simple" }
dependencies = [
    { name = "clib", version = "9.9" },
]

[[package]]
name = "numpy"
version = "1.26.4"
source = { registry = "https://index.example/simple" }

[[package]]
name = "numpy"
version = "2.1.0"
source = { registry = "https://index.example/simple" }

[[package]]
name = "mine"
version = "0.1.0"
source = { editable = "." }

[[package]]
name = "theirs"
version = "3.0"
source = { git = "https://forge.example/theirs?rev=1#2" }
"""
POETRY = """[[package]]
name = "attrs"
version = "21.4.0"
description = "Classes"
files = [
    {file = "attrs-21.4.0.tar.gz", hash = "sha256:0"},
]

[package.dependencies]
version = "1.0"

[[package]]
name = "forked"
version = "1.0"

[package.source]
type = "git"
url = "https://forge.example/forked"

[[package]]
name = "mirrored"
version = "2.0"

[package.source]
type = "legacy"
url = "https://index.example/simple"

[metadata]
lock-version = "2.0"
"""
PDM = """[[package]]
name = "here"
version = "1.0"
path = "./here"

[[package]]
name = "idna"
version = "3.7"
requires_python = ">=3.5"
"""
PIPENV = (
    '{"_meta": {}, "default": {"Six": {"version": "==1.16.0"}, "own": {"path": "."}}, "develop": '
    '{"b": {"git": "x", "version": "==1"}}}'
)


@pytest.mark.parametrize(
    ("lock", "constraints"),
    [
        (UV, "ruamel-yaml==0.18.1\n"),
        (POETRY, "attrs==21.4.0\nmirrored==2.0\n"),
        (PDM, "idna==3.7\n"),
        (PIPENV, "six==1.16.0\n"),
        ('[[packages]]\nname = "a"\nversion = "1"\n[packages.x]\nversion = "2"\n', "a==1\n"),
        (
            (
                '[[package]]\nname = "a -e ."\nversion = "1"\n[[package]]\nname = "b"\nversion = '
                '"1 '
                '--pre"\n'
            ),
            "",
        ),
        ("", ""),
    ],
)
def test_versions_in_a_lock_file_become_constraints_for_pip(
    tmp_path: Path, lock: str, constraints: str
) -> None:
    (tmp_path / "lock").write_text(lock)
    subprocess.run(
        [sys.executable, "-I", FOLDER / "moothall_lock_constraints.py", "lock", "out"],
        cwd=tmp_path,
        check=True,
    )
    assert (tmp_path / "out").read_text() == constraints
