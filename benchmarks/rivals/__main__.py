"""A rival as a process of its own: says `ready`, then runs what it is told, a JSON object a line,
and answers with a line each.

{"at_once": 1, "count": 10}     one after the other
{"at_once": 64, "seconds": 8, "generations": 2}   side by side, measured in the middle
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import resource
import sys
from contextlib import suppress
from pathlib import Path

import uvloop

from benchmarks.accounting import process_seconds
from benchmarks.load import in_turn, side_by_side

RIVALS = {
    "aiohttp": "benchmarks.rivals.plain:open_aiohttp",
    "openai": "benchmarks.rivals.plain:open_openai",
    "langgraph": "benchmarks.rivals.graph:open_graph",
    "langgraph-sqlite": "benchmarks.rivals.graph:open_durable_graph",
    "autogen-core": "benchmarks.rivals.autogen:open_autogen",
    "restate": "benchmarks.rivals.restate:open_restate",
}


def _cpu() -> dict[str, float]:
    """Return the CPU seconds of this process and of the servers that it started."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    servers = 0.0
    for children in Path("/proc/self/task").glob("*/children"):
        for pid in children.read_text(encoding="ascii").split():
            with suppress(ProcessLookupError):
                servers += process_seconds(int(pid))
    return {"process": used.ru_utime + used.ru_stime, "server": servers}


async def _serve(name: str, url: str) -> None:
    module, _, function = RIVALS[name].partition(":")
    loop = asyncio.get_running_loop()
    async with getattr(importlib.import_module(module), function)(url) as act:
        await act()
        print("ready", flush=True)
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            requested = json.loads(line)
            if requested["at_once"] == 1:
                run = await in_turn(act, requested["count"], _cpu)
            else:
                run = await side_by_side(
                    act,
                    requested["at_once"],
                    requested["seconds"],
                    _cpu,
                    generations=requested["generations"],
                )
            print(json.dumps(run.document()), flush=True)


if __name__ == "__main__":
    logging.disable(logging.INFO)
    uvloop.run(_serve(sys.argv[1], sys.argv[2]))
