"""Parked requests on the page: operators see them and decide each once; other users see nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from moothall.authorization.approvals import BUCKET, ApprovalQueue, Parked
from moothall.domain.codec import dump
from moothall.testing.bus import MemoryBus
from support.browsing import HOSTILE, SHOWN, Browser, serving_page
from support.callers import OTHER, api_dependencies, with_parts
from support.deliberation_service import MemoryDeliberations
from support.session_manager import open_session_manager

ITEM = Parked(
    id="a1",
    request_id="r-1",
    tenant="local",
    workspace="w-1",
    task_id="task-1",
    seat="agent-dev-001",
    principal="ann",
    role="dev",
    tool="files.delete",
    arguments={"path": HOSTILE, "more": [1, {"deep": HOSTILE}]},
    arguments_digest="d",
    reason=HOSTILE,
    time="2026-01-02T03:04:05.678+00:00",
)


@dataclass(frozen=True, slots=True)
class App:
    """A browser of a server whose gateway parks requests."""

    browser: Browser
    bus: MemoryBus
    parking: ApprovalQueue

    async def park(self, *items: Parked) -> None:
        for item in items:
            await self.bus.bucket(BUCKET).put(
                f"{item.tenant}.{item.id}", {**dump(item), "grant": [""]}
            )
        await self.parking.refresh()


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[App]:
    bus = MemoryBus()
    async with open_session_manager(tmp_path, bus) as backend:
        assert backend.parking is not None
        dependencies = with_parts(
            api_dependencies(MemoryDeliberations()),
            sessions=backend.session_manager,
            approvals=backend.parking,
        )
        async with serving_page(dependencies) as browser:
            yield App(browser, bus, backend.parking)


async def test_an_operator_sees_parked_requests_and_decides_each_once(app: App) -> None:
    form = await app.browser.sign_in()
    assert "There are no parked requests." in (await app.browser.get("/system/parked")).text
    await app.park(
        ITEM, replace(ITEM, id="b2", request_id="r-2"), replace(ITEM, id="c3", tenant="elsewhere")
    )
    page = (await app.browser.get("/system/parked")).text
    assert page.count('class="panel"') == 2
    assert page.count("<script") == page.count("<script src=")
    assert page.count(SHOWN) == 6
    allowed = await app.browser.send("/system/parked/a1", form=form, do="allow", reason="fine")
    assert (allowed.status, allowed.headers["Location"]) == (303, "/system/parked")
    assert (
        await app.browser.send("/system/parked/b2", form=form, do="refuse", reason="no")
    ).status == 303
    assert "There are no parked requests." in (await app.browser.get("/system/parked")).text
    stored = await app.bus.bucket(BUCKET).entries()
    decisions = {
        key: (item["state"], item["approver"], item["comment"], bool(item["grant"][0]))
        for key, item in stored.items()
    }
    assert decisions["local.a1"] == ("allowed", "local", "fine", True)
    assert decisions["local.b2"] == ("refused", "local", "no", False)
    assert decisions["elsewhere.c3"] == ("waiting", "", "", False)
    response = await app.browser.send("/system/parked/a1", form=form, do="refuse")
    assert (response.status, "it was allowed already" in response.text) == (400, True)


async def test_invalid_decisions_and_decisions_of_others_change_nothing(app: App) -> None:
    form = await app.browser.sign_in()
    await app.park(ITEM)
    assert (await app.browser.send("/system/parked/a1", form="other", do="allow")).status == 403
    assert (await app.browser.send("/system/parked/a1", form=form, do="maybe")).status == 400
    assert (await app.browser.send("/system/parked/nothing", form=form, do="allow")).status == 404
    own_form = await app.browser.sign_in(OTHER)
    assert (await app.browser.get("/system/parked")).status == 403
    assert (await app.browser.send("/system/parked/a1", form=own_form, do="allow")).status == 403
    assert "/system/parked" not in (await app.browser.get("/system")).text
    assert [item.id for item in app.parking.list_waiting("local")] == ["a1"]
