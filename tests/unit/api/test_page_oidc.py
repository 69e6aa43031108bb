"""Signing in at an OpenID provider: a real server, a real provider on loopback, and forged
tokens.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import aiohttp
import pytest
from pydantic import ValidationError

from moothall import config
from moothall.api.http.server import http_server
from moothall.api.identity import BearerTokens
from moothall.api.web.sign_in import Provider as Client
from moothall.domain.ids import Principal
from moothall.errors import ConfigurationError
from moothall.stories.board import Board
from moothall.testing.bus import MemoryBus
from support.browsing import HOSTILE, SHOWN, Browser, Got, form_of
from support.callers import TOKENS, api_dependencies, with_parts
from support.deliberation_service import MemoryDeliberations
from support.provider import (
    CLIENT,
    SECRET,
    Forge,
    Provider,
    by_a_key_of_its_own,
    by_nobody,
    by_somebody,
    by_the_public_key,
    honest,
    provider,
    with_claims,
    with_foreign_payload,
)

ROLES = {"product": ("po", "architect"), "operations": ("operator",), "guests": ("reader",)}
Serve = Callable[..., Any]


def settings(issuer: str, **overrides: Any) -> config.OidcSettings:
    return config.OidcSettings(
        **(
            {"issuer": issuer, "client_id": CLIENT, "client_secret": SECRET, "roles": ROLES}
            | overrides
        )
    )


@asynccontextmanager
async def at_server(
    oidc_settings: config.OidcSettings, sign_in_seconds: float = 600, **web: Any
) -> AsyncIterator[Browser]:
    dependencies = with_parts(
        api_dependencies(MemoryDeliberations()), board=Board(MemoryBus()), stopping=asyncio.Event()
    )
    opened = config.WebSettings(**({"port": 0} | web))
    async with (
        http_server(
            opened,
            dependencies,
            BearerTokens(TOKENS),
            configured=True,
            provider=Client(oidc_settings, sign_in_seconds=sign_in_seconds),
        ) as served,
        aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as http,
    ):
        yield Browser(http, f"http://127.0.0.1:{served.port}", dependencies)


@pytest.fixture
async def identity_provider() -> AsyncIterator[Provider]:
    async with provider() as served:
        yield served


async def came_back(browser: Browser, path: str = "/sign-in/oidc") -> str:
    """Follow the sign-in at the provider; return the path of the redirect back to the server."""
    response = await browser.get(path)
    assert response.status == 303, response.text
    async with browser.http.get(response.headers["Location"], allow_redirects=False) as answer:
        return answer.headers["Location"].removeprefix(browser.url)


async def sign_in(browser: Browser, path: str = "/sign-in/oidc") -> Got:
    return await browser.get(await came_back(browser, path))


async def test_signing_in_and_out_at_the_provider_applies_to_the_page(
    identity_provider: Provider,
) -> None:
    async with at_server(settings(identity_provider.issuer)) as browser:
        assert "Sign in at 127.0.0.1" in (await browser.get("/sign-in")).text
        response = await sign_in(browser, "/sign-in/oidc?story=story-1")
        assert (response.status, 'content="0; url=/stories/story-1"' in response.text) == (
            200,
            True,
        )
        assert "SameSite=strict" in response.headers.getall("Set-Cookie")[0]
        page = (await browser.get("/")).text
        assert "Sign out ann" in page
        assert identity_provider.requested[0]["scope"] == "openid profile"
        response = await browser.send("/sign-out", form=form_of(page))
        assert (
            f"{identity_provider.issuer}/leave?client_id={CLIENT}&amp;post_logout_redirect_uri=http"
            in response.text
        )
        assert (await browser.get("/")).headers["Location"] == "/sign-in"


async def test_roles_come_only_from_the_configured_groups(identity_provider: Provider) -> None:
    async with at_server(settings(identity_provider.issuer)) as browser:
        for groups, may_look in ((["operations"], True), (["product"], False), ("guests", False)):
            identity_provider.claims = {
                "sub": "ann",
                "groups": groups,
                "roles": ["operator"],
                "operator": True,
            }
            assert (await sign_in(browser)).status == 200
            assert (await browser.get("/system/audit")).status == (200 if may_look else 403)


@pytest.mark.parametrize("groups", [[], ["others"], None, {"product": 1}, [["product"]]])
async def test_a_user_without_a_configured_group_is_refused(
    identity_provider: Provider, groups: object
) -> None:
    identity_provider.claims = {"sub": "eve", "groups": groups}
    async with at_server(settings(identity_provider.issuer)) as browser:
        response = await sign_in(browser)
        assert (response.status, "nothing in groups grants access here" in response.text) == (
            403,
            True,
        )
        assert (await browser.get("/")).headers["Location"] == "/sign-in"


NOW = int(time.time())
FORGED: dict[str, Forge] = {
    "without a signature": by_nobody,
    "signed with the public key": by_the_public_key,
    "signed by somebody else": by_somebody,
    "with a key of its own": by_a_key_of_its_own,
    "changed after it was signed": with_foreign_payload,
    "for another client": with_claims(aud="somebody-else"),
    "for another client too, and made for it": with_claims(
        aud=[CLIENT, "somebody-else"], azp="somebody-else"
    ),
    "for several, of which none is named": with_claims(aud=[CLIENT, "somebody-else"]),
    "of another provider": with_claims(iss="http://127.0.0.1:1"),
    "of another sign-in": with_claims(nonce="of-another"),
    "without a nonce": with_claims(nonce=None),
    "expired": with_claims(iat=NOW - 7200, exp=NOW - 3600),
    "for ever": with_claims(exp=None),
    "of the future": with_claims(iat=NOW + 7200, exp=NOW + 10_800),
    "of nobody": with_claims(sub=None),
    "no token": lambda *_: "rubbish",
    "nothing": lambda *_: "",
}


@pytest.mark.parametrize("forgery", FORGED)
async def test_a_forged_id_token_is_refused(identity_provider: Provider, forgery: str) -> None:
    async with at_server(settings(identity_provider.issuer)) as browser:
        identity_provider.forge = FORGED[forgery]
        response = await sign_in(browser)
        assert (response.status, "the ID token is refused" in response.text) == (403, True), (
            response.text
        )
        assert (await browser.get("/")).headers["Location"] == "/sign-in"
        identity_provider.forge = honest  # the refusal was caused by the forgery alone
        assert (await sign_in(browser)).status == 200


async def test_a_sign_in_response_counts_once_and_only_in_its_browser(
    identity_provider: Provider,
) -> None:
    async with at_server(settings(identity_provider.issuer)) as browser:
        back = await came_back(browser)
        jar = aiohttp.CookieJar(unsafe=True)
        async with aiohttp.ClientSession(
            cookie_jar=jar
        ) as http:  # a browser with a response for another browser
            other_browser = replace(browser, http=http)
            assert (await other_browser.get(back)).status == 403
            await came_back(other_browser)
            assert (await other_browser.get(back)).status == 403  # it has started its own sign-in
            assert (await other_browser.get("/")).headers["Location"] == "/sign-in"
        cookies = {cookie.key: cookie.value for cookie in browser.http.cookie_jar}
        assert (await browser.get(back)).status == 200
        browser.http.cookie_jar.clear()
        browser.http.cookie_jar.update_cookies(cookies)
        response = await browser.get(back)
        assert (response.status, "was already completed" in response.text) == (403, True)
        assert (await browser.get("/")).headers["Location"] == "/sign-in"


async def test_a_slow_sign_in_expires(identity_provider: Provider) -> None:
    async with at_server(settings(identity_provider.issuer), sign_in_seconds=0.2) as browser:
        back = await came_back(browser)
        await asyncio.sleep(0.3)
        assert (await browser.get(back)).status == 403


async def test_a_refusal_of_the_provider_is_shown_as_text(identity_provider: Provider) -> None:
    async with at_server(settings(identity_provider.issuer)) as browser:
        state = (await came_back(browser)).partition("state=")[2]
        query = urlencode({"state": state, "error": "access_denied", "error_description": HOSTILE})
        response = await browser.get(f"/sign-in/oidc/done?{query}")
        assert (response.status, SHOWN in response.text) == (403, True)


async def test_a_response_from_another_provider_is_refused(identity_provider: Provider) -> None:
    identity_provider.about = {"authorization_response_iss_parameter_supported": True}
    async with at_server(settings(identity_provider.issuer)) as browser:
        back = await came_back(browser)
        assert (await browser.get(f"{back}&iss=http://127.0.0.1:1")).status == 403
        assert (
            await sign_in(browser)
        ).status == 403  # the metadata promises the parameter `iss`, which is missing
        assert (
            await browser.get(f"{await came_back(browser)}&iss={identity_provider.issuer}")
        ).status == 200


async def test_a_new_key_is_fetched_after_a_delay_and_other_key_types_work(
    identity_provider: Provider,
) -> None:
    identity_provider.published, now = ("one",), [0.0]
    client = Client(settings(identity_provider.issuer), lambda: now[0])
    dependencies = api_dependencies(MemoryDeliberations())
    async with (
        http_server(
            config.WebSettings(port=0),
            dependencies,
            BearerTokens(TOKENS),
            configured=True,
            provider=client,
        ) as served,
        aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as http,
    ):
        browser = Browser(http, f"http://127.0.0.1:{served.port}", dependencies)
        assert (await sign_in(browser)).status == 200
        identity_provider.published, identity_provider.kid = ("one", "two"), "two"
        assert (
            "no key &#39;two&#39;" in (await sign_in(browser)).text
        )  # unknown keys are not requested for every token
        now[0] = 31
        assert (await sign_in(browser)).status == 200


@pytest.mark.parametrize(
    ("overrides", "claims", "name"),
    [
        ({}, {"sub": "auth0|5f7"}, "auth0-5f7-"),
        ({}, {"sub": "local"}, "local-"),
        ({"name_claim": "preferred_username"}, {"preferred_username": "ann-smith"}, "ann-smith<"),
        (
            {"name_claim": "email"},
            {"email": "Ann@Example.org", "email_verified": True},
            "ann-example-org-",
        ),
        ({"name_claim": "email"}, {"email": "ann@example.org"}, ""),
        ({"name_claim": "email"}, {"email": "ann@example.org", "email_verified": "true"}, ""),
        ({"name_claim": "preferred_username"}, {}, ""),
        ({"roles_claim": "realm.roles"}, {"realm": {"roles": ["guests"]}, "groups": []}, "ann<"),
        (
            {"roles_claim": "https://a.example/roles"},
            {"https://a.example/roles": ["guests"], "groups": []},
            "ann<",
        ),
        ({"tenant_claim": "org"}, {"org": "team-a"}, "ann<"),
        ({"tenant_claim": "org"}, {"org": "../local"}, ""),
        ({"tenant_claim": "org"}, {}, ""),
    ],
)
async def test_the_user_name_comes_from_the_configured_claims(
    identity_provider: Provider, overrides: dict[str, Any], claims: dict[str, Any], name: str
) -> None:
    identity_provider.claims = {"sub": "ann", "groups": ["product"]} | claims
    async with at_server(settings(identity_provider.issuer, **overrides)) as browser:
        assert (await sign_in(browser)).status == (200 if name else 403)
        response = await browser.get("/")
        assert (
            (f"Sign out {name}" in response.text)
            if name
            else response.headers["Location"] == "/sign-in"
        )


async def test_a_tenants_users_see_only_its_stories(identity_provider: Provider) -> None:
    from support.browsing import DRAFT

    async with at_server(settings(identity_provider.issuer, tenant_claim="org")) as browser:
        await browser.dependencies.stories.board.create(
            DRAFT, Principal("bob", "team-b"), key="one"
        )
        for tenant, sees in (("team-a", False), ("team-b", True)):
            identity_provider.claims = {"sub": "ann", "groups": ["product"], "org": tenant}
            await sign_in(browser)
            assert (DRAFT.title in (await browser.get("/")).text) is sees


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"issuer": "http://127.0.0.1:1"}, "its issuer is"),
        ({"code_challenge_methods_supported": ["plain"]}, "PKCE"),
        ({"jwks_uri": None}, "jwks_uri"),
        ({"token_endpoint": "http://elsewhere.example/token"}, "not an https:// address"),
    ],
)
async def test_a_wrong_provider_is_reported_at_the_start(
    identity_provider: Provider, about: dict[str, Any], message: str
) -> None:
    identity_provider.about = about
    with pytest.raises(ConfigurationError, match=message):
        async with at_server(settings(identity_provider.issuer)):
            pass


async def test_an_issuer_that_does_not_answer_is_reported_at_the_start(
    identity_provider: Provider,
) -> None:
    with pytest.raises(ConfigurationError, match="404"):
        async with at_server(settings(f"{identity_provider.issuer}/realms/main")):
            pass
    with pytest.raises(ConfigurationError, match="https://"):
        Client(settings("http://id.example.org"))


async def test_an_unreachable_provider_keeps_nobody_else_out() -> None:
    async with at_server(settings("http://127.0.0.1:1")) as browser:
        response = await browser.get("/sign-in/oidc")
        assert (response.status, "cannot be reached" in response.text) == (503, True)
        await browser.sign_in()


async def test_a_wrong_secret_is_reported_and_not_shown(identity_provider: Provider) -> None:
    async with at_server(
        settings(identity_provider.issuer, client_secret="another secret")
    ) as browser:
        response = await sign_in(browser)
        assert (
            response.status,
            "invalid_client" in response.text,
            "another secret" in response.text,
        ) == (
            403,
            True,
            False,
        )


def test_incomplete_settings_are_reported() -> None:
    for incomplete_settings, message in (
        ({"client_id": "a"}, "oidc.issuer is missing"),
        ({"issuer": "https://id.example.org"}, "oidc.client_id is missing"),
        ({"issuer": "https://id.example.org", "client_id": "a"}, "oidc.roles is empty"),
        (
            {"issuer": "https://id.example.org", "client_id": "a", "roles": {"a": ["king"]}},
            "operator",
        ),
        ({"url": "https://a.example/path"}, "url"),
    ):
        with pytest.raises(ValidationError, match=message):
            config.OidcSettings(**incomplete_settings)


async def test_a_page_reachable_by_others_requires_its_url(
    identity_provider: Provider, tmp_path: Any
) -> None:
    from moothall.api.http.server import _check_provider

    with pytest.raises(ConfigurationError, match=r"set oidc\.url"):
        await _check_provider(
            Client(settings(identity_provider.issuer)),
            config.WebSettings(host="0.0.0.0"),  # noqa: S104 - not bound
        )
    await _check_provider(
        Client(settings(identity_provider.issuer, url="https://a.example")),
        config.WebSettings(host="0.0.0.0"),  # noqa: S104 - not bound
    )
