"""Accounts on a real NATS server: the keys of `moothall bus keys` and their permissions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nkeys
import pytest
from click.testing import CliRunner

from moothall.app.workspaces import open_workspace_services
from moothall.cli import main
from moothall.config import BusSettings, JobSettings
from moothall.domain.event import Channel, EventType, new_event
from moothall.errors import ConfigurationError
from moothall.events.nats import accounts
from moothall.events.nats.connection import connection
from moothall.events.nats.jetstream import open_bus
from moothall.events.nats.requests import open_core_messages
from moothall.settings import load_settings
from support.accounts import App, run_accounts_server, try_operation

pytestmark = pytest.mark.e2e


def make_keys(*arguments: str) -> None:
    result = CliRunner().invoke(main, ["bus", "keys", *arguments])
    assert result.exit_code == 0, result.output
    assert "accounts.conf" in result.output


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[App]:
    make_keys(str(tmp_path / "keys"))
    async with run_accounts_server(tmp_path, tmp_path / "keys") as app:
        yield app


async def test_services_may_use_the_whole_bus(app: App) -> None:
    async with open_bus(app.services, app.url) as bus:
        event = new_event(
            EventType.SEAT_TURN, "task-1", {"task_id": "task-1", "turn": 1}, ordinal=1
        )
        assert await bus.publish(event) == 1
        assert [
            recorded.event.data["turn"] async for recorded in bus.replay([Channel.RESULTS.all])
        ] == [1]


async def assert_refused(settings: BusSettings) -> None:
    with pytest.raises(ConfigurationError, match="refused the connection"):
        async with connection(settings, str(settings.url), on_lost=lambda: None):
            pytest.fail("the connection was accepted")


async def test_renewed_keys_open_the_same_log_and_old_keys_open_nothing(
    tmp_path: Path,
) -> None:
    old, new = tmp_path / "keys", tmp_path / "new-keys"
    make_keys(str(old))
    event = new_event(EventType.SEAT_TURN, "task-1", {"task_id": "task-1", "turn": 1}, ordinal=1)
    async with run_accounts_server(tmp_path, old) as old_bus:
        link = old_bus.link("job-1")
        async with open_bus(old_bus.services, old_bus.url) as bus:
            assert await bus.publish(event) == 1
            await bus.bucket("revoked").put("token", {"why": "told"})
    make_keys(str(new), "--renew", str(old / "accounts.conf"))
    async with run_accounts_server(tmp_path, new) as app:
        async with open_bus(app.services, app.url) as bus:
            assert [recorded.event.id async for recorded in bus.replay([Channel.RESULTS.all])] == [
                event.id
            ]
            assert await bus.bucket("revoked").get("token") == {"why": "told"}
        async with open_core_messages(app.link("job-1"), app.url):
            pass
        stale = App(app.url, old)
        for settings in (
            stale.services,
            stale.link("job-1"),
            link.model_copy(update={"url": app.url}),
        ):
            await assert_refused(settings)


async def test_users_signed_by_the_account_key_itself_are_revoked(tmp_path: Path) -> None:
    """Services were once signed this way: leaving a signing key out of the account does not revoke
    them.
    """
    old, new = tmp_path / "keys", tmp_path / "new-keys"
    make_keys(str(old))
    conf = old / "accounts.conf"
    _, account = accounts._accounts(conf)
    identity = accounts._key("account")
    conf.write_text(
        conf.read_text(encoding="utf-8").replace(account, accounts._public(identity)),
        encoding="utf-8",
    )
    old_credentials = accounts._credentials(
        identity, accounts._public(identity), "services", accounts._FREE
    )
    await asyncio.sleep(2.1)  # a revocation covers credentials issued in an earlier second
    make_keys(str(new), "--renew", str(conf))
    async with run_accounts_server(tmp_path, new) as app:
        async with open_bus(app.services, app.url):
            pass
        await assert_refused(
            BusSettings.model_validate({"url": app.url, "credentials": old_credentials})
        )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "No such file or directory; give the current accounts.conf"),
        ("port: 4222\n", "is not an accounts.conf written by"),
    ],
)
def test_only_an_accounts_conf_created_by_moothall_can_be_renewed(
    tmp_path: Path, text: str | None, reason: str
) -> None:
    conf = tmp_path / "accounts.conf"
    if text is not None:
        conf.write_text(text, encoding="utf-8")
    result = CliRunner().invoke(main, ["bus", "keys", str(tmp_path / "new"), "--renew", str(conf)])
    assert result.exit_code == 2
    assert reason in result.output
    assert not (tmp_path / "new").exists()


async def test_connections_without_credentials_are_refused(app: App) -> None:
    with pytest.raises(ConfigurationError, match=r"refused the connection .*bus\.credentials"):
        async with connection(BusSettings(), app.url, on_lost=lambda: None):
            pytest.fail("the connection was accepted")


async def test_a_link_receives_and_answers_requests_of_its_own_host(app: App) -> None:
    async with (
        open_core_messages(app.services, app.url) as host,
        open_core_messages(app.link("job-1"), app.url) as link,
    ):
        requests, answered = link.listen("job-1-in"), host.listen("job-1-out")
        first, second = (
            asyncio.ensure_future(anext(requests)),
            asyncio.ensure_future(anext(answered)),
        )
        await asyncio.sleep(0.2)  # until both subscriptions are active
        await host.send("job-1-in", b"ask")
        assert await first == b"ask"
        await link.send("job-1-out", b"answer")
        assert await second == b"answer"


@pytest.mark.parametrize(
    "subject",
    ["workspace.link.job-2-in", "workspace.link.>", "workspace.link.job-1-out", ">", "_INBOX.>"],
)
async def test_a_link_receives_nothing_else(app: App, subject: str) -> None:
    assert "permissions violation for subscription" in await try_operation(
        app.link("job-1"), subscribe=subject
    )


@pytest.mark.parametrize(
    "subject",
    ["workspace.link.job-2-out", "workspace.link.job-1-in", "agent.results.task-1", "$JS.API.INFO"],
)
async def test_a_link_may_publish_nothing_else(app: App, subject: str) -> None:
    assert "permissions violation for publish" in await try_operation(
        app.link("job-1"), publish=subject
    )


@pytest.mark.parametrize(
    ("changed", "claims"),
    [
        (
            "more than its scope",
            {
                "pub": {"allow": [">"]},
                "sub": {"allow": [">"]},
                "subs": -1,
                "data": -1,
                "payload": -1,
            },
        ),
        ("the account's own", {"subs": -1, "data": -1, "payload": -1}),
    ],
)
async def test_the_hosts_key_can_mint_links_only(
    app: App, changed: str, claims: dict[str, Any]
) -> None:
    keys = json.loads((app.keys / "links.json").read_text(encoding="utf-8"))
    signer = nkeys.from_seed(bytearray(keys["seed"].encode()))
    user = accounts._key("user")
    body = {"type": "user", "issuer_account": keys["account"], **claims}
    token = accounts._token(signer, accounts._public(user), "job-1", body)
    forged = BusSettings.model_validate(
        {
            "url": app.url,
            "credentials": accounts._CREDENTIALS.format(token=token, seed=user.seed.decode()),
        }
    )
    assert "violation" in await try_operation(forged, subscribe=">"), changed


async def test_credentials_expire(app: App) -> None:
    await assert_refused(app.link("job-1", seconds=-1))


def test_keys_are_private_and_never_overwritten(tmp_path: Path) -> None:
    files = accounts.create_account_files(tmp_path / "keys")
    assert {path.stat().st_mode & 0o777 for path in files.values()} == {0o600}
    content_before = {path: path.read_bytes() for path in files.values()}
    result = CliRunner().invoke(main, ["bus", "keys", str(tmp_path / "keys")])
    assert result.exit_code == 2
    assert "File exists; choose a folder without keys" in result.output
    assert {path: path.read_bytes() for path in files.values()} == content_before


async def test_invalid_keys_are_reported_at_the_start(tmp_path: Path) -> None:
    settings = load_settings(data_dir=tmp_path, bus=BusSettings(url="nats://127.0.0.1:1"))
    jobs = JobSettings.model_validate({"image": "x", "link_image": "x", "link_keys": "SUAOOPS"})
    settings = settings.model_copy(
        update={
            "jobs": jobs,
            "workspace": settings.workspace.model_copy(update={"kind": "kubernetes"}),
        }
    )
    with pytest.raises(
        ConfigurationError, match=r"jobs\.link_keys is not the content of a links\.json"
    ):
        async with open_workspace_services(settings):
            pytest.fail("the server started")
