"""Sharing of computed prompt states. The engine here simulates the real one and counts computed
characters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from moothall.llm.serve_local import (
    EngineRefused,
    KvCacheSlots,
    Messages,
    as_text,
    common_prefix_length,
    truncate,
)

SYSTEM = {"role": "system", "content": "s" * 3000}


def prompt(task: str, last: str, *messages: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [SYSTEM, {"role": "user", "content": task * 2000 + last}, *messages]


@dataclass
class Engine:
    """Slots with text. `computed` counts the characters that no slot had."""

    folder: Path
    slots: dict[int, str] = field(default_factory=dict)
    computed: int = 0
    restored: int = 0
    broken: bool = False

    def answer(self, slot: int, messages: Messages) -> int:
        text = as_text(messages)
        fresh = len(text) - common_prefix_length(self.slots.get(slot, ""), text)
        self.slots[slot] = text
        self.computed += fresh
        return fresh

    async def compute(self, slot: int, messages: Messages) -> None:
        await asyncio.sleep(0)
        self.answer(slot, messages)

    async def save(self, slot: int, name: str) -> None:
        if self.broken:
            raise EngineRefused("no space")
        (self.folder / name).write_text(self.slots.get(slot, ""))

    async def restore(self, slot: int, name: str) -> None:
        await asyncio.sleep(0)
        text = file.read_text() if (file := self.folder / name).exists() else ""
        if self.broken or not text.startswith("\x00"):
            raise EngineRefused("damaged")
        self.slots[slot] = text
        self.restored += 1


async def call(states: KvCacheSlots, engine: Engine, messages: Messages) -> int:
    """Answer a call like the proxy; return the number of characters computed only for it."""
    async with states.slot_for(messages) as slot:
        await asyncio.sleep(0.001)
        return engine.answer(slot.number, messages)


def open_slots(folder: Path, count: int = 3, **options: Any) -> tuple[KvCacheSlots, Engine]:
    engine = Engine(folder)
    return KvCacheSlots(cast("Any", engine), folder, count, **options), engine


async def test_concurrent_calls_compute_their_common_prefix_once(tmp_path: Path) -> None:
    states, engine = open_slots(tmp_path)
    prompts = [prompt("t", f"seat {n}") for n in range(3)]
    fresh = await asyncio.gather(*(call(states, engine, messages) for messages in prompts))
    assert max(fresh) < 20
    assert engine.computed < len(as_text(prompts[0])) + 100


async def test_the_state_of_a_plan_serves_every_seat(tmp_path: Path) -> None:
    states, engine = open_slots(tmp_path)
    await call(states, engine, prompt("t", "plan"))
    computed_before = engine.computed
    await asyncio.gather(*(call(states, engine, prompt("t", f"seat {n}")) for n in range(3)))
    assert engine.computed - computed_before < 100


async def test_the_next_turn_finds_its_history(tmp_path: Path) -> None:
    states, engine = open_slots(tmp_path)
    reply = {"role": "assistant", "content": "x" * 1000}
    first = [prompt("t", f"seat {n}", reply) for n in range(3)]
    await asyncio.gather(*(call(states, engine, messages) for messages in first))
    await asyncio.gather(
        *(call(states, engine, prompt("another", f"review {n}")) for n in range(3))
    )
    continued = [[*messages, {"role": "user", "content": "go on"}] for messages in first]
    fresh = await asyncio.gather(*(call(states, engine, messages) for messages in continued))
    assert max(fresh) < 50


async def test_the_system_message_is_kept_across_runs(tmp_path: Path) -> None:
    states, engine = open_slots(tmp_path)
    await call(states, engine, prompt("t", "one"))
    states.close()
    assert [file.name[:5] for file in tmp_path.iterdir()] == ["kept-"]
    states, engine = open_slots(tmp_path)
    fresh = await call(states, engine, prompt("u", "two"))
    assert engine.restored == 1
    assert fresh == engine.computed < 3000


async def test_a_removed_state_file_is_computed_again(tmp_path: Path) -> None:
    states, engine = open_slots(tmp_path)
    await call(states, engine, prompt("t", "x"))
    for file in tmp_path.glob("kept-*"):
        file.unlink()
    await asyncio.gather(*(call(states, engine, prompt("u", f"{n}")) for n in range(3)))
    assert set(engine.slots.values()) >= {as_text(prompt("u", f"{n}")) for n in range(3)}


async def test_models_do_not_share_states(tmp_path: Path) -> None:
    states, engine = open_slots(tmp_path, salt="one")
    await call(states, engine, prompt("t", "x"))
    states, engine = open_slots(tmp_path, salt="two")
    await call(states, engine, prompt("t", "x"))
    assert engine.restored == 0


async def test_a_damaged_file_is_replaced(tmp_path: Path) -> None:
    states, engine = open_slots(tmp_path)
    await call(states, engine, prompt("t", "x"))
    (state_file,) = tmp_path.glob("kept-*")
    state_file.write_text("rubbish")
    states, engine = open_slots(tmp_path)
    assert await call(states, engine, prompt("t", "x")) >= 0
    assert state_file.read_text() == as_text([SYSTEM])


async def test_an_engine_that_cannot_save_still_answers(tmp_path: Path) -> None:
    states, engine = open_slots(tmp_path)
    engine.broken = True
    await asyncio.gather(*(call(states, engine, prompt("t", f"seat {n}")) for n in range(6)))
    assert not any(slot.busy for slot in states.slots)


async def test_the_disk_holds_a_bounded_number_of_states(tmp_path: Path) -> None:
    states, engine = open_slots(tmp_path, limit=4, kept_limit=2)
    for n in range(20):
        await call(
            states,
            engine,
            [
                {"role": "system", "content": f"{n}" * 1000},
                {"role": "user", "content": f"task {n}" * 300},
            ],
        )
    assert len(list(tmp_path.glob("run-*"))) <= 4
    assert len(list(tmp_path.glob("kept-*"))) <= 2
    states.close()
    assert not list(tmp_path.glob("run-*"))


async def test_files_of_ended_runs_are_removed(tmp_path: Path) -> None:
    (tmp_path / "run-999999999-abc").write_text("left over")
    open_slots(tmp_path)
    assert not list(tmp_path.iterdir())


async def test_a_cancelled_call_releases_its_slot(tmp_path: Path) -> None:
    states, engine = open_slots(tmp_path, count=1)

    async def hold() -> None:
        async with states.slot_for(prompt("t", "x")):
            await asyncio.Event().wait()

    async with asyncio.TaskGroup() as group:
        holder = group.create_task(hold())
        waiting = group.create_task(hold())
        await asyncio.sleep(0.1)
        holder.cancel()
        waiting.cancel()
    assert await call(states, engine, prompt("t", "y")) >= 0


async def test_no_slot_serves_two_calls(tmp_path: Path) -> None:
    states, engine = open_slots(tmp_path)
    busy = set[int]()

    async def call_once(n: int) -> None:
        async with states.slot_for(prompt("abc"[n % 3], f"call {n}")) as slot:
            assert slot.number not in busy
            busy.add(slot.number)
            await asyncio.sleep(n % 7 / 500)
            engine.answer(slot.number, prompt("abc"[n % 3], f"call {n}"))
            busy.remove(slot.number)

    await asyncio.gather(*(call_once(n) for n in range(20)))


texts = st.text(st.sampled_from("ab"), max_size=12)


@given(texts, texts)
def test_the_common_prefix_is_the_longest_one(first_text: str, second_text: str) -> None:
    size = common_prefix_length(first_text, second_text)
    assert first_text[:size] == second_text[:size]
    assert size in {len(first_text), len(second_text)} or first_text[size] != second_text[size]


@given(
    st.lists(
        st.fixed_dictionaries({"role": st.sampled_from(["user", "system"]), "content": texts}),
        max_size=4,
    ),
    st.integers(0, 60),
)
def test_truncated_messages_are_a_prefix(messages: list[dict[str, str]], length: int) -> None:
    shorter = as_text(truncate(messages, length))
    assert as_text(messages).startswith(shorter)
    assert len(shorter) <= max(length, 0)
