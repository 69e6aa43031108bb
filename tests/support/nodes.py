"""Nodes for tests: each serves its sandboxes in this process, from its own data directory, and its
arguments are pickled.
"""

from __future__ import annotations

import asyncio
import io
import pickle
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moothall.config import Settings
from moothall.errors import WorkspaceFailed
from moothall.workspace import archive
from moothall.workspace.node_executor import Nodes
from moothall.workspace.node_sandboxes import USUAL, NodeSandboxes, Pace

_PART = 10_000


@dataclass(slots=True)
class NearbyNodes:
    """A carrier to nodes of this process.

    Attributes:
        served: the nodes by name.
        calls: how often each method was called.
        packed: how often each folder was packed.
        lost_nodes: nodes whose calls fail.
        frozen: nodes whose calls are never answered.
    """

    served: dict[str, NodeSandboxes] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    packed: Counter[str] = field(default_factory=Counter)
    lost_nodes: set[str] = field(default_factory=set)
    frozen: set[str] = field(default_factory=set)
    nodes: Nodes = field(init=False)

    async def list_nodes(self) -> Mapping[str, Any]:
        """Return the nodes by name."""
        return {name: name for name in self.served if name not in self.lost_nodes}

    async def call(self, node: Any, method: str, *arguments: Any) -> Any:
        """Call a method; everything is pickled on its way."""
        self.calls[method] += 1
        if node in self.lost_nodes:
            raise WorkspaceFailed("it is gone")
        if node in self.frozen:
            await asyncio.Event().wait()
        answer = _pickled(await getattr(self.served[node], method)(*_pickled(arguments)))
        if node in self.frozen:
            await asyncio.Event().wait()
        return answer

    @asynccontextmanager
    async def archive(self, name: str, path: Path) -> AsyncIterator[Sequence[Any]]:
        """Provide the archive in parts."""
        self.packed[name] += 1
        target = io.BytesIO()
        await asyncio.to_thread(archive.pack, path, target)
        data = target.getvalue()
        yield [data[at : at + _PART] for at in range(0, len(data), _PART)]


def _pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))  # noqa: S301 - our own


async def fetch(part: Any) -> bytes:
    """Return a part, which is its own reference."""
    return bytes(part)


@asynccontextmanager
async def nearby_nodes(
    folder: Path, settings: Settings, count: int, pace: Pace = USUAL
) -> AsyncIterator[NearbyNodes]:
    """Serve this many nodes, each with a data directory below `folder`."""
    carrier = NearbyNodes()
    async with AsyncExitStack() as stack:
        for number in range(count):
            node_settings = settings.model_copy(update={"data_dir": folder / f"node-{number}"})
            carrier.served[f"node-{number}"] = NodeSandboxes(node_settings, fetch, pace)
        serving = [asyncio.create_task(node.serve()) for node in carrier.served.values()]

        async def end() -> None:
            for task in serving:
                task.cancel()
            await asyncio.wait(serving)

        stack.push_async_callback(end)
        carrier.nodes = await stack.enter_async_context(Nodes(carrier, "host", pace))
        yield carrier
