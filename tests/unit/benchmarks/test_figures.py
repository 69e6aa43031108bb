from __future__ import annotations

import asyncio
import math
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.bar_chart import draw_bars
from benchmarks.load import Run, run_concurrent, run_sequential
from benchmarks.report import _left_out, format_figure, format_table, merge_pages, replace_rows
from benchmarks.scaling import cores_with_tools
from benchmarks.soak import slope
from benchmarks.stub import running_stub
from benchmarks.targets import targets
from moothall.config import LlmSettings
from moothall.errors import MoothallError
from moothall.llm.client import open_model
from moothall.testing.server_contract import FINISH, ask


class Work:
    """A deliberation that takes a moment, with a clock of its CPU time."""

    def __init__(self) -> None:
        self.done = 0
        self.under_way = 0
        self.peak = 0

    async def operation(self) -> None:
        self.under_way += 1
        self.peak = max(self.peak, self.under_way)
        await asyncio.sleep(0.001)
        self.under_way -= 1
        self.done += 1

    def probe(self) -> Mapping[str, float]:
        return {"host": self.done * 0.002, "caller": 1.0 * self.done}


async def test_sequential_runs_count_every_call_and_only_the_systems_cpu() -> None:
    work = Work()
    run = await run_sequential(work.operation, 5, work.probe)
    assert (run.count, work.done, work.peak) == (5, 5, 1)
    assert run.cpu_ms == pytest.approx(2.0), "the caller is not part of the system"
    assert Run.read(run.document()) == run


async def test_concurrent_runs_measure_the_steady_middle() -> None:
    work = Work()
    run = await run_concurrent(work.operation, 8, 0.02, work.probe)
    assert work.peak == 8
    assert run.count == len(run.waits)
    assert 2 * 8 <= run.count <= work.done - 8, "the first call of each caller is excluded"
    assert run.cpu_ms == pytest.approx(2.0, rel=0.5)


@pytest.mark.e2e  # the stub's process
async def test_the_stub_works_with_the_client() -> None:
    async with running_stub() as stub, open_model(LlmSettings(), stub.base_url) as model:
        assert await model.reply_mode() == "json"
        replies = [await model.chat(ask(schema=FINISH)) for _ in range(2)]
        assert replies[0].text != replies[1].text, "there is always something to review"
        await stub.set(chunks=7)
        pieces: list[str] = []
        reply = await model.chat(ask(schema=FINISH), pieces.append)
        assert "".join(pieces) == reply.text
        stats = await stub.stats()
        assert stats["by_schema"] == {"text": 1, "probe": 1, "turn": 3}, (
            "native calls are requested first"
        )
        assert stats["in_flight"] == 0
        assert (await stub.set(reset=1))["calls"] == 0


@pytest.mark.e2e  # the stub's process
async def test_the_stub_holds_replies_until_released() -> None:
    async with running_stub() as stub, open_model(LlmSettings(), stub.base_url) as model:
        await stub.set(hold=1)
        with pytest.raises(MoothallError):
            await model.chat(ask(seconds=0.3))
        calls = (await stub.stats())["calls"]
        waiting = asyncio.ensure_future(model.reply_mode())
        while (await stub.stats())["calls"] == calls:
            await asyncio.sleep(0.01)
        assert not waiting.done()
        await stub.set(hold=0)
        assert await waiting == "json"


def test_targets_report_whether_they_were_reached() -> None:
    case = {"moothall": {"rate": 200.0, "cpu_ms": 2.4, "wait": 0.2}}
    document = {
        "text": {"phases": 3, "cases": {"50 ms, 64 at once": case, "50 ms, 1 at once": case}},
        "commands": {"python -c pass": 9.0, "import moothall": 0.1, "moothall config": 0.3},
    }
    verdicts = {target.name.partition(",")[0]: target.verdict for target in targets(document)}
    assert verdicts["deliberations a second"] == "yes"
    assert verdicts["CPU of a deliberation in all processes"] == "yes, with the goal"
    assert verdicts["wall time by critical path"] == "**no**"
    assert verdicts["slowest command without Ray"] == "yes"
    assert "tool call" not in verdicts, "unmeasured figures are not claimed"


def test_tables_figures_and_slopes_are_computed() -> None:
    assert format_table(("a", "b"), [("x", 1)]) == "| a | b |\n|---|---:|\n| x | 1 |"
    assert [format_figure(value) for value in (1234.5, 12.34, 0.01234)] == [
        "1,234",
        "12.3",
        "0.0123",
    ]
    assert slope([5, 5, 5]) == 0
    assert slope([1, 3, 5, 7]) == pytest.approx(2)


def test_a_chart_is_well_formed_svg(tmp_path: Path) -> None:
    picture = tmp_path / "bars.svg"
    picture.write_text(
        draw_bars("A < B & C", {"Moothall": 3.0, "others": 0.0}, "/s"), encoding="utf-8"
    )
    assert len(ET.parse(picture).getroot().findall("{http://www.w3.org/2000/svg}rect")) == 2  # noqa: S314 - our own


_PAGE = """# Benchmarks

of a whole run

## Targets

much

## With tools

1

## How to run the benchmarks

so
"""


_WHOLE = """# Benchmarks

Written on Monday.

## Targets

|  | required | goal | measured | reached |
|---|---:|---:|---:|---:|
| rate | ≥ 150 |  | 160 | yes |
| persisted, p50 | ≤ 1 ms |  | 0.1 ms | yes |

A note.

## With tools

1

## Concurrent deliberations

2

## How to run the benchmarks

So.

Runs: `python -m benchmarks` (2026-11-01). Moothall with ray 1. Rivals: openai 2.
"""
_PART = """# Benchmarks

Written on Friday.

## Targets

|  | required | goal | measured | reached |
|---|---:|---:|---:|---:|
| rate | ≥ 150 |  | 140 | **no** |
| idle |  | ≤ 1 % | 2 % | no |

Another note.

## With tools

3

## How to run the benchmarks

So it is.

Runs: `python -m benchmarks tools` (2026-11-09). Moothall with ray 2. Rivals: .
"""


def test_measuring_a_part_again_renews_the_whole_report() -> None:
    page = merge_pages(_WHOLE, _PART)
    assert "Written on Friday. Sections that this run did not measure are older" in page
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    assert rows[1:] == [
        "| rate | ≥ 150 |  | 140 | **no** |",
        "| persisted, p50 | ≤ 1 ms |  | 0.1 ms | yes |",
        "| idle |  | ≤ 1 % | 2 % | no |",
    ]
    assert (
        "\n\nAnother note.\n\n## With tools\n\n3\n\n## Concurrent deliberations\n\n2\n\n"
        "## How to run the benchmarks" in page
    )
    runs = "`python -m benchmarks tools` (2026-11-09), `python -m benchmarks` (2026-11-01)"
    assert page.endswith(f"So it is.\n\nRuns: {runs}. Moothall with ray 2. Rivals: openai 2.\n")
    assert merge_pages(page, _PART) == page


def test_unmeasured_cpu_figures_are_not_claimed() -> None:
    case = {"moothall": {"rate": 200.0, "cpu_ms": math.nan, "wait": 0.2}}
    cases = {"50 ms, 64 at once": case, "50 ms, 1 at once": case}
    names = [target.name for target in targets({"text": {"phases": 3, "cases": cases}})]
    assert "deliberations a second, 64 at once, 50 ms" in names
    assert "CPU of a deliberation in all processes, 64 at once" not in names


def test_a_system_that_did_not_run_is_named_with_the_reason() -> None:
    text = {"left_out": {"restate": "npm is missing; install Node.js with npm"}}
    assert _left_out(text) == "Restate did not run: npm is missing; install Node.js with npm."
    assert not _left_out({})


def test_the_cores_for_tools_follow_from_the_measurements() -> None:
    def document(single: float, concurrent: float) -> dict[str, object]:
        return {"tools": {"single": {"cpu_ms": single}, "concurrent": {"cpu_ms": concurrent}}}

    assert cores_with_tools(document(6900, 8100)) == "399 to 469 cores"
    assert cores_with_tools(document(1000, math.nan)) == "not measured"
    page = "| bus | 0.1 |\n| tools | 110 cores |\n\ntext\n"
    assert replace_rows(page, {"tools": "| tools | 400 cores |"}) == page.replace("110", "400")


def test_a_separately_measured_part_stays_in_the_page() -> None:
    part = (
        "# Benchmarks\n\nof a part\n\n## Targets\n\nnothing\n\n## In a cluster\n\n2\n\n"
        "## How to run the benchmarks\n\nelse\n"
    )
    over = merge_pages(_PAGE, part)
    assert over == _PAGE.replace("## How", "## In a cluster\n\n2\n\n## How")
    assert merge_pages(over, part.replace("\n2\n", "\n3\n")) == over.replace("\n2\n", "\n3\n")
    full_page = _PAGE.replace("1", "4").replace("so", "anew")
    assert merge_pages(_PAGE, full_page) == full_page
    assert merge_pages(over, full_page) == full_page.replace(
        "## How", "## In a cluster\n\n2\n\n## How"
    )
