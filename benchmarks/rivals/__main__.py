"""The process of a rival. It prints `ready`, and then reads a JSON object a line from stdin, runs
the case, and prints the result as a line of JSON.

    {"at_once": 1, "count": 10}     sequential
    {"at_once": 64, "seconds": 8, "generations": 2}     concurrent, without start and end
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
from benchmarks.load import run_concurrent, run_sequential

RIVALS = {
    "aiohttp": "benchmarks.rivals.direct_clients:open_aiohttp",
    "openai": "benchmarks.rivals.direct_clients:open_openai",
    "langgraph": "benchmarks.rivals.langgraph:open_graph",
    "langgraph-sqlite": "benchmarks.rivals.langgraph:open_durable_graph",
    "autogen-core": "benchmarks.rivals.autogen:open_autogen",
    "restate": "benchmarks.rivals.restate:open_restate",
}


def _read_cpu() -> dict[str, float]:
    """Return the CPU seconds of this process and of the servers that it started."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    servers = 0.0
    for children in Path("/proc/self/task").glob("*/children"):
        for pid in children.read_text(encoding="ascii").split():
            with suppress(ProcessLookupError):
                servers += process_seconds(int(pid))
    return {"process": usage.ru_utime + usage.ru_stime, "server": servers}


async def _serve(name: str, url: str) -> None:
    module, _, function = RIVALS[name].partition(":")
    loop = asyncio.get_running_loop()
    async with getattr(importlib.import_module(module), function)(url) as deliberate:
        await deliberate()
        print("ready", flush=True)
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            request = json.loads(line)
            if request["at_once"] == 1:
                run = await run_sequential(deliberate, request["count"], _read_cpu)
            else:
                run = await run_concurrent(
                    deliberate,
                    request["at_once"],
                    request["seconds"],
                    _read_cpu,
                    generations=request["generations"],
                )
            print(json.dumps(run.document()), flush=True)


if __name__ == "__main__":
    logging.disable(logging.INFO)
    uvloop.run(_serve(sys.argv[1], sys.argv[2]))
