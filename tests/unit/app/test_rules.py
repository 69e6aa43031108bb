from __future__ import annotations

import asyncio
import hashlib
import pickle
import shutil
from pathlib import Path

import pytest
from pydantic import SecretStr

from moothall.app.gateway_rules import longest_token, open_rules
from moothall.app.repositories import disk_of, for_hosts, home_of, shares_data_dir
from moothall.authorization.approvals import Approvals, Subject
from moothall.authorization.audit import AuditLog
from moothall.authorization.gateway import ToolGateway
from moothall.authorization.keys import keys_of
from moothall.authorization.rules import REVOKED, Revocations
from moothall.config import (
    BusSettings,
    ForgeSettings,
    GuardSettings,
    LimitSettings,
    OidcSettings,
    RaySettings,
    Settings,
    WebhookSettings,
)
from moothall.domain.tool import Grant, ToolStatus
from moothall.errors import ConfigurationError, Refused
from moothall.settings import load_settings
from moothall.testing.bus import MemoryBus
from support.tool_gateway import App, Facts, tool_call


def settings(folder: Path, **guard: object) -> Settings:
    return load_settings(data_dir=folder / "data", guard=GuardSettings.model_validate(guard))


async def test_a_gateway_from_settings_allows_granted_calls_and_follows_revocations(
    tmp_path: Path,
) -> None:
    bus = MemoryBus()
    async with AuditLog(tmp_path, "host-1") as audit, open_rules(settings(tmp_path), bus) as rules:
        app = App(tmp_path, audit)
        app.tool_gateway = ToolGateway(audit, Facts().publish, rules)
        seat = app.seat()
        assert (await app.tool_gateway.call(seat, tool_call(path="a"))).status is ToolStatus.SUCCESS
        all_tools = app.seat(grant=Grant(tools=("*",)))
        pushed = await app.tool_gateway.call(
            all_tools, tool_call("git.push", number=2, branch="main")
        )
        assert (pushed.status, "acts beyond the workspace" in pushed.error) == (
            ToolStatus.PARKED,
            True,
        )
        await Revocations(bus.bucket(REVOKED)).revoke("ws-1", actor="ann")
        async with asyncio.timeout(20):
            number = 3
            while (
                await app.tool_gateway.call(seat, tool_call(path="a", number=number))
            ).status is not ToolStatus.BLOCKED:
                number += 1
                await asyncio.sleep(0.01)


async def test_a_second_process_of_the_data_directory_accepts_tokens_of_the_first(
    tmp_path: Path,
) -> None:
    async with (
        open_rules(settings(tmp_path), MemoryBus()) as first_rules,
        open_rules(settings(tmp_path), MemoryBus()) as second_rules,
    ):
        token = first_rules.tokens.mint(
            principal="ann", tenant="local", workspace="ws", role="dev", grant=Grant(()), seconds=60
        )
        assert second_rules.tokens.check(token, "ws").principal == "ann"
    assert (tmp_path / "data/guard.key").stat().st_mode & 0o077 == 0


async def test_remote_hosts_check_approvals_of_the_server_and_cannot_sign_them(
    tmp_path: Path,
) -> None:
    keys = keys_of(settings(tmp_path).guard, tmp_path)
    server_keys, host_keys = keys, pickle.loads(pickle.dumps(keys.of_hosts()))  # noqa: S301 - like Ray
    assert host_keys.guard not in {server_keys.guard, hashlib.sha256(server_keys.guard).digest()}
    assert server_keys.guard.hex() not in repr(host_keys) + repr(server_keys)
    subject = Subject("local", "ws-1", "request-1", "files.delete", "0" * 64)
    app, host = (
        Approvals(process_keys.guard, 60, public=process_keys.approvals)
        for process_keys in (server_keys, host_keys)
    )
    assert host.check(app.sign(subject, "ann"), subject).approver == "ann"
    with pytest.raises(Refused, match="signed by the server"):
        host.sign(subject, "eve")
    for forger in (Approvals(host_keys.guard, 60), Approvals(host_keys.approvals, 60)):
        with pytest.raises(Refused):
            host.check(forger.sign(subject, "eve"), subject)
        with pytest.raises(Refused):
            app.check(forger.sign(subject, "eve"), subject)
    bus = MemoryBus()
    async with (
        open_rules(settings(tmp_path / "host"), bus, keys=host_keys) as host_rules,
        open_rules(settings(tmp_path), bus) as server_rules,
    ):
        token = host_rules.tokens.mint(
            principal="ann",
            tenant="local",
            workspace="ws",
            role="dev",
            grant=Grant(("*",)),
            seconds=60,
        )
        assert host_rules.tokens.check(token, "ws").principal == "ann"
        with pytest.raises(Refused):  # a host's signature is valid only for its own seats
            server_rules.tokens.check(token, "ws")
    assert not (tmp_path / "host/data/guard.key").exists()


def test_a_shared_disk_is_recognised_and_a_copy_is_not(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    (tmp_path / "elsewhere").symlink_to(tmp_path)
    original, same_disk, copied = (settings(tmp_path / name) for name in ("", "elsewhere", "other"))
    assert disk_of(original.data_dir) == disk_of(same_disk.data_dir) != disk_of(copied.data_dir)
    assert home_of(original) is None  # all hosts are processes of this machine
    remote = load_settings(
        data_dir=tmp_path / "data",
        ray=RaySettings(address="head:6379"),
        guard=GuardSettings.model_validate({"key": "k" * 32}),
    )
    home = home_of(remote)
    assert home is not None
    assert shares_data_dir(original.data_dir, home)
    assert shares_data_dir(same_disk.data_dir, home)
    assert not shares_data_dir(copied.data_dir, home)
    shutil.copytree(tmp_path / "data", tmp_path / "copy/data")
    assert home_of(remote) is not None  # the server restarts
    assert not shares_data_dir(settings(tmp_path / "copy").data_dir, home_of(remote) or home)
    assert (for_hosts(remote).guard.key, for_hosts(original)) == (None, original)
    secret = SecretStr("a secret of these tests")
    forge, webhook = (
        ForgeSettings(token=secret),
        WebhookSettings(url="https://hooks.example", secret=secret),
    )
    host_options = for_hosts(
        remote.model_copy(
            update={"forge": forge, "webhook": webhook, "oidc": OidcSettings(client_secret=secret)}
        )
    )
    scoped = remote.model_copy(
        update={
            "ray": RaySettings(address="head:6379", credentials=SecretStr("a host")),
            "bus": BusSettings(credentials=secret),
        }
    )
    assert for_hosts(scoped).bus.credentials == SecretStr("a host")
    assert secret.get_secret_value().encode() not in pickle.dumps(for_hosts(scoped)), (
        "nor the server's bus credentials"
    )
    assert secret.get_secret_value().encode() not in pickle.dumps(host_options), (
        "keys of API servers and commands are not sent"
    )


async def test_custom_role_tables_and_policies_are_used(tmp_path: Path) -> None:
    policy_folder = tmp_path / "own"
    policy_folder.mkdir()
    (policy_folder / "roles.yaml").write_text(
        "roles: {dev: {tools: {files.read: [read]}}}", encoding="utf-8"
    )
    async with open_rules(settings(tmp_path, policies=policy_folder), MemoryBus()) as rules:
        assert rules.grants.of("dev").tools == ("files.read",)
    (policy_folder / "roles.yaml").write_text(
        "roles: {dev: {tools: {files.reed: [read]}}}", encoding="utf-8"
    )
    with pytest.raises(ConfigurationError, match=r"there is no such tool"):
        async with open_rules(settings(tmp_path, policies=policy_folder), MemoryBus()):
            pass
    with pytest.raises(ConfigurationError, match="is not a folder"):
        async with open_rules(settings(tmp_path, policies=policy_folder / "none"), MemoryBus()):
            pass
    with pytest.raises(ConfigurationError, match="at least 32 are needed"):
        async with open_rules(settings(tmp_path, key="short"), MemoryBus()):
            pass


def test_a_seat_token_is_valid_for_the_longest_deliberation(tmp_path: Path) -> None:
    assert longest_token(settings(tmp_path).limits) == 3600
    assert longest_token(LimitSettings(deliberation_seconds=4000)) > 4000
