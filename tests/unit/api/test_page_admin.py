"""The pages of the server: health, tools, audit."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from moothall.api.dependencies import HealthCheck, Probe
from moothall.authorization.audit import Decisions
from moothall.domain.budget import Budget
from moothall.domain.event import EventType
from moothall.domain.ids import LOCAL, Principal
from moothall.domain.status import Condition
from moothall.errors import ModelUnavailable
from moothall.telemetry.tracing import write
from moothall.testing.bus import MemoryBus
from support.browsing import DRAFT, HOSTILE, SHOWN, Browser, serving_page
from support.callers import OTHER, api_dependencies
from support.deliberation_service import MemoryDeliberations


async def _well() -> tuple[Condition, str]:
    return Condition.HEALTHY, HOSTILE


async def _down() -> tuple[Condition, str]:
    raise ModelUnavailable("it does not answer")


@pytest.fixture
def bus() -> MemoryBus:
    return MemoryBus()


@pytest.fixture
async def browser(bus: MemoryBus) -> AsyncIterator[Browser]:
    checkup = HealthCheck({"bus": Probe(_well), "graph": Probe(_down, needed=False)})
    dependencies = replace(api_dependencies(MemoryDeliberations(), bus), health_check=checkup)
    async with serving_page(dependencies) as browser:
        yield browser


def record(seq: int, **fields: Any) -> dict[str, Any]:
    usual = {
        "seq": seq,
        "time": "2026-01-02T03:04:05.678+00:00",
        "phase": "finish",
        "status": "success",
        "tool": "files.read",
    }
    return {
        **usual,
        "principal": "ann",
        "task_id": "task-1",
        "seat": "agent-dev-001",
        **fields,
    }


async def announce(
    bus: MemoryBus, seq: int, *records: dict[str, Any], tenant: str = "local"
) -> None:
    data = {
        "tenant": tenant,
        "writer": "w",
        "mac": "",
        "record": records[-1],
        "records": list(records[:-1]),
    }
    await bus.publish(
        write(EventType.AUDIT_RECORDED, tenant, data, ordinal=str(seq), tenant=tenant)
    )


async def test_the_last_decisions_are_sent_latest_first_and_each_once(bus: MemoryBus) -> None:
    decisions = Decisions(bus)
    assert await decisions.last(LOCAL) == ()
    await announce(
        bus,
        1,
        record(1, phase="start", status=""),
        record(2),
        record(3, phase="approved", status="", approved_by="bob"),
    )
    first = await decisions.last(LOCAL)
    assert [(item.status, item.reason) for item in first] == [
        ("approved", "allowed by bob"),
        ("success", ""),
    ]
    alert = {
        "tenant": "local",
        "kind": "denials",
        "count": 9,
        "reason": "no grant",
        "tool": "net.get",
        "principal": "ann",
        "task_id": "t",
        "seat": "",
    }
    await bus.publish(write(EventType.GUARD_ALERTED, "local", alert))
    await announce(bus, 2, record(4, status="blocked"))
    assert [(item.status, item.refused) for item in await decisions.last(LOCAL)][:2] == [
        ("blocked", True),
        ("alert", True),
    ]
    assert len(await decisions.last(LOCAL)) == 4
    await announce(bus, 3, *(record(number) for number in range(500)))
    assert len(await decisions.last(LOCAL)) == 200
    assert await decisions.last(Principal("eve", "elsewhere")) == ()


@pytest.mark.parametrize(
    "data",
    [{"record": 1}, {"records": 3, "record": {"phase": "start"}}, {"records": [1], "record": None}],
)
async def test_malformed_data_is_ignored(bus: MemoryBus, data: dict[str, Any]) -> None:
    await bus.publish(write(EventType.AUDIT_RECORDED, "local", {"tenant": "local", **data}))
    assert await Decisions(bus).last(LOCAL) == ()


async def test_operators_see_the_audit_log_and_others_do_not(
    browser: Browser, bus: MemoryBus
) -> None:
    await browser.sign_in()
    assert "No tool has been called yet." in (await browser.get("/system/audit")).text
    await announce(bus, 1, record(1, tool=HOSTILE), record(2, status="blocked", tool="net.get"))
    page = (await browser.get("/system/audit")).text
    assert SHOWN in page
    assert page.count("<script") == page.count("<script src=")
    refused = (await browser.get("/system/audit?only=refused")).text
    assert "net.get" in refused
    assert SHOWN not in refused
    assert (await browser.get("/system/audit?only=x")).status == 400
    await browser.sign_in(OTHER)
    response = await browser.get("/system/audit")
    assert (response.status, "only operators can see" in response.text) == (403, True)
    assert "/system/audit" not in (await browser.get("/system")).text


async def test_each_part_shows_its_condition(browser: Browser) -> None:
    assert (await browser.get("/system")).status == 303
    await browser.sign_in()
    page = (await browser.get("/system")).text
    for words in (
        "degraded",
        '<strong class="won">Healthy',
        SHOWN,
        '<strong class="lost">Down',
        "it does not answer",
    ):
        assert words in page


async def test_the_usage_of_each_story_is_shown(browser: Browser) -> None:
    await browser.sign_in()
    assert "There are no stories yet." in (await browser.get("/system/budgets")).text
    card = await browser.dependencies.stories.board.create(
        replace(DRAFT, title=HOSTILE), LOCAL, key="1", budget=Budget(tokens=1_000)
    )
    page = (await browser.get("/system/budgets")).text
    assert SHOWN in page
    book = await browser.dependencies.stories.budgets.of(
        card.story.id, LOCAL.tenant, card.story.budget
    )
    assert book.lines()[0] in page


async def test_an_operator_changes_quotas_and_the_author_is_shown(browser: Browser) -> None:
    form = await browser.sign_in()
    page = (await browser.get("/system/budgets")).text
    assert "Nothing limits the tokens and the cost." in page
    fields = {"form": form, "tenant": "local", "tokens_per_day": "5000", "deliberations": "0"}
    response = await browser.send("/system/budgets", **(fields | {"cost_usd_per_day": HOSTILE}))
    assert response.status == 400
    assert "US dollars per day: &#39;&lt;script&gt;" in response.text
    assert HOSTILE not in response.text
    assert 'value="5000"' in response.text, "typed values stay in the form"
    assert (await browser.send("/system/budgets", **fields)).status == 303
    page = (await browser.get("/system/budgets")).text
    assert "0 of 5000" in page
    assert "tokens per day 5,000, deliberations at once 0" in page
    assert (await browser.dependencies.quotas.read("local")).quota.tokens_per_day == 5000
    await browser.send("/system/budgets?tenant=team-a", **(fields | {"tenant": "team-a"}))
    assert "Quotas of team-a" in (await browser.get("/system/budgets?tenant=team-a")).text


async def test_other_users_see_their_quotas_and_cannot_change_them(browser: Browser) -> None:
    form = await browser.sign_in(OTHER)
    page = (await browser.get("/system/budgets")).text
    assert "Quotas of elsewhere" in page
    assert "Save quotas" not in page
    assert (await browser.get("/system/budgets?tenant=local")).status == 403
    response = await browser.send(
        "/system/budgets", form=form, tenant="elsewhere", deliberations="9"
    )
    assert (response.status, "is not an operator" in response.text) == (403, True)


async def test_tools_are_searched_by_words(browser: Browser) -> None:
    await browser.sign_in()
    assert "files.append" in (await browser.get("/system/tools")).text
    page = (await browser.get("/system/tools?query=FILES.append")).text
    assert "<code>files.append</code>" in page
    assert "<code>files.read</code>" not in page
    assert "1 tool<" in page
    assert (
        "No tool matches all of these words."
        in (await browser.get("/system/tools?query=%3Cb%3E")).text
    )
