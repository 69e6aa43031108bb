"""Only webhooks signed by the forge trigger a poll."""

from __future__ import annotations

import hmac
import socket
import time
from hashlib import sha256

import aiohttp
import pytest
from pydantic import SecretStr, ValidationError

from moothall.config import ForgeSettings
from moothall.errors import ConfigurationError
from moothall.forge.client import _retry_after, api_of, forge_client
from moothall.forge.watch import serve_webhooks

SECRET = "a secret of these tests"
BODY = b'{"action": "opened"}'
SIGNED = hmac.new(SECRET.encode(), BODY, sha256).hexdigest()


@pytest.mark.parametrize(
    ("headers", "status", "woken"),
    [
        ({"X-Hub-Signature-256": f"sha256={SIGNED}"}, 204, 1),
        ({"X-Gitea-Signature": SIGNED}, 204, 1),
        ({"X-Gitea-Signature": SIGNED.swapcase()}, 401, 0),
        ({"X-Hub-Signature-256": "sha256=" + "0" * 64}, 401, 0),
        ({"X-Hub-Signature-256": "sha256="}, 401, 0),
        ({"X-Hub-Signature": "sha1=" + "0" * 40}, 401, 0),
        ({}, 401, 0),
    ],
)
async def test_a_signature_is_verified_with_the_secret(
    headers: dict[str, str], status: int, woken: int
) -> None:
    settings = ForgeSettings(webhook_address="127.0.0.1:0", webhook_secret=SecretStr(SECRET))
    calls: list[int] = []
    async with (
        serve_webhooks(settings, lambda: calls.append(1)) as port,
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{port}/", data=BODY, headers=headers) as answer,
    ):
        assert (answer.status, len(calls)) == (status, woken)


@pytest.mark.parametrize(("token", "status"), [(SECRET, 204), ("another", 401), ("", 401)])
async def test_gitlab_sends_the_secret_as_a_token(token: str, status: int) -> None:
    settings = ForgeSettings(
        kind="gitlab",
        url="https://git.example",
        webhook_address="127.0.0.1:0",
        webhook_secret=SecretStr(SECRET),
    )
    async with (
        serve_webhooks(settings, lambda: None) as port,
        aiohttp.ClientSession() as session,
        session.post(
            f"http://127.0.0.1:{port}/",
            data=BODY,
            headers={"X-Gitlab-Token": token, "X-Gitea-Signature": "0" * 64},
        ) as answer,
    ):
        assert answer.status == status


async def test_nothing_is_received_without_a_port() -> None:
    async with serve_webhooks(ForgeSettings(), lambda: None) as port:
        assert port == 0


async def test_a_taken_port_is_reported() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        settings = ForgeSettings(
            webhook_address=f"127.0.0.1:{listener.getsockname()[1]}",
            webhook_secret=SecretStr(SECRET),
        )
        with pytest.raises(ConfigurationError, match=r"choose another forge\.webhook_address"):
            async with serve_webhooks(settings, lambda: None):
                pass


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"webhook_address": "127.0.0.1:8081"}, "webhook_secret is missing"),
        ({"repositories": ("acme",)}, "'acme' must have the form owner/name"),
        ({"repositories": ("acme/web/app",)}, "must have the form owner/name"),
        ({"kind": "gitlab", "repositories": ("acme/../app",)}, "must have the form owner/name"),
        ({"repositories": ("acme/..",)}, "must have the form owner/name"),
        ({"repositories": ("acme/app/../../x",)}, "must have the form owner/name"),
        ({"url": "https://user:secret@forge.example"}, "url"),
    ],
)
def test_invalid_settings_are_named(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ForgeSettings.model_validate(fields)


def test_the_api_address_follows_from_the_forge() -> None:
    assert api_of(ForgeSettings()) == "https://api.github.com"
    assert api_of(ForgeSettings(url="https://git.example/")) == "https://git.example/api/v3"
    assert (
        api_of(ForgeSettings(kind="gitea", url="https://git.example/sub"))
        == "https://git.example/sub/api/v1"
    )
    gitlab = ForgeSettings(kind="gitlab", url="https://git.example", repositories=("acme/web/app",))
    assert api_of(gitlab) == "https://git.example/api/v4"
    with pytest.raises(ConfigurationError, match="not an https://"):
        api_of(ForgeSettings(url="http://git.example"))


async def test_a_missing_token_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"forge\.token is missing"):
        async with forge_client(ForgeSettings()):
            pass


@pytest.mark.parametrize(
    ("remaining", "reset_in", "low", "high"),
    [("0", 900, 800, 900), ("0", -900, 1, 1), ("9", 900, 7, 7)],
    ids=["later", "now", "some left"],
)
def test_the_retry_time_of_a_forge_is_read(
    remaining: str, reset_in: int, low: int, high: int
) -> None:
    headers = {
        "X-RateLimit-Remaining": remaining,
        "X-RateLimit-Reset": str(int(time.time()) + reset_in),
        "Retry-After": "7",
    }
    assert low <= int(_retry_after(headers)) <= high
