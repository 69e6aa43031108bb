"""A missing sandbox layer is named and stops the start. Once accepted, it is shown wherever an
operator looks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from moothall.config.workspace import SandboxLayer
from moothall.errors import ConfigurationError
from moothall.sandbox.probe import LAYERS
from moothall.settings import load_settings

pytestmark = pytest.mark.e2e
HERE = Path(__file__).parent
START = """
import asyncio, sys
from moothall.settings import load_settings
from moothall.telemetry import metrics
from moothall.sandbox.probe import check_layers
from moothall.errors import MoothallError
settings = load_settings(data_dir=sys.argv[1])
try:
    layers = asyncio.run(check_layers(settings.sandbox, print))
except MoothallError as error:
    sys.exit(f"REFUSED {error.code} {error.message}")
for (name,), value in metrics.SANDBOX_LAYER.values.items():
    print("GAUGE", name, value)
"""
WORK = """
import asyncio, sys
from pathlib import Path
from support.local import local

async def main():
    async with local(Path(sys.argv[1]), {"a.txt": "a"}, allow_degraded=tuple(sys.argv[2:])) as app:
        prepared = await app.prepared()
        async with app.workspaces.open(prepared, "degraded") as workspace:
            ran = await app.call(workspace, "code.python", code="print(6 * 7)")
            print(ran.status, ran.output["output"])

asyncio.run(main())
"""


def environment(**variables: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": ":".join(sys.path), **variables}


def run_without(features: tuple[str, ...], *program: str, **variables: str) -> tuple[int, str]:
    command = [sys.executable, str(HERE / "without.py"), *features, "--", sys.executable, *program]
    completed = subprocess.run(
        command,
        env=environment(**variables),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return completed.returncode, completed.stdout + completed.stderr


def doctor(
    features: tuple[str, ...], tmp_path: Path, **variables: str
) -> dict[str, dict[str, Any]]:
    code, output = run_without(
        features,
        "-c",
        "from moothall.app.workspaces import _check_sandbox_layers as check\n"
        "import asyncio, json, sys\n"
        "from dataclasses import asdict\n"
        "from moothall.settings import load_settings\n"
        "async def main(): print(json.dumps([asdict(f) async for f in "
        "check(load_settings(data_dir=sys.argv[1]).sandbox)]))\nasyncio.run(main())",
        str(tmp_path),
        **variables,
    )
    assert code == 0, output
    return {finding["part"].removeprefix("sandbox "): finding for finding in json.loads(output)}


@pytest.mark.parametrize("layer", ["landlock", "seccomp"])
def test_a_missing_isolation_layer_is_named_and_stops_the_start(tmp_path: Path, layer: str) -> None:
    code, output = run_without((layer,), "-c", START, str(tmp_path))
    assert (
        code,
        f"REFUSED SANDBOX_UNAVAILABLE sandbox layer '{layer}' is missing: " in output,
    ) == (
        1,
        True,
    ), output
    assert f"sandbox.allow_degraded = ['{layer}']" in output
    findings = doctor((layer,), tmp_path)
    assert (findings[layer]["ok"], bool(findings[layer]["mend"])) == (False, True)
    # The executor is spared by such a filter.
    expected_failures = {layer, "executor"} if layer == "seccomp" else {layer}
    assert {name for name, part in findings.items() if not part["ok"]} == expected_failures


@pytest.mark.parametrize(
    ("layer", "named"), [("landlock", ("landlock",)), ("seccomp", ("seccomp", "executor"))]
)
def test_an_accepted_missing_layer_is_shown_and_the_rest_works(
    tmp_path: Path, layer: str, named: tuple[str, ...]
) -> None:
    allowed = json.dumps(named)
    code, output = run_without(
        (layer,), "-c", START, str(tmp_path), MOOTHALL_SANDBOX__ALLOW_DEGRADED=allowed
    )
    assert code == 0, output
    present = len(LAYERS) - len(named)
    missing = ", ".join(named)
    assert f"{present} of {len(LAYERS)} layers are present; missing: {missing}" in output
    assert "the sandbox is degraded, as allowed" in output
    assert [line for line in output.splitlines() if line.endswith(" 0.0")] == [
        f"GAUGE {name} 0.0" for name in named
    ]
    assert output.count(" 1.0\n") == len(LAYERS) - len(named)
    findings = doctor((layer,), tmp_path, MOOTHALL_SANDBOX__ALLOW_DEGRADED=allowed)
    assert "missing, accepted by sandbox.allow_degraded" in findings[layer]["detail"]
    code, output = run_without((layer,), "-c", WORK, str(tmp_path / "work"), *named)
    assert (code, "success 42" in output) == (0, True), output


def test_accepting_one_missing_layer_does_not_excuse_another(tmp_path: Path) -> None:
    code, output = run_without(
        ("landlock",),
        "-c",
        START,
        str(tmp_path),
        MOOTHALL_SANDBOX__ALLOW_DEGRADED='["seccomp", "network"]',
    )
    assert (code, "REFUSED SANDBOX_UNAVAILABLE sandbox layer 'landlock'" in output) == (1, True), (
        output
    )


def test_without_user_namespaces_the_sandbox_is_unavailable(tmp_path: Path) -> None:
    all_layers = json.dumps(get_args(SandboxLayer))
    code, output = run_without(
        ("user-namespaces",),
        "-c",
        START,
        str(tmp_path),
        MOOTHALL_SANDBOX__ALLOW_DEGRADED=all_layers,
    )
    assert (
        code,
        "sandbox layer 'bubblewrap' is missing: " in output,
        "user.max_user_namespaces" in output,
    ) == (1, True, True), output


def test_without_bubblewrap_the_start_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-c", START, str(tmp_path)]
    completed = subprocess.run(
        command,
        env=environment(PATH=str(tmp_path)),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert completed.returncode == 1
    assert (
        "REFUSED SANDBOX_UNAVAILABLE sandbox layer 'bubblewrap' is missing: bubblewrap: not found "
        "on PATH" in completed.stderr
    )
    assert "apt-get install bubblewrap" in completed.stderr


@pytest.mark.parametrize("name", ["bubblewrap", "overlay", "landlocks", "*", "all"])
def test_only_existing_sandbox_layers_can_be_accepted_as_missing(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"sandbox\.allow_degraded.*'landlock'"):
        load_settings(data_dir=tmp_path, sandbox={"allow_degraded": [name]})


def test_every_probed_isolation_layer_has_a_name() -> None:
    assert {name for name, _ in LAYERS} == {*get_args(SandboxLayer), "bubblewrap", "overlay"}
