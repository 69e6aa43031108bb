"""Issues of Linear and Jira that become stories on the board, by signed webhooks."""

from __future__ import annotations

import hmac
import json
from collections.abc import AsyncIterator
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from moothall.api.webhooks import TrackedIssue, draft_of
from moothall.config import TrackerSettings
from moothall.stories import coach
from support.callers import api_dependencies
from support.deliberation_service import MemoryDeliberations
from support.rest import Web, serving_http

SECRET = "a secret of these tests"
TEXT = "Totals are cut.\n\n- [ ] 0.5 becomes 1\n- [x] 0.4 becomes 0\n"
LINEAR: dict[str, Any] = {
    "action": "update",
    "type": "Issue",
    "data": {
        "id": "0b1c",
        "identifier": "ENG-12",
        "title": "Round totals",
        "description": TEXT,
        "url": "https://tracker.example/ENG-12",
        "team": {"key": "ENG", "id": "t"},
        "labels": [{"id": "l", "name": "moothall"}],
    },
    "webhookTimestamp": 1795000000000,
}
JIRA: dict[str, Any] = {
    "webhookEvent": "jira:issue_created",
    "issue": {
        "id": "10007",
        "key": "APP-7",
        "fields": {
            "summary": "Round totals",
            "description": TEXT,
            "labels": ["moothall"],
            "project": {"key": "APP", "id": "1"},
            "priority": {"name": "High"},
        },
    },
}


@pytest.fixture
async def web(deliberations: MemoryDeliberations) -> AsyncIterator[Web]:
    settings = TrackerSettings(
        linear_secret=SecretStr(SECRET), jira_secret=SecretStr(SECRET), repositories={"ENG": ""}
    )
    async with serving_http(api_dependencies(deliberations), settings) as server:
        yield server


async def send(web: Web, tracker: str, event: Any, secret: str = SECRET) -> int:
    """Send a webhook as the tracker does, without a token, and return the status."""
    content = json.dumps(event).encode()
    signature = hmac.new(secret.encode(), content, sha256).hexdigest()
    headers = (
        {"Linear-Signature": signature}
        if tracker == "linear"
        else {"X-Hub-Signature": f"sha256={signature}"}
    )
    url = f"http://127.0.0.1:{web.port}/hooks/{tracker}"
    headers |= {"Content-Type": "application/json; charset=utf-8"}
    async with web.session.post(url, data=content, headers=headers) as response:
        return response.status


async def stories(web: Web) -> list[dict[str, Any]]:
    return list((await web("GET", "/api/v1/stories")).json["stories"])


@pytest.mark.parametrize(
    ("tracker", "event", "title"),
    [("linear", LINEAR, "ENG-12 Round totals"), ("jira", JIRA, "APP-7 Round totals")],
)
async def test_a_labelled_issue_creates_one_story(
    web: Web, tracker: str, event: dict[str, Any], title: str
) -> None:
    assert await send(web, tracker, event) == 204
    assert await send(web, tracker, event) == 204
    (story,) = await stories(web)
    assert story["title"] == title
    details = (await web("GET", f"/api/v1/stories/{story['story_id']}")).json
    assert details["ac"] == ["0.5 becomes 1", "0.4 becomes 0"]
    assert details["story"]["brief"].startswith("Totals are cut.")


async def test_a_changed_issue_does_not_change_the_story(web: Web) -> None:
    assert await send(web, "linear", LINEAR) == 204
    changed = {**LINEAR, "data": {**LINEAR["data"], "title": "Delete everything"}}
    assert await send(web, "linear", changed) == 204
    assert [story["title"] for story in await stories(web)] == ["ENG-12 Round totals"]


@pytest.mark.parametrize(
    "event",
    [
        {**LINEAR, "action": "remove"},
        {**LINEAR, "type": "Comment", "data": {"id": "c"}},
        {**LINEAR, "data": {**LINEAR["data"], "labels": [{"name": "other"}]}},
        {**LINEAR, "data": {**LINEAR["data"], "labels": []}},
    ],
    ids=["removed", "comment", "other label", "no label"],
)
async def test_other_events_create_no_story(web: Web, event: dict[str, Any]) -> None:
    assert await send(web, "linear", event) == 204
    assert await stories(web) == []


async def test_a_webhook_with_a_wrong_or_missing_signature_is_refused(web: Web) -> None:
    for tracker, event in (("linear", LINEAR), ("jira", JIRA)):
        assert await send(web, tracker, event, secret="another") == 401
    unsigned = await web("POST", "/hooks/linear", LINEAR, token=None)
    assert unsigned.status == 401
    assert await stories(web) == []


async def test_a_malformed_event_is_an_invalid_request(web: Web) -> None:
    malformed: list[Any] = [[], "x", {"type": "Issue", "action": "create"}]
    for event in (*malformed, {**LINEAR, "data": {"id": 7}}):
        assert await send(web, "linear", event) == 400
    for event in ({**JIRA, "issue": None}, {**JIRA, "issue": {"id": "1", "fields": {"labels": 7}}}):
        assert await send(web, "jira", event) == 400
    assert await stories(web) == []


async def test_without_a_secret_the_webhook_path_does_not_exist(
    deliberations: MemoryDeliberations,
) -> None:
    async with serving_http(api_dependencies(deliberations), TrackerSettings()) as web:
        assert (await web("POST", "/hooks/linear", LINEAR)).status == 404
        assert await send(web, "linear", LINEAR) == 401


@given(
    title=st.text(max_size=40),
    line=st.text(max_size=60),
    count=st.integers(0, 400),
    boxes=st.booleans(),
)
def test_a_story_from_an_issue_is_within_the_limits(
    title: str, line: str, count: int, *, boxes: bool
) -> None:
    text = "\n".join(f"{'- [ ] ' if boxes else ''}{line}{'x' * 100}" for _ in range(count))
    draft = draft_of(TrackedIssue("1", "ENG-1", "ENG", title * 20, text, ()))
    assert coach.check(draft).title.startswith("ENG-1")
