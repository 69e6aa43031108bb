"""The one command: `python -m benchmarks [PART …] [--quick]`, from the repository's root.

Without parts it measures everything (about a quarter of an hour on two cores) and writes
docs/benchmarks.md. The rivals' environment is made at the first run, from requirements/bench.txt.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop
from rich.console import Console

from benchmarks import (
    agents,
    cluster,
    commands,
    growth,
    micro,
    nodes,
    results,
    scaling,
    soak,
    steps,
    tools,
)
from benchmarks.contest import RIVALS, contest, streamed
from benchmarks.lending import transfer
from benchmarks.machine import NOT_COUNTED
from benchmarks.packs import SERVER, packs
from benchmarks.pages import pages
from benchmarks.readers import readers
from benchmarks.report import write
from benchmarks.served import GRAPH_LATER, served
from benchmarks.stub import running_stub
from benchmarks.tenants import tenants
from benchmarks.views import views
from benchmarks.workload import Case

console = Console(stderr=True, highlight=False)
_began = time.monotonic()


def _announce(line: str) -> None:
    console.print(f"[{time.monotonic() - _began:5.0f} s] {line}")


async def _text(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    names = () if args.alone else RIVALS
    async with running_stub() as stub:
        found = await contest(
            folder, stub, names, rounds=args.rounds, quick=args.quick, announce=_announce
        )
        return results.of_contest(found)


async def _tools(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    _announce("with tools: three seats, three turns each")
    async with running_stub() as stub, served(folder / "tools", stub.base_url) as app:
        work = await tools.work(app, stub, folder, count=2 if args.quick else 6, at_once=4)
    return results.of_tools(work)


async def _steps(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    share = 10 if args.quick else 1
    found: dict[str, Any] = {}
    _announce("events, tool calls, workspaces")
    for name, step, count in (
        ("persisted", micro.persisted, 3000),
        ("guard", micro.guard, 2000),
        ("tool", micro.tool_round_trip, 500),
        ("python", micro.python_round_trip, 500),
        ("workspace", micro.workspace_ready, 20),
    ):
        place = folder / name
        place.mkdir()
        found[name] = results.of_times(await step(place, max(count // share, 5)))
    place = folder / "rate"
    place.mkdir()
    found["tools_a_second"] = await micro.tool_rate(place, 2000 // share)
    async with running_stub() as stub:
        _announce("councils placed, answers in 64 pieces")
        async with served(folder / "placed", stub.base_url, GRAPH_LATER) as app:
            await steps.placed(app, stub, 3)
            found["placed"] = results.of_times(await steps.placed(app, stub, 30 // share + 2))
            case = Case(50, 64, seconds=4.0 / share, generations=1)
            found["streamed"] = results.of_run(await streamed(app, stub, case, 64))
        _announce("tools and sessions of the agent service")
        async with served(folder / "agents", stub.base_url, GRAPH_LATER | agents.SETTINGS) as app:
            await stub.set(delay_ms=0)
            found["agents"] = await agents.measure(app, 500 // share, 1000 // share)
            found["cancelled"] = results.of_times(await agents.cancelled(app, stub, 100 // share))
        _announce("the graph's projection, told apart")
        found["projected"] = await steps.projected(folder, stub, 300 // share)
        _announce("kill -9 of everything, and up again")
        places = [folder / f"k{number}" for number in range(1 if args.quick else 2)]
        for place in places:
            place.mkdir()
        found["resumed"] = results.of_resumed(
            [await steps.resumed(place, stub) for place in places]
        )
    return found


async def _growth(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    counts = (10, 50) if args.quick else (10, 100, 1000)
    _announce(f"growth: {', '.join(map(str, counts))} deliberations held at once")
    async with running_stub() as stub:
        return results.of_growth(*await growth.grow(folder, stub, counts))


async def _packs(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    stories = 100 if args.quick else 1430  # of 70 nodes each
    _announce(
        f"packs from a graph of {stories} stories"
        + ("" if args.neo4j else f"; of Neo4j too where {SERVER} names one")
    )
    return {"stores": await packs(folder, stories, 20 if args.quick else 200, args.neo4j)}


async def _commands(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    _announce("commands that need no Ray")
    return await commands.commands(folder, 1 if args.quick else 3)


async def _lending(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    megabytes = 5 if args.quick else 100
    _announce(f"a repository of {megabytes} MB to a host on another disk")
    return await transfer(folder, megabytes, 1 if args.quick else 3)


async def _readers(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    count, deliberations = (100, 40) if args.quick else (1000, 400)
    _announce(f"{count} readers of the board while councils run")
    async with running_stub() as stub:
        return await readers(folder, stub, count, deliberations)


async def _pages(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    stories, count = (30, 100) if args.quick else (1000, 1000)
    _announce(f"{count} browsers that have a board of {stories} stories open")
    async with running_stub() as stub:
        return await pages(folder, stub, stories, count)


async def _tenants(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    queued, count = (100, 3) if args.quick else (1000, 20)
    _announce(f"a tenant with {queued} queued deliberations, and another with {count}")
    async with running_stub() as stub:
        return await tenants(folder, stub, queued, count)


async def _views(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    del args
    _announce("the views of the page")
    async with running_stub() as stub:
        return await views(folder, stub.base_url)


async def _scaling(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    _announce("one node and two, each part with its slice of a core, beside the model of capacity")
    return await scaling.measure(folder, seconds=5.0 if args.quick else 20.0, announce=_announce)


async def _cluster(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    opened, seconds = (3, 3.0) if args.quick else (20, 20.0)
    return await cluster.measure(folder, opened=opened, seconds=seconds, announce=_announce)


async def _nodes(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    _announce("a council of eight with tools, on one node and on four")
    return await nodes.measure(folder=folder, rounds=1 if args.quick else 2, announce=_announce)


async def _soak(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    text, with_tools = (100, 6) if args.quick else (1000 * args.times, 20 * args.times)
    found = await soak.soak(
        folder, text=text, with_tools=with_tools, at_once=64, announce=_announce
    )
    for line in found.problems:
        console.print(f"  {line}", style="red")
    return found.document()


Part = Callable[[Path, argparse.Namespace], Awaitable[dict[str, Any]]]
PARTS: dict[str, Part] = {
    "text": _text,
    "tools": _tools,
    "steps": _steps,
    "growth": _growth,
    "packs": _packs,
    "commands": _commands,
    "lending": _lending,
    "readers": _readers,
    "pages": _pages,
    "tenants": _tenants,
    "views": _views,
    "scaling": _scaling,
}
ALONE: dict[str, Part] = {"soak": _soak, "cluster": _cluster, "nodes": _nodes}
"""What is measured only where it is named."""


async def _measure(args: argparse.Namespace) -> int:
    document = results.load()
    frame = results.frame(
        shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]]), quick=args.quick
    )
    if not frame["counted"]:
        console.print(NOT_COUNTED, style="red")
    chosen = args.parts or list(PARTS)
    for name in chosen:
        with tempfile.TemporaryDirectory(prefix="mhb-") as folder:
            part = {**PARTS, **ALONE}[name]
            document[name] = {**await part(Path(folder), args), "frame": frame}
        results.save(document)
    into_docs = not args.quick and not args.dry
    if document.keys() & {"scaling", "tools", "nodes"}:
        _announce(f"written: {scaling.write(document, into_docs=into_docs)}")
    written = write(document, into_docs=into_docs)
    _announce(f"written: {written}")
    console.print(written.read_text(encoding="utf-8"), markup=False, soft_wrap=True)
    return 1 if "soak" in chosen and document["soak"]["problems"] else 0


def main() -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "parts",
        nargs="*",
        metavar="PART",
        help=f"{', '.join((*PARTS, *ALONE))}; all but the last {len(ALONE)} by default",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="short runs, to see that it works; docs/benchmarks.md stays as it is",
    )
    parser.add_argument("--alone", action="store_true", help="without the rivals")
    parser.add_argument("--rounds", type=int, default=3, help="of all contenders; 3 by default")
    parser.add_argument(
        "--times",
        type=int,
        default=1,
        help="how many times the soak's 1,000 deliberations and 20 with tools",
    )
    parser.add_argument(
        "--dry", action="store_true", help="write the report beside the results, not into docs/"
    )
    args = parser.parse_args()
    args.neo4j = os.environ.pop(SERVER, "")  # what is measured knows no such setting
    if unknown := set(args.parts) - {*PARTS, *ALONE}:
        parser.error(
            f"unknown part {', '.join(sorted(unknown))}; there are {', '.join((*PARTS, *ALONE))}"
        )
    return uvloop.run(_run_until_signal(args))


async def _run_until_signal(args: argparse.Namespace) -> int:
    """SIGTERM ends it as Ctrl-C does: the server is in a session of its own and would stay."""
    task = asyncio.ensure_future(_measure(args))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


if __name__ == "__main__":
    sys.exit(main())
