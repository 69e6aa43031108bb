"""Measure the time and size of each view of the page, and how long it blocks the event loop.

The measurement runs in a separate process, on the event loop of the standard library, because its
callbacks can be timed: `python -m benchmarks.views FOLDER MODEL_URL` prints the figures as JSON.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import random
import statistics
import sys
import time
import traceback
from asyncio import events
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from benchmarks.machine import describe
from benchmarks.microbenchmarks import Times
from moothall.api.web.rendering import MAX_DIFF_LINES
from moothall.app.bus import open_log
from moothall.app.server import open_app
from moothall.concurrency import leaves
from moothall.domain.codec import dump
from moothall.domain.event import EventType
from moothall.domain.evidence import EvidenceLevel
from moothall.domain.ids import LOCAL, TaskKey
from moothall.domain.outcome import DeliberationStatus, Outcome, Result
from moothall.domain.task import Deliberation
from moothall.settings import load_settings
from moothall.stories.board import Board
from moothall.stories.coach import StoryDraft
from moothall.telemetry.tracing import write_of

_ROOT = Path(__file__).parents[1]
_LARGE, _SEAT = "task-large", "agent-dev-001"
_FILES, _LINES = 100, 760
_ROUNDS = 20
_STORIES, _AT_ONCE = 1000, 50
"""The number of stories in addition to those of the demo project, and of concurrent writes."""
_IDLE_SHARE, _IDLE_SECONDS, _MAX_IDLE_SECONDS = 0.05, 1.0, 120.0
"""A server is idle once it has used at most this share of a core for this number of seconds."""


async def measure_views(folder: Path, model_url: str) -> dict[str, Any]:
    """Measure the views of a demo project in a separate process."""
    data_dir = folder / "views"
    await _run_script(_ROOT / "scripts" / "demo_data.py", data_dir)
    return dict(json.loads(await _run_script("-m", "benchmarks.views", data_dir, model_url)))


async def _run_script(*args: object) -> bytes:
    process = await asyncio.create_subprocess_exec(
        sys.executable, *map(str, args), cwd=_ROOT, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"{args} failed with exit code {process.returncode}")
    return output


def _large_diff() -> str:
    """Return a diff of 5 MB: new Python files with highlighted syntax in each line."""
    generator = random.Random(7)  # noqa: S311 - no secret
    lines = []
    for number in range(_FILES):
        path = f"src/module_{number}.py"
        lines += [
            f"diff --git a/{path} b/{path}",
            "new file mode 100644",
            "--- /dev/null",
            f"+++ b/{path}",
            f"@@ -0,0 +1,{_LINES} @@",
        ]
        lines += [
            f"+    value_{line} = compute({line}, 'text {generator.random()}')  # why {line}"
            for line in range(_LINES)
        ]
    return "\n".join(lines) + "\n"


async def _write_large_run(data_dir: Path) -> int:
    """Write a run whose winner has a large diff. Return the size of the diff."""
    diff = _large_diff()
    now = datetime.now(UTC)
    deliberation = Deliberation(
        TaskKey(_LARGE), "Count amounts in cents", "dev", "tests_then_verify", (_SEAT,), 1,
        now + timedelta(days=1), 12,
    )  # fmt: skip
    result = Result(1, _SEAT, "dev", 0.9, ("the tests passed",), passed_gates=True, proven=True)
    outcome = Outcome(
        deliberation.task_id,
        DeliberationStatus.COMPLETED,
        role="dev",
        agent_count=1,
        winner_id=_SEAT,
        results=(replace(result, diff=diff, evidence_level=EvidenceLevel.PROVEN),),
        evidence_level=EvidenceLevel.PROVEN,
    )
    request = dump(deliberation) | {"request_digest": "", "num_agents": 1}
    async with open_log(load_settings(data_dir=data_dir), lambda _: None) as bus:
        for kind, data in (
            (EventType.DELIBERATION_REQUESTED, request),
            (EventType.DELIBERATION_STARTED, {"seats": [_SEAT]}),
            (EventType.DELIBERATION_DECIDED, dump(outcome)),
        ):
            await bus.publish(write_of(deliberation, kind, data, ordinal="large"))
    return len(diff)


async def _write_stories(data_dir: Path) -> None:
    """Write stories, each refined and commented on."""
    async with open_log(load_settings(data_dir=data_dir), lambda _: None) as bus:
        board, slots = Board(bus), asyncio.Semaphore(_AT_ONCE)

        async def write_story(number: int) -> None:
            draft = StoryDraft(
                f"Export the invoices of month {number} as CSV",
                "As an accountant, I want a CSV file, so that I can book.",
                ("Given a month, when it is exported, then there is a file",),
            )
            async with slots:
                card = await board.create(draft, LOCAL, key=f"month {number}")
                await board.move(card.story.id, "refine", LOCAL)
                for text in ("Mind the old files.", "And the umlauts.", "Ask the accountants."):
                    await board.comment(card.story.id, text, LOCAL, key=text)

        await asyncio.gather(*(write_story(number) for number in range(_STORIES)))


async def _wait_idle() -> float:
    """Wait until the server has read the log. Return the CPU milliseconds that it used."""
    start = time.process_time()
    async with asyncio.timeout(_MAX_IDLE_SECONDS):
        while True:
            before = time.process_time()
            await asyncio.sleep(_IDLE_SECONDS)
            if time.process_time() - before <= _IDLE_SECONDS * _IDLE_SHARE:
                return (time.process_time() - start) * 1000


@contextmanager
def _timed_callbacks() -> Iterator[list[float]]:
    """Yield a list that receives the CPU milliseconds of every callback of the event loop."""
    callbacks: list[float] = []
    original = events.Handle._run  # noqa: SLF001 - the loop has no public hook

    def timed(handle: events.Handle) -> None:
        start = time.thread_time()
        original(handle)
        callbacks.append((time.thread_time() - start) * 1000)

    events.Handle._run = timed  # type: ignore[method-assign,assignment] # noqa: SLF001
    try:
        yield callbacks
    finally:
        events.Handle._run = original  # type: ignore[method-assign] # noqa: SLF001


def _fetch(connection: http.client.HTTPConnection, path: str, cookie: str) -> tuple[float, int]:
    """Return the milliseconds of a request and the bytes of the body as sent."""
    start = time.perf_counter()
    connection.request("GET", path, headers={"Cookie": cookie, "Accept-Encoding": "gzip"})
    response = connection.getresponse()
    body = response.read()
    if response.status != http.client.OK:
        raise RuntimeError(f"{path} failed with status {response.status}: {body[:500]!r}")
    return (time.perf_counter() - start) * 1000, len(body)


def _sign_in(connection: http.client.HTTPConnection, token: str) -> str:
    headers = {
        "Content-Type": "application/x-www-form-urlencoded",
        "Origin": f"http://{connection.host}:{connection.port}",
    }
    connection.request("POST", "/sign-in", urlencode({"token": token}), headers)
    response = connection.getresponse()
    response.read()
    return str(response.headers["Set-Cookie"]).partition(";")[0]


async def _measure(data_dir: Path, model_url: str) -> dict[str, Any]:
    size = await _write_large_run(data_dir)
    await _write_stories(data_dir)
    settings = load_settings(
        data_dir=data_dir,
        llm={"base_url": model_url},
        web={"port": 0},
        grpc={"port": 0},
        metrics={"port": 0},
        ray={"mode": "process"},
    )
    async with open_app(settings, lambda _: None, serving=True):
        await _wait_idle()  # the first start writes the graph
    async with open_app(settings, lambda _: None, serving=True) as app:
        start_cpu_ms = await _wait_idle()
        cards = await Board(app.bus).cards(LOCAL)
        story = next(card for card in cards if card.position.state == "test")
        review = str(story.check.data["task_id"] if story.check else "")
        paths = {
            f"board of {len(cards):,} stories": "/",
            "story in review": f"/stories/{story.story.id}",
            "new story": "/stories/new",
            "council with a change of 30 files": f"/councils/{review}",
            f"council with a diff of {size / 1e6:.1f} MB": f"/councils/{_LARGE}",
            f"{MAX_DIFF_LINES} lines of that diff": f"/councils/{_LARGE}/lines?rank=1&file=",
            "runs": "/runs",
            "insights": "/insights",
            "tools": "/system/tools",
            "budgets": "/system/budgets",
        }
        connection = http.client.HTTPConnection("127.0.0.1", app.http_port)
        token = (data_dir / "token").read_text(encoding="utf-8").strip()
        cookie = await asyncio.to_thread(_sign_in, connection, token)
        views = {}
        for name, path in paths.items():
            times, sizes, cpu_times, longest = [], [], [], []
            for number in range(_ROUNDS):
                # another file each time, so that no cache has it
                full_path = f"{path}{number + 2}" if path.endswith("=") else path
                with _timed_callbacks() as callbacks:
                    cpu_start = time.process_time()
                    milliseconds, sent_bytes = await asyncio.to_thread(
                        _fetch, connection, full_path, cookie
                    )
                    cpu_times.append((time.process_time() - cpu_start) * 1000)
                times.append(milliseconds)
                sizes.append(sent_bytes)
                longest.append(max(callbacks))
            figures = Times(tuple(value / 1000 for value in times[1:]))
            views[name] = {
                "first": times[0],
                "cpu_first": cpu_times[0],
                "p50": figures.p50,
                "p95": figures.p95,
                "bytes": max(sizes),
                "cpu": statistics.median(cpu_times[1:]),
                "callback_first": longest[0],
                "callback": max(longest[1:]),
            }
        machine = describe()
        return {
            "views": views,
            "start_cpu_ms": start_cpu_ms,
            "rounds": _ROUNDS,
            "load": os.getloadavg()[0],
            "processor": f"{machine['cores']} cores ({machine['processor']})",
        }


if __name__ == "__main__":
    try:
        print(json.dumps(asyncio.run(_measure(Path(sys.argv[1]), sys.argv[2]))))
    except BaseExceptionGroup as group:
        for error in leaves(group):  # the cause: a group prints only ten levels
            traceback.print_exception(error)
        sys.exit(1)
