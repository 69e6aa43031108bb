from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

_COSTLY = {"aiohttp", "git", "grpc", "kglite", "neo4j", "ray", "rich", "starlette", "uvicorn"}


@pytest.mark.e2e  # the whole command, each in a process
@pytest.mark.parametrize(
    "modules",
    [
        "moothall.cli.config",
        "moothall.cli.data_dir, moothall.app.bus, moothall.events.nats.server",
        "moothall.cli.graph, moothall.app.graph",
        "moothall.cli.repo, moothall.repositories.registry",
        "moothall.cli.serve, moothall.app.server",  # before it starts its host
        "moothall.workers.subprocesses, moothall.app.host",
    ],
)
def test_commands_without_ray_import_no_costly_modules(modules: str) -> None:
    code = f"import sys, {modules}; print(*sys.modules)"
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    loaded = set(process.stdout.split())
    assert modules.rpartition(" ")[2] in loaded
    assert not loaded & _COSTLY


@pytest.mark.e2e  # a process of its own
def test_the_log_is_opened_without_tasks_and_outcomes() -> None:
    process = subprocess.run(
        [sys.executable, "-c", "import sys, moothall.app.bus; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    loaded = set(process.stdout.split())
    unneeded = {"domain.outcome", "domain.proposal", "domain.task", "orchestrator", "tools"}
    assert not loaded & {f"moothall.{name}" for name in unneeded}


@pytest.mark.e2e  # a process of its own
def test_a_list_from_the_serving_process_imports_no_bus_and_no_councils() -> None:
    code = "import sys, moothall.cli.tasks, moothall.settings, moothall.app.task_list\n"
    process = subprocess.run(
        [sys.executable, "-c", f"{code}print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    loaded = set(process.stdout.split())
    assert not loaded & (_COSTLY | {"configparser", "difflib", "nats", "orjson", "tomllib"})
    packages = {name.split(".")[1] for name in loaded if name.startswith("moothall.")}
    assert packages == {
        "app", "cli", "concurrency", "config", "domain", "errors", "processes", "settings",
        "telemetry", "toolkits",
    }  # fmt: skip
    domain = {name.split(".")[2] for name in loaded if name.startswith("moothall.domain.")}
    assert domain == {"codec", "event", "ids", "status", "text"}


@pytest.mark.e2e  # the whole command, each in a process
@pytest.mark.parametrize("command", ["deliberate", "ask"])
def test_an_unreachable_model_server_is_reported_before_costly_imports(
    command: str, tmp_path: Path
) -> None:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("MOOTHALL_")
    } | {
        "MOOTHALL_DATA_DIR": str(tmp_path),
        "MOOTHALL_LLM__BASE_URL": "http://127.0.0.1:9/v1",
        "XDG_CONFIG_HOME": str(tmp_path),
        "PYTHONPROFILEIMPORTTIME": "1",
    }
    args = [sys.executable, "-m", "moothall", command, "Fix it"]
    process = subprocess.run(
        args,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert process.returncode == 2
    assert "connection refused at 127.0.0.1:9" in process.stderr
    loaded = set(re.findall(r"^import time:.*\| +(\S+)$", process.stderr, re.MULTILINE))
    assert "moothall.llm.startup_check" in loaded
    assert not loaded & ((_COSTLY - {"aiohttp"}) | {"nats", "tree_sitter", "opentelemetry"})
    packages = {
        f"moothall.{package}"
        for package in (
            "events",
            "workspace",
            "sandbox",
            "collector",
            "graph",
            "workers",
            "api",
            "ranking",
        )
    }
    assert not loaded & (packages | {"moothall.app.server", "moothall.cli.council"})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.e2e
def test_a_command_with_its_own_hosts_does_not_import_ray() -> None:
    modules = (
        "moothall.cli.deliberate, moothall.app.server, moothall.app.host, "
        "moothall.workers.subprocesses"
    )
    code = f"import sys, {modules}; print(*sys.modules)"
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert not {"ray", "starlette", "uvicorn"} & set(process.stdout.split())


@pytest.mark.e2e
def test_a_server_starts_without_clients_that_its_settings_do_not_need() -> None:
    process = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, moothall.app.api, moothall.app.host; print(*sys.modules)",
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    loaded = set(process.stdout.split())
    unneeded = {"aiohttp", "cryptography.x509", "git", "kubernetes", "neo4j", "ray", "rich"}
    assert not loaded & (unneeded | {"moothall.workspace.kubernetes"})
