"""compose.yaml follows the compose specification and matches the settings, the Dockerfiles and the
manifests.
"""

from __future__ import annotations

import re
import socket
import sysconfig
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import nats
import orjson
import pytest
import yaml
from dotenv import dotenv_values

from moothall.settings import load_settings
from support.servers import free_port, running, wait_for

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "compose.yaml").read_text(encoding="utf-8")
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(TEXT)["services"]
EXAMPLE = {name: value or "" for name, value in dotenv_values(ROOT / ".env.example").items()}
SECRETS = {"MOOTHALL_BUS__TOKEN": "b" * 64, "MOOTHALL_GRAPH__PASSWORD": "g" * 64}
VARIABLE = re.compile(r"\$\{(\w+)[^}]*\}")


def test_the_file_follows_the_specification() -> None:
    schema = files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json"
    jsonschema.validate(yaml.safe_load(TEXT), orjson.loads(schema.read_bytes()))


def test_every_secret_is_empty_in_the_example_and_required() -> None:
    assert {name for name, value in EXAMPLE.items() if not value} == set(SECRETS)
    assert set(VARIABLE.findall(TEXT)) == set(SECRETS)
    assert TEXT.count(":?set it in .env}") == len(VARIABLE.findall(TEXT))
    for name in (".gitignore", ".dockerignore"):
        assert ".env" in (ROOT / name).read_text(encoding="utf-8").splitlines()


def test_every_variable_is_a_setting_and_points_to_the_other_services(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = SERVICES["moothall"]
    assert server["env_file"] == [".env"]
    commented = re.findall(r"(?m)^# (MOOTHALL_\w+=.*)$", (ROOT / ".env.example").read_text())
    assert commented
    for line in commented:
        monkeypatch.setenv(*line.split("=", 1))
    for name, value in (EXAMPLE | SECRETS | server["environment"]).items():
        monkeypatch.setenv(name, value)
    settings = load_settings()
    for url, name in ((settings.bus.url, "nats"), (settings.graph.url, "neo4j")):
        assert url is not None
        port = url.rpartition(":")[2]
        assert SERVICES[name]["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert settings.workspace.kind == "local"
    assert f"for port in ({settings.grpc.port}, {settings.web.port})" in str(server["healthcheck"])
    assert {settings.grpc.host, settings.web.host} == {"127.0.0.1"}


def test_ports_are_on_loopback_and_services_have_health_checks_and_restarts() -> None:
    for name, service in SERVICES.items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name
        assert service["restart"] == "unless-stopped", name
        assert service["healthcheck"]["test"][0] == "CMD", name
        assert not service.get("privileged"), name
    assert SERVICES["moothall"]["network_mode"] == "host", "its APIs are on the host's loopback"
    assert {
        name: need["condition"] for name, need in SERVICES["moothall"]["depends_on"].items()
    } == {
        "nats": "service_healthy",
        "neo4j": "service_healthy",
    }


def test_stored_data_is_on_a_separate_volume_per_service() -> None:
    mounts = {name: service["volumes"][0].split(":") for name, service in SERVICES.items()}
    assert {volume for volume, _ in mounts.values()} == set(yaml.safe_load(TEXT)["volumes"])
    stage = (ROOT / "Dockerfile.workspace").read_text(encoding="utf-8")
    folder = re.search(r"MOOTHALL_DATA_DIR=(\S+)", stage)
    assert folder is not None
    assert Path(folder[1]).is_relative_to(mounts["moothall"][1])
    assert f"useradd --uid 1000 --home-dir {mounts['moothall'][1]} --create-home " in stage
    assert f'store_dir: "{mounts["nats"][1]}"' in TEXT


def test_images_are_built_from_our_stage_or_match_the_manifests() -> None:
    build = SERVICES["moothall"]["build"]
    dockerfile = (ROOT / build["context"] / build["dockerfile"]).read_text(encoding="utf-8")
    assert f"FROM toolchains AS {build['target']}\n" in dockerfile
    overlay = yaml.safe_load((ROOT / "deploy/k8s/overlays/prod/kustomization.yaml").read_text())
    images = {image["name"]: image for image in overlay["images"]}
    for name in ("nats", "neo4j"):
        pinned = f"{images[name]['newName']}:{images[name]['newTag']}"
        assert SERVICES[name]["image"].removesuffix("-alpine") == pinned


@pytest.mark.e2e
async def test_the_bus_accepts_its_file_and_admits_only_callers_with_the_token(
    tmp_path: Path,
) -> None:
    content = yaml.safe_load(TEXT)["configs"]["nats"]["content"]
    port = free_port()
    text = VARIABLE.sub(lambda match: SECRETS[match[1]], content)
    text = text.replace("port: 4222", f"port: {port}").replace(":8222", f":{free_port()}")
    file = tmp_path / "nats.conf"
    file.write_text(f"host: 127.0.0.1\n{text.replace('/bus', str(tmp_path))}", encoding="utf-8")
    log = tmp_path / "log"
    command = (str(Path(sysconfig.get_path("scripts")) / "nats-server"), "-c", str(file))
    with running(command, log) as process:
        wait_for(lambda: "Server is ready" in log.read_text(encoding="utf-8"), process, log)
        url = f"nats://127.0.0.1:{port}"
        client = await nats.connect(url, token=SECRETS["MOOTHALL_BUS__TOKEN"])
        assert (await client.jetstream().account_info()).memory == 0
        await client.close()
        # The client of a refused connection leaves its socket open, so this one is a plain one.
        with socket.create_connection(("127.0.0.1", port), 5) as plain:
            plain.sendall(b'CONNECT {"auth_token": "another", "verbose": false}\r\nPING\r\n')
            reply = b"".join(iter(lambda: plain.recv(4096), b""))
        assert b"Authorization Violation" in reply
