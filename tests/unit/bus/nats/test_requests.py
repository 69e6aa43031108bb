from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from moothall.aio import beside
from moothall.bus.nats.jetstream import open_bus
from moothall.bus.nats.server import embedded_server
from moothall.config import BusSettings
from moothall.domain.fleet import FLEET
from moothall.domain.topic import Channel
from moothall.errors import InvalidRequest


async def test_all_who_answer_are_heard_and_nobody_is_not_waited_for(tmp_path: Path) -> None:
    def named(name: str) -> Any:
        async def answer(_asked: Mapping[str, Any]) -> tuple[Mapping[str, Any], bytes]:
            return {"name": name}, b""

        return answer

    async with (
        embedded_server(BusSettings(), tmp_path / "bus") as url,
        open_bus(BusSettings(), url) as bus,
        AsyncExitStack() as stack,
    ):
        assert [said async for said in bus.ask_all(FLEET, {}, 600)] == []
        for name in ("one", "two"):
            await stack.enter_async_context(beside(bus.answer(FLEET, named(name)), name))
        async with asyncio.timeout(20):
            found: list[Any] = []
            while len(found) < 2:  # until both listen
                found = [said["name"] async for said in bus.ask_all(FLEET, {}, 0.3)]
        assert sorted(found) == ["one", "two"]
        with pytest.raises(InvalidRequest):
            bus.ask_all(Channel.HOSTS.all, {}, 1)
