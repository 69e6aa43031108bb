"""Run benchmarks: `python -m benchmarks [PART …] [--quick]`, from the root of the repository.

Without parts, measure all of them (about a quarter of an hour on two cores) and write
docs/benchmarks.md. The first run creates the environment of the rivals from requirements/bench.txt.
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
    held_deliberations,
    microbenchmarks,
    nodes,
    results,
    scaling,
    server_steps,
    soak,
    tools,
)
from benchmarks.comparison import RIVALS, compare, measure_streamed
from benchmarks.machine import NOT_COUNTED
from benchmarks.pages import measure_pages
from benchmarks.readers import measure_readers
from benchmarks.report import write
from benchmarks.repository_transfer import measure_transfer
from benchmarks.server import DEFERRED_GRAPH, run_server
from benchmarks.story_contexts import SERVER, measure_contexts
from benchmarks.stub import running_stub
from benchmarks.tenants import measure_tenants
from benchmarks.views import measure_views
from benchmarks.workload import Case

console = Console(stderr=True, highlight=False)
_start = time.monotonic()


def _announce(line: str) -> None:
    console.print(f"[{time.monotonic() - _start:5.0f} s] {line}")


async def _text(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    names = () if args.alone else RIVALS
    async with running_stub() as stub:
        comparison = await compare(
            folder, stub, names, rounds=args.rounds, quick=args.quick, announce=_announce
        )
        return results.comparison_figures(comparison)


async def _tools(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    _announce("with tools: three seats, three turns each")
    async with running_stub() as stub, run_server(folder / "tools", stub.base_url) as app:
        result = await tools.measure(app, stub, folder, count=2 if args.quick else 6, at_once=4)
    return results.tools_figures(result)


async def _steps(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    divisor = 10 if args.quick else 1
    figures: dict[str, Any] = {}
    _announce("events, tool calls, workspaces")
    for name, step, count in (
        ("publish", microbenchmarks.measure_publish, 3000),
        ("gateway", microbenchmarks.measure_gateway, 2000),
        ("tool", microbenchmarks.measure_tool_call, 500),
        ("python", microbenchmarks.measure_python_block, 500),
        ("workspace", microbenchmarks.measure_workspace, 20),
    ):
        step_folder = folder / name
        step_folder.mkdir()
        figures[name] = results.time_figures(await step(step_folder, max(count // divisor, 5)))
    rate_folder = folder / "rate"
    rate_folder.mkdir()
    figures["tools_a_second"] = await microbenchmarks.measure_tool_rate(
        rate_folder, 2000 // divisor
    )
    async with running_stub() as stub:
        _announce("council starts, replies streamed in 64 chunks")
        async with run_server(folder / "starts", stub.base_url, DEFERRED_GRAPH) as app:
            await server_steps.measure_start(app, stub, 3)
            figures["start"] = results.time_figures(
                await server_steps.measure_start(app, stub, 30 // divisor + 2)
            )
            case = Case(50, 64, seconds=4.0 / divisor, generations=1)
            figures["streamed"] = results.run_figures(
                await measure_streamed(app, stub, case, chunks=64)
            )
        _announce("tools and sessions of the agent service")
        async with run_server(
            folder / "agents", stub.base_url, DEFERRED_GRAPH | agents.SETTINGS
        ) as app:
            await stub.set(delay_ms=0)
            figures["agents"] = await agents.measure(app, 500 // divisor, 1000 // divisor)
            figures["cancelled"] = results.time_figures(
                await agents.measure_cancellation(app, stub, 100 // divisor)
            )
        _announce("the projection into the graph")
        figures["projection"] = await server_steps.measure_projection(folder, stub, 300 // divisor)
        _announce("recovery after kill -9 of all processes")
        kill_folders = [folder / f"k{number}" for number in range(1 if args.quick else 2)]
        for kill_folder in kill_folders:
            kill_folder.mkdir()
        figures["recovery"] = results.recovery_figures(
            [await server_steps.measure_recovery(each, stub) for each in kill_folders]
        )
    return figures


async def _held_deliberations(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    counts = (10, 50) if args.quick else (10, 100, 1000)
    _announce(f"{', '.join(map(str, counts))} deliberations held at once")
    async with running_stub() as stub:
        return results.held_figures(*await held_deliberations.measure(folder, stub, counts))


async def _contexts(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    stories = 100 if args.quick else 1430  # of 70 nodes each
    _announce(
        f"contexts from a graph of {stories} stories"
        + ("" if args.neo4j else f"; set {SERVER} to measure Neo4j too")
    )
    count = 20 if args.quick else 200
    return {"stores": await measure_contexts(folder, stories, count, args.neo4j)}


async def _commands(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    _announce("commands without Ray")
    return await commands.measure(folder, 1 if args.quick else 3)


async def _transfer(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    megabytes = 5 if args.quick else 100
    _announce(f"a repository of {megabytes} MB to a host on another disk")
    return await measure_transfer(folder, megabytes, 1 if args.quick else 3)


async def _readers(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    count, deliberations = (100, 40) if args.quick else (1000, 400)
    _announce(f"{count} readers of the board while councils run")
    async with running_stub() as stub:
        return await measure_readers(folder, stub, count, deliberations)


async def _pages(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    stories, count = (30, 100) if args.quick else (1000, 1000)
    _announce(f"{count} browsers with an open board of {stories} stories")
    async with running_stub() as stub:
        return await measure_pages(folder, stub, stories, count)


async def _tenants(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    queued, count = (100, 3) if args.quick else (1000, 20)
    _announce(f"a tenant with {queued} queued deliberations, and another with {count}")
    async with running_stub() as stub:
        return await measure_tenants(folder, stub, queued, count)


async def _views(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    del args
    _announce("the views of the page")
    async with running_stub() as stub:
        return await measure_views(folder, stub.base_url)


async def _scaling(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    _announce("one node and two with limited cores, compared with the capacity model")
    return await scaling.measure(folder, seconds=5.0 if args.quick else 20.0, announce=_announce)


async def _cluster(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    count, seconds = (3, 3.0) if args.quick else (20, 20.0)
    return await cluster.measure(folder, workspace_count=count, seconds=seconds, announce=_announce)


async def _nodes(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    _announce("a council of eight with tools, on one node and on four")
    return await nodes.measure(folder=folder, rounds=1 if args.quick else 2, announce=_announce)


async def _soak(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    text, with_tools = (100, 6) if args.quick else (1000 * args.times, 20 * args.times)
    result = await soak.run_soak(
        folder, text=text, with_tools=with_tools, at_once=64, announce=_announce
    )
    for line in result.problems:
        console.print(f"  {line}", style="red")
    return result.document()


Part = Callable[[Path, argparse.Namespace], Awaitable[dict[str, Any]]]
PARTS: dict[str, Part] = {
    "text": _text,
    "tools": _tools,
    "steps": _steps,
    "held": _held_deliberations,
    "contexts": _contexts,
    "commands": _commands,
    "transfer": _transfer,
    "readers": _readers,
    "pages": _pages,
    "tenants": _tenants,
    "views": _views,
    "scaling": _scaling,
}
OPTIONAL_PARTS: dict[str, Part] = {"soak": _soak, "cluster": _cluster, "nodes": _nodes}
"""Parts that run only if they are named on the command line."""


async def _measure(args: argparse.Namespace) -> int:
    document = results.load()
    run_info = results.describe_run(
        shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]]), quick=args.quick
    )
    if not run_info["counted"]:
        console.print(NOT_COUNTED, style="red")
    names = args.parts or list(PARTS)
    for name in names:
        with tempfile.TemporaryDirectory(prefix="mhb-") as folder:
            part = {**PARTS, **OPTIONAL_PARTS}[name]
            document[name] = {**await part(Path(folder), args), "run": run_info}
        results.save(document)
    into_docs = not args.quick and not args.dry
    if document.keys() & {"scaling", "tools", "nodes"}:
        _announce(f"written: {scaling.write(document, into_docs=into_docs)}")
    page = write(document, into_docs=into_docs)
    _announce(f"written: {page}")
    console.print(page.read_text(encoding="utf-8"), markup=False, soft_wrap=True)
    return 1 if "soak" in names and document["soak"]["problems"] else 0


def main() -> int:
    """Parse the command line and run the chosen parts."""
    part_names = ", ".join((*PARTS, *OPTIONAL_PARTS))
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "parts",
        nargs="*",
        metavar="PART",
        help=f"{part_names}; all but the last {len(OPTIONAL_PARTS)} by default",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="short runs that only show that it works; docs/benchmarks.md is not changed",
    )
    parser.add_argument("--alone", action="store_true", help="leave out the rivals")
    parser.add_argument(
        "--rounds", type=int, default=3, help="rounds over all systems; 3 by default"
    )
    parser.add_argument(
        "--times",
        type=int,
        default=1,
        help="multiply the soak's 1,000 deliberations and 20 with tools; 1 by default",
    )
    parser.add_argument(
        "--dry", action="store_true", help="write the report next to the results, not into docs/"
    )
    args = parser.parse_args()
    args.neo4j = os.environ.pop(SERVER, "")  # Moothall has no such setting
    if unknown := set(args.parts) - {*PARTS, *OPTIONAL_PARTS}:
        parser.error(f"unknown part {', '.join(sorted(unknown))}; the parts are {part_names}")
    return uvloop.run(_run_until_signal(args))


async def _run_until_signal(args: argparse.Namespace) -> int:
    """Run until done or SIGTERM, which stops the server in its own session, as Ctrl-C does."""
    task = asyncio.ensure_future(_measure(args))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


if __name__ == "__main__":
    sys.exit(main())
