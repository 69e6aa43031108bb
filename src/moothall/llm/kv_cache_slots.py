"""Chooses the slot of the local engine for a call, and reuses computed parts of the prompt.

On a CPU a prompt costs more than its answer: 800 tokens take 10 to 20 seconds. The prompts of a
council begin alike, but the engine's slots share nothing by themselves. So the state that a slot
has computed is saved (milliseconds, 12 KB a token) and restored into others, and of calls that
arrive together one computes the common beginning for all. The beginning that all deliberations have
in common, the system message, is also kept across runs.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from moothall.domain.ids import digest

Messages = Sequence[Mapping[str, Any]]

_MIN_GAIN_CHARS = 400  # computing fewer characters is faster than saving and restoring them
_GATHER_SECONDS = 0.05  # calls that belong together arrive within this
_KEPT_PREFIX = "kept-"
_HTTP_OK = 200


class EngineRefused(Exception):
    """The engine refused a request; the call is then served without its result."""


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """Requests to llama.cpp's server besides the calls. Each method raises `EngineRefused`."""

    session: aiohttp.ClientSession
    name: str

    async def compute(self, slot: int, messages: Messages) -> None:
        """Process a prompt; the engine answers with at least one token."""
        body = {
            "model": self.name,
            "messages": list(messages),
            "max_tokens": 1,
            "temperature": 0.0,
            "id_slot": slot,
        }
        await self._post("/v1/chat/completions", body)

    async def save(self, slot: int, name: str) -> None:
        """Write the slot's state."""
        await self._post(f"/slots/{slot}?action=save", {"filename": name})

    async def restore(self, slot: int, name: str) -> None:
        """Read the slot's state."""
        await self._post(f"/slots/{slot}?action=restore", {"filename": name})

    async def _post(self, path: str, body: dict[str, Any]) -> None:
        try:
            async with self.session.post(path, json=body) as response:
                text = await response.text()
        except aiohttp.ClientError as error:
            raise EngineRefused(str(error)) from error
        if response.status != _HTTP_OK:
            raise EngineRefused(text[:300])


@dataclass(slots=True)
class Slot:
    """A slot of the engine. `text` is the prompt with which its state begins."""

    number: int
    text: str = ""
    busy: bool = False
    used: int = 0
    saved: bool = True


@dataclass(slots=True)
class KvCacheSlots:
    """The slots and their saved states, at most `limit` besides the kept ones."""

    engine: LocalEngine
    folder: Path
    count: int
    salt: str = ""
    limit: int = 12
    kept_limit: int = 4
    slots: list[Slot] = field(init=False)
    _saved: dict[str, str] = field(
        default_factory=dict
    )  # text to file name, least recently used first
    _prompts: list[str] = field(default_factory=list)  # of all calls that wait or run
    _free: asyncio.Semaphore = field(init=False)
    _preparing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _clock: int = 0

    def __post_init__(self) -> None:
        self.slots = [Slot(number) for number in range(self.count)]
        self._free = asyncio.Semaphore(self.count)
        self.folder.mkdir(parents=True, exist_ok=True)
        for file in self.folder.glob("run-*"):
            pid = file.name.split("-")[1]
            if not (pid.isdigit() and psutil.pid_exists(int(pid))):
                file.unlink(missing_ok=True)

    @asynccontextmanager
    async def slot_for(self, messages: Messages) -> AsyncIterator[Slot]:
        """Hold the slot in which the prompt costs least, prepared as far as it is worthwhile."""
        prompt = as_text(messages)
        self._prompts.append(prompt)
        try:
            await asyncio.sleep(_GATHER_SECONDS)
            async with self._free:
                async with self._preparing:
                    slot = await self._prepare(messages, prompt)
                try:
                    yield slot
                finally:
                    slot.busy = False
        finally:
            self._prompts.remove(prompt)

    def close(self) -> None:
        """Remove the files of this run."""
        for name in self._saved.values():
            if not name.startswith(_KEPT_PREFIX):
                (self.folder / name).unlink(missing_ok=True)

    async def _prepare(self, messages: Messages, prompt: str) -> Slot:
        free = [slot for slot in self.slots if not slot.busy]
        slot = max(free, key=lambda one: (common_prefix_length(one.text, prompt), -one.used))
        if (
            common_prefix_length(self._nearest_saved(prompt), prompt)
            > common_prefix_length(slot.text, prompt) + _MIN_GAIN_CHARS
        ):
            slot = min(free, key=lambda one: one.used)
        self._clock += 1
        slot.busy, slot.used = True, self._clock
        try:
            await self._fill(slot, messages, prompt)
        except EngineRefused:
            slot.text = ""  # its state is unknown, so it is computed again
        except BaseException:
            slot.busy, slot.text = False, ""
            raise
        slot.text, slot.saved = prompt, False
        return slot

    def _nearest_saved(self, prompt: str) -> str:
        return max(self._saved, key=lambda text: common_prefix_length(text, prompt), default="")

    async def _fill(self, slot: Slot, messages: Messages, prompt: str) -> None:
        if not slot.saved and len(slot.text) > _MIN_GAIN_CHARS and not prompt.startswith(slot.text):
            await self._save(slot, slot.text)
        saved = self._nearest_saved(prompt)
        if (
            common_prefix_length(saved, prompt)
            > common_prefix_length(slot.text, prompt) + _MIN_GAIN_CHARS
        ):
            await self._restore(slot, saved)
        system = (
            as_text(messages[:1])
            if len(messages) > 1 and messages[0].get("role") == "system"
            else ""
        )
        if len(system) > common_prefix_length(slot.text, prompt) + _MIN_GAIN_CHARS:
            await self._keep(slot, system, messages[:1])
        others = list(self._prompts)
        others.remove(prompt)
        shared = max((common_prefix_length(other, prompt) for other in others), default=0)
        if shared > common_prefix_length(slot.text, prompt) + _MIN_GAIN_CHARS:
            await self.engine.compute(slot.number, truncate(messages, shared))
            await self._save(slot, prompt[:shared])

    async def _keep(self, slot: Slot, system: str, messages: Messages) -> None:
        """Restore the system message's state from an earlier run, or compute it and keep it for
        later ones.
        """
        name = f"{_KEPT_PREFIX}{digest(self.salt, system)[:32]}"
        if (self.folder / name).exists():
            with suppress(EngineRefused):  # a damaged file is made again
                await self.engine.restore(slot.number, name)
                os.utime(self.folder / name)
                self._saved[system], slot.text = name, system
                return
        await self.engine.compute(slot.number, messages)
        await self._save(slot, system)
        (self.folder / self._saved[system]).replace(self.folder / name)
        self._saved[system] = name
        kept = sorted(self.folder.glob(f"{_KEPT_PREFIX}*"), key=lambda file: file.stat().st_mtime)
        for file in kept[: -self.kept_limit]:
            file.unlink(missing_ok=True)
            self._saved = {text: name for text, name in self._saved.items() if name != file.name}

    async def _save(self, slot: Slot, text: str) -> None:
        name = f"run-{os.getpid()}-{digest(text)[:32]}"
        await self.engine.save(slot.number, name)
        slot.text, slot.saved = text, True
        self._saved[text] = name
        own_texts = [
            text for text, name in self._saved.items() if not name.startswith(_KEPT_PREFIX)
        ]
        for old in own_texts[: -self.limit]:
            (self.folder / self._saved.pop(old)).unlink(missing_ok=True)

    async def _restore(self, slot: Slot, text: str) -> None:
        name = self._saved.pop(text)
        await self.engine.restore(slot.number, name)
        self._saved[text] = name  # the most recently used is last
        slot.text, slot.saved = text, True


def as_text(messages: Messages) -> str:
    """Return a conversation as one text; equal beginnings are equal beginnings of the prompt."""
    return "".join(f"\x00{message.get('role')}\x00{message.get('content')}" for message in messages)


def truncate(messages: Messages, length: int) -> list[Mapping[str, Any]]:
    """Return the messages of the first `length` characters of `as_text`."""
    kept: list[Mapping[str, Any]] = []
    for message in messages:
        content, space = (
            str(message.get("content")),
            length - len(as_text(kept)) - len(str(message.get("role"))) - 2,
        )
        if space <= 0:
            break
        kept.append({**message, "content": content[:space]})
    return kept


def common_prefix_length(one: str, other: str) -> int:
    """Return how many characters two texts have in common at their beginning."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low
