"""The images match the code's expectations."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

from moothall.sandbox.bubblewrap import ENVIRONMENT, UID, WORKSPACE
from moothall.sandbox_runtime import code_runner, syntax
from moothall.sandbox_runtime.confinement import BOOT
from moothall.workspace.bundle import INSIDE

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Dockerfile.workspace").read_text(encoding="utf-8")


def test_what_lies_in_the_image_of_workspaces_is_where_it_is_looked_for() -> None:
    assert f"COPY src/moothall/sandbox_runtime {INSIDE}/moothall/sandbox_runtime\n" in TEXT
    assert f"COPY src/moothall/sandbox_runtime/plugins {INSIDE}/plugins\n" in TEXT
    assert f"--target {syntax.GRAMMARS} " in TEXT
    assert f"ln -s {syntax.GRAMMARS} {code_runner.MONTY} " in TEXT
    assert f"mkdir -p {WORKSPACE} {ENVIRONMENT} /link" in TEXT


def test_of_ours_it_holds_what_runs_inside_alone_and_nobody_is_root() -> None:
    copied = set(re.findall(r"^COPY (\S+)", TEXT, re.MULTILINE))
    assert copied == {
        "requirements/workspace.txt",
        "src/moothall/__init__.py",
        "src/moothall/sandbox_runtime",
        "src/moothall/sandbox_runtime/plugins",
    }
    for name in ("Dockerfile", "Dockerfile.workspace"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert f"\nUSER {UID}:{UID}\n" in text
        assert "\nFROM ${BASE}\n" in text


def test_its_packages_are_those_that_the_host_shows_a_sandbox_of_its_own() -> None:
    required = {name.replace("_", "-") for name in syntax.PACKAGES} | {"pydantic-monty"}
    locked = dict(
        re.findall(
            r"^([a-z0-9-]+)==(\S+)",
            (ROOT / "requirements/workspace.txt").read_text(encoding="utf-8"),
            re.MULTILINE,
        )
    )
    run = dict(
        re.findall(
            r"^([a-z0-9-]+)==(\S+)",
            (ROOT / "requirements/run.txt").read_text(encoding="utf-8"),
            re.MULTILINE,
        )
    )
    assert required <= set(locked)
    assert {name: run[name] for name in locked} == locked
    assert (
        tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
            "requires-python"
        ]
        == ">=3.11"
    )


def test_moothall_executor_is_a_command_of_the_image_of_workspaces(tmp_path: Path) -> None:
    script_text = (
        TEXT.partition("&& printf")[2].partition("> /usr/local/bin/moothall")[0].replace("\\\n", "")
    )
    script = tmp_path / "moothall"
    script.write_bytes(
        subprocess.run(
            ["sh", "-c", f"printf {script_text}"], check=True, capture_output=True
        ).stdout
    )
    completed = subprocess.run(
        ["sh", str(script), "serve"], check=False, capture_output=True, text=True
    )
    assert (completed.returncode, "moothall executor SOCKET OPTIONS" in completed.stderr) == (
        2,
        True,
    )
    boot = BOOT.format(module="moothall.sandbox_runtime.container_init").replace("'", r"\"")
    assert f'exec python3 -I -S -c "{boot}" "$@"' in script.read_text(encoding="utf-8")
