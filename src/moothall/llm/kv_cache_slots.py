"""Choose a slot of the local engine for each call, and share computed prompt prefixes.

On a CPU a prompt costs more than its reply: 800 tokens take 10 to 20 seconds. The prompts of a
council share a prefix, but the engine's slots share no state. So the state of a slot is saved
(milliseconds, 12 KB per token) and restored into other slots. If several calls arrive together, one
computes the common prefix for all. The state of the system message, which all deliberations share,
is also stored across runs.
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
_GATHER_SECONDS = 0.05  # calls that belong together arrive within this time
_KEPT_PREFIX = "kept-"
_HTTP_OK = 200


class EngineRefused(Exception):
    """The engine refused a request. The call goes on without its result."""


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """A client for the slot operations of llama.cpp's server. All methods raise `EngineRefused`."""

    session: aiohttp.ClientSession
    name: str

    async def compute(self, slot: int, messages: Messages) -> None:
        """Process a prompt. The engine always generates at least one token."""
        body = {
            "model": self.name,
            "messages": list(messages),
            "max_tokens": 1,
            "temperature": 0.0,
            "id_slot": slot,
        }
        await self._post("/v1/chat/completions", body)

    async def save(self, slot: int, name: str) -> None:
        """Save the slot's state to a file."""
        await self._post(f"/slots/{slot}?action=save", {"filename": name})

    async def restore(self, slot: int, name: str) -> None:
        """Restore the slot's state from a file."""
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
    """A slot of the engine. `text` is the prompt at the beginning of its state."""

    number: int
    text: str = ""
    busy: bool = False
    used: int = 0
    saved: bool = True


@dataclass(slots=True)
class KvCacheSlots:
    """The slots and their saved states: at most `limit` of this run, and at most `kept_limit` that
    are stored across runs.
    """

    engine: LocalEngine
    folder: Path
    count: int
    salt: str = ""
    limit: int = 12
    kept_limit: int = 4
    slots: list[Slot] = field(init=False)
    _saved: dict[str, str] = field(
        default_factory=dict
    )  # file names by text, least recently used first
    _prompts: list[str] = field(default_factory=list)  # the prompts of waiting and running calls
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
        """Reserve and prepare the slot in which the prompt costs least."""
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
        slot = max(free, key=lambda slot: (common_prefix_length(slot.text, prompt), -slot.used))
        if (
            common_prefix_length(self._nearest_saved(prompt), prompt)
            > common_prefix_length(slot.text, prompt) + _MIN_GAIN_CHARS
        ):
            slot = min(free, key=lambda slot: slot.used)
        self._clock += 1
        slot.busy, slot.used = True, self._clock
        try:
            await self._fill(slot, messages, prompt)
        except EngineRefused:
            slot.text = ""  # its state is unknown, so the prompt is computed again
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
            await self._load_system(slot, system, messages[:1])
        other_prompts = list(self._prompts)
        other_prompts.remove(prompt)
        shared = max((common_prefix_length(other, prompt) for other in other_prompts), default=0)
        if shared > common_prefix_length(slot.text, prompt) + _MIN_GAIN_CHARS:
            await self.engine.compute(slot.number, truncate(messages, shared))
            await self._save(slot, prompt[:shared])

    async def _load_system(self, slot: Slot, system: str, messages: Messages) -> None:
        """Restore the system message's state from an earlier run, or compute and store it for later
        runs.
        """
        name = f"{_KEPT_PREFIX}{digest(self.salt, system)[:32]}"
        if (self.folder / name).exists():
            with suppress(EngineRefused):  # a damaged file is replaced
                await self.engine.restore(slot.number, name)
                os.utime(self.folder / name)
                self._saved[system], slot.text = name, system
                return
        await self.engine.compute(slot.number, messages)
        await self._save(slot, system)
        (self.folder / self._saved[system]).replace(self.folder / name)
        self._saved[system] = name
        files = sorted(self.folder.glob(f"{_KEPT_PREFIX}*"), key=lambda file: file.stat().st_mtime)
        for file in files[: -self.kept_limit]:
            file.unlink(missing_ok=True)
            self._saved = {text: name for text, name in self._saved.items() if name != file.name}

    async def _save(self, slot: Slot, text: str) -> None:
        name = f"run-{os.getpid()}-{digest(text)[:32]}"
        await self.engine.save(slot.number, name)
        slot.text, slot.saved = text, True
        self._saved[text] = name
        run_texts = [
            text for text, name in self._saved.items() if not name.startswith(_KEPT_PREFIX)
        ]
        for old_text in run_texts[: -self.limit]:
            (self.folder / self._saved.pop(old_text)).unlink(missing_ok=True)

    async def _restore(self, slot: Slot, text: str) -> None:
        name = self._saved.pop(text)
        await self.engine.restore(slot.number, name)
        self._saved[text] = name  # the most recently used is last
        slot.text, slot.saved = text, True


def as_text(messages: Messages) -> str:
    """Return a conversation as one text. Equal prefixes mean equal prefixes of the prompt."""
    return "".join(f"\x00{message.get('role')}\x00{message.get('content')}" for message in messages)


def truncate(messages: Messages, length: int) -> list[Mapping[str, Any]]:
    """Return the messages that correspond to the first `length` characters of `as_text`."""
    truncated: list[Mapping[str, Any]] = []
    for message in messages:
        content, space = (
            str(message.get("content")),
            length - len(as_text(truncated)) - len(str(message.get("role"))) - 2,
        )
        if space <= 0:
            break
        truncated.append({**message, "content": content[:space]})
    return truncated


def common_prefix_length(first: str, second: str) -> int:
    """Return the length of the longest common prefix."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        is_equal = first[low:middle] == second[low:middle]
        low, high = (middle, high) if is_equal else (low, middle - 1)
    return low
