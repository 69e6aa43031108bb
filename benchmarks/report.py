"""Write docs/benchmarks.md and its chart from the results."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.bar_chart import draw_bars
from benchmarks.comparison import MOOTHALL, RESTATE, SYNCED
from benchmarks.machine import NOT_COUNTED
from benchmarks.results import RESULTS_FILE
from benchmarks.targets import targets

_NOTES = Path(__file__).resolve().parent / "notes.md"
"""The analysis of missed targets, written by people, which is appended to the table."""
_DOCS = Path(__file__).resolve().parent.parent / "docs"
_HEAD, _TARGETS, _INSTRUCTIONS = "", "Targets", "How to run the benchmarks"
_SEPARATE_SECTIONS = {"In a cluster", "Soak test"}  # they describe their own machine
_OLDER_SECTIONS = (
    "Sections that this run did not measure are older; the last section lists the runs."
)
_DURABILITY = """Moothall, Restate and LangGraph with SQLite resume after a crash of their processes; the others
have no persistence. A power loss or a crash of the operating system is different. By default, the
bus of Moothall passes each write to the operating system before it acknowledges it, and syncs it to
the disk at most `bus.sync_interval` (two minutes) later. A power loss can lose later writes,
including results that callers have received. "Each write synced" is `bus.sync_interval=always`: the
bus syncs a write before it acknowledges it, as Restate does with each step and LangGraph with each
checkpoint, and a power loss loses no acknowledged write ([recovery](recovery.md#a-power-loss)). Only
Moothall has ranking and budgets. Moothall and Restate have callers in other processes."""
_RUN_PATTERN = re.compile(r"`python -m benchmarks[^`]*` \(\d{4}-\d\d-\d\d\)")
_PART_NAMES = {"sandbox": "sandboxes, git and ended processes"}
_COUNTED = """CPU is counted by a control group over *all* processes: serve, host, bus, sandboxes and
tests, including ended and killed ones."""
_NAMES = {
    "moothall": "**Moothall**",
    SYNCED: "**Moothall**, each write synced",
    RESTATE: "Restate, each step synced",
    "langgraph-sqlite": "LangGraph with SQLite, each checkpoint synced",
    "langgraph": "LangGraph without persistence",
    "autogen-core": "AutoGen core without persistence",
    "openai": "the OpenAI SDK alone",
    "aiohttp": "aiohttp alone: the limit of the machine",
}


def write(document: Mapping[str, Any], *, into_docs: bool) -> Path:
    """Write the report into docs/, or next to the results, and return its path."""
    folder = _DOCS if into_docs else RESULTS_FILE.parent
    sections = [_head(document), _targets(document)]
    if "text" in document:
        by_name = _concurrent_results(document["text"])
        rates = {_plain_name(name): result["rate"] for name, result in by_name.items()}
        (folder / "benchmarks.svg").write_text(
            draw_bars("Deliberations a second, 64 at once, 50 ms a call", rates, "/s"),
            encoding="utf-8",
        )
        sections.append(_text(document["text"]))
    sections += [
        write_section(document[name])
        for name, write_section in (("tools", _tools), ("held", _held_deliberations))
        if name in document
    ]
    if "steps" in document:
        sections.append(_projection(document["steps"]))
        sections.append(_streamed(document["steps"]))
        if "agents" in document["steps"]:
            sections.append(_agents(document["steps"]))
    more_parts = {
        "contexts": _contexts,
        "commands": _commands,
        "transfer": _transfer,
        "readers": _readers,
        "pages": _pages,
        "tenants": _tenants,
        "views": _views,
        "cluster": _cluster,
        "soak": _soak,
    }
    sections += [
        write_section(document[name])
        for name, write_section in more_parts.items()
        if name in document
    ]
    sections.append(_instructions(document))
    path, page = folder / "benchmarks.md", "\n\n".join(part.strip() for part in sections) + "\n"
    if into_docs and path.exists():
        page = merge_pages(path.read_text(encoding="utf-8"), page)
    path.write_text(page, encoding="utf-8")
    return path


def merge_pages(old: str, new: str) -> str:
    """Replace the sections of a page that were measured again.

    The head, the targets and the list of runs refer to all sections, so the old rows and runs are
    merged into them. Sections in `_SEPARATE_SECTIONS` do not change them.
    """
    old_sections, new_sections = _split_sections(old), _split_sections(new)
    if old_sections.keys() <= new_sections.keys():
        return new
    *first, last = old_sections
    order = [*first, *(title for title in new_sections if title not in old_sections), last]
    if not old_sections.keys() - new_sections.keys() <= _SEPARATE_SECTIONS:
        if new_sections.keys() - {_HEAD, _TARGETS, _INSTRUCTIONS} <= _SEPARATE_SECTIONS:
            new_sections = {
                title: text for title, text in new_sections.items() if title in _SEPARATE_SECTIONS
            }
        else:
            new_sections[_HEAD] = f"{new_sections[_HEAD].rstrip()} {_OLDER_SECTIONS}\n\n"
            new_sections[_TARGETS] = _merge_rows(
                new_sections[_TARGETS], old_sections.get(_TARGETS, "")
            )
            new_sections[_INSTRUCTIONS] = _merge_runs(
                new_sections[_INSTRUCTIONS], old_sections.get(_INSTRUCTIONS, "")
            )
    return "".join({**old_sections, **new_sections}[title] for title in order).rstrip() + "\n"


def replace_rows(page: str, rows: Mapping[str, str]) -> str:
    """Replace the rows of tables in a page that have the same first cell."""
    return "\n".join(rows.get(_first_cell(line), line) for line in page.split("\n"))


def _first_cell(line: str) -> str:
    """Return the first cell of a row of a table, or '' for another line."""
    return line[2:].partition(" | ")[0] if line.startswith("| ") else ""


def _merge_rows(new: str, old: str) -> str:
    """Return the new section with the additional rows of the old one, in the order of the old one."""
    rows = {_first_cell(line): line for line in new.split("\n") if _first_cell(line).strip()}
    old_rows = [line for line in replace_rows(old, rows).split("\n") if line.startswith("|")]
    old_cells = {_first_cell(line) for line in old_rows}
    merged = [*old_rows, *(line for cell, line in rows.items() if cell not in old_cells)]
    before, _, remainder = new.partition("|")
    after = [line for line in remainder.split("\n")[1:] if not line.startswith("|")]
    return "\n".join([before.rstrip("\n") + "\n", *merged, *after])


def _merge_runs(new: str, old: str) -> str:
    """Return the new section with the runs of the old one, and with its rivals if none ran now."""
    runs, old_runs = (_RUN_PATTERN.findall(text) for text in (new, old))
    text = new.replace(", ".join(runs), ", ".join(dict.fromkeys([*runs, *old_runs])), 1)
    if text.rstrip().endswith("Rivals: .") and "Rivals: " in old:
        text = text.rstrip().removesuffix("Rivals: .") + old[old.index("Rivals: ") :]
    return text


def _split_sections(page: str) -> dict[str, str]:
    """Return the sections by title; that of the head of the page is empty."""
    head, *sections = re.split(r"(?m)^(?=## )", page)
    parts = {"": head, **{part.partition("\n")[0].removeprefix("## "): part for part in sections}}
    return {title: f"{text.rstrip()}\n\n" for title, text in parts.items()}


def format_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table; all columns except the first are figures."""
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)])


def format_figure(value: float) -> str:
    """Return a figure with three significant digits."""
    if math.isnan(value):
        return "not measured"
    if value >= 100:  # noqa: PLR2004 - three digits
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3g}"  # noqa: PLR2004 - as above


def format_fixed(value: float, digits: int) -> str:
    """Return a figure with a fixed number of decimal places."""
    return "not measured" if math.isnan(value) else f"{value:.{digits}f}"


def _plain_name(name: str) -> str:
    return _NAMES.get(name, name).replace("**", "").partition(":")[0]


def _run_info(document: Mapping[str, Any]) -> Mapping[str, Any]:
    return next(iter(part["run"] for part in document.values() if "run" in part), {})


def _head(document: Mapping[str, Any]) -> str:
    run_info = _run_info(document)
    machine = run_info.get("machine", {})
    quick = (
        "\n\n**These are short test runs; their figures are not representative.**"
        if run_info.get("quick")
        else ""
    )
    cpu_note = _COUNTED if run_info.get("counted") else NOT_COUNTED
    return f"""# Benchmarks

Written by `scripts/bench` on {run_info.get("date")}: {machine.get("cores")} cores ({machine.get("processor")}), {machine.get("memory")},
Linux {machine.get("kernel")}, Python {machine.get("python")} ({machine.get("build", "build unknown")}).
Run it again on your machine; ratios are easier to transfer than figures.{quick}

The workload is a **deliberation with nine model calls: three seats propose, each reviews another's proposal, and all revise**. Three of the
calls are consecutive. The model is a stub in a separate process that replies after 0, 50 or 500 ms and is never the bottleneck.
Moothall runs as `moothall serve` with the embedded bus and one host. Another process sends one unary gRPC call for each deliberation.
The host is a child process; figures that list Ray are older, with the host on Ray. {cpu_note}"""


def _targets(document: Mapping[str, Any]) -> str:
    rows = [
        (
            target.name,
            target.required,
            target.goal or "",
            format_figure(target.value) + target.unit,
            target.verdict,
        )
        for target in targets(document)
    ]
    notes = _NOTES.read_text(encoding="utf-8").strip() if _NOTES.exists() else ""
    return (
        "## Targets\n\n"
        + format_table(("", "required", "goal", "measured", "reached"), rows)
        + (f"\n\n{notes}" if notes else "")
    )


def _concurrent_results(text: Mapping[str, Any]) -> dict[str, Any]:
    """Return the results of the concurrent case, fastest first."""
    by_name = next(results for case, results in text["cases"].items() if "64 at once" in case)
    return dict(sorted(by_name.items(), key=lambda item: -item[1]["rate"]))


def _text(text: Mapping[str, Any]) -> str:
    rows = [
        (
            _NAMES.get(name, name),
            format_figure(result["rate"]),
            "" if name == MOOTHALL else f"{result['speed_ratio']:.2f}",
            format_figure(result["cpu_ms"]),
            "" if name == MOOTHALL else format_fixed(result["cpu_ratio"], 2),
            format_figure(sum(text["memory"][name]["pss"].values())),
        )
        for name, result in _concurrent_results(text).items()
    ]
    concurrent = format_table(
        (
            "64 at once, 50 ms a call",
            "a second",
            "speed ratio",
            "CPU ms each",
            "CPU ratio",
            "memory, MB",
        ),
        rows,
    )
    sequential = []
    for case, by_name in text["cases"].items():
        if "64 at once" in case:
            continue
        delay = float(case.split()[0])
        for name, result in by_name.items():
            ratio = f"{result['wait'] * 1000 / (text['phases'] * delay):.3f}" if delay else ""
            sequential.append(
                (
                    case,
                    _NAMES.get(name, name),
                    format_figure(result["wait"] * 1000),
                    ratio,
                    format_figure(result["cpu_ms"]),
                )
            )
    moothall = _concurrent_results(text)[MOOTHALL]
    parts = _parts(moothall["parts_ms"])
    memory = ", ".join(
        f"{part} {format_figure(value)}" for part, value in text["memory"][MOOTHALL]["pss"].items()
    )
    rounds = moothall["rounds"]
    return f"""## Comparison on the same stub

![Deliberations a second](benchmarks.svg)

{concurrent}

Medians of {rounds} rounds, in which all systems run in turn; a ratio compares runs of the same round.
Speed ratio: the rate of Moothall divided by that of the system. CPU ratio: the CPU time of the system divided by that of Moothall.
The other systems are called within their own process, so their CPU time includes the caller, and the server that they started. The caller
of Moothall uses {format_figure(moothall["caller_ms"])} ms, and the stub
{format_figure(moothall["stub_ms"])} ms, in addition. {_idle(text["idle_cpu"])} {_left_out(text)}

{_DURABILITY}

CPU of Moothall, ms a deliberation: {parts}. Memory, PSS in MB: {memory}.

{format_table(("sequential", "", "wall ms", "by critical path", "CPU ms"), sequential)}"""


def _idle(shares: Mapping[str, float]) -> str:
    """Return a sentence on the CPU usage of the idle Moothall while the other systems ran."""
    if math.isnan(total := sum(shares.values())):
        return ""
    return f"While the other systems ran, the idle Moothall used {total * 100:.1f} % of a core."


def _left_out(text: Mapping[str, Any]) -> str:
    """Return a sentence for each rival that did not run, with the reason."""
    reasons = text.get("left_out", {}).items()
    return " ".join(
        f"{_plain_name(name).partition(',')[0]} did not run: {reason}." for name, reason in reasons
    )


def _parts(parts: Mapping[str, float]) -> str:
    """List parts and their figures, at least 0: the two clocks of the kernel differ slightly."""
    values = {_PART_NAMES.get(part, part): value for part, value in parts.items()}
    return ", ".join(
        f"{part} {format_figure(value if math.isnan(value) else max(value, 0.0))}"
        for part, value in values.items()
    )


def _tools(results: Mapping[str, Any]) -> str:
    single, concurrent = results["single"], results["concurrent"]
    overhead = single["wait"] - results["critical_seconds"]
    machine = results.get("run", {}).get("machine", {})
    rows = [
        (
            name,
            format_figure(run["wait"]),
            format_figure(plain["wait"]),
            format_figure(run["wait"] / plain["wait"]),
            format_figure(run["cpu_ms"] / 1000),
            format_figure(plain["cpu_ms"] / 1000),
            format_figure(run["cpu_ms"] / plain["cpu_ms"]),
        )
        for name, run, plain in (
            ("sequential", single, results["plain_single"]),
            (f"{concurrent['at_once']} at once", concurrent, results["plain_concurrent"]),
        )
    ]
    head = ("", "wall s", "plain loop", "ratio", "CPU s with tests", "plain loop", "ratio")
    parts = _parts({part: value / 1000 for part, value in single["parts_ms"].items()})
    return f"""## With tools

Three seats with a sandbox each have three turns on a small repository: they read the file, write a wrong solution whose test fails, and
repair it. Then every candidate is tested again on a clean checkout and ranked, the winner is tested twice more, and a branch is created.
The critical path has three model calls of {results["delay_ms"]} ms and four runs of the tests, each of which takes {format_figure(results["test_seconds"] * 1000)} ms without a sandbox: {format_figure(results["critical_seconds"])} s in total.
Of the wall time of a sequential deliberation, {format_figure(overhead)} s are not on that path: three seats test at the same time on these cores, sandboxes start, and diffs are created and applied.

The plain loop does the same work with git worktrees, a shell and pytest as subprocesses, without a sandbox, a log or a ranking. It runs the
tests 13 times: six times for the seats, once on each candidate, twice more on the winner and twice on the base. A council runs them
11 to 13 times: runs on the base are shared for ten minutes, and a candidate that reviews or later tests rank first is tested twice more.
Sequential runs of both alternate. The concurrent runs of the plain loop follow those of the councils. Measured on {machine.get("cores")} cores ({machine.get("processor")}) at a load of {format_figure(results["load"])}, including that of the benchmark; medians of {single["count"]}.

{format_table(head, rows)}

CPU seconds of a sequential deliberation: {parts}."""


def _held_deliberations(results: Mapping[str, Any]) -> str:
    idle = sum(results["idle"]["pss"].values())
    rows = [
        (
            f"{step['count']:,} deliberations, {3 * step['count']:,} seats",
            format_figure(sum(step["pss"].values())),
            format_figure((sum(step["pss"].values()) - idle) * 1e6 / 1024 / 3 / step["count"]),
            format_figure(step["start_seconds"]),
            format_figure(step["start_seconds"] * 1000 / step["count"]),
            format_figure(step["finish_seconds"]),
            format_figure(step["count"] / step["finish_seconds"]),
        )
        for step in results["steps"]
    ]
    head = (
        "held at once",
        "memory, MB",
        "KB a seat",
        "all started, s",
        "ms each",
        "all ended, s",
        "a second",
    )
    return f"""## Concurrent deliberations

The stub holds every reply until all seats of all deliberations wait, with one connection each. Then it replies without delay. There is
one host. The memory of the idle server is {format_figure(idle)} MB over all processes.

{format_table(head, rows)}"""


def _projection(results: Mapping[str, Any]) -> str:
    figures = results["projection"]
    return f"""## Projection into the graph

Events are projected into the context graph in batches, at a rate that does not slow down the councils. The figures above are without the
projection. With it, a deliberation uses {format_figure(figures["with_ms"])} CPU ms instead of {format_figure(figures["without_ms"])}
in all processes, without the usage of the idle server, until all events are projected: {format_figure(figures["with_ms"] - figures["without_ms"])} ms each (64 at once, without a delay
of the model). The projection ended {format_figure(max(figures["with_lag"], 0))} s after the last response. The embedded graph is in the memory of serve, which grows by {format_figure(figures["with_kb"])} KB a
deliberation with the graph and by {format_figure(figures["without_kb"])} KB without it, until the
graph contains `graph.keep` deliberations. For millions, use Neo4j."""


def _contexts(results: Mapping[str, Any]) -> str:
    rows = [
        (
            name,
            f"{figures['nodes']:,.0f}",
            format_figure(figures["p50"]),
            format_figure(figures["p95"]),
            format_figure(figures["p99"]),
        )
        for name, figures in results["stores"].items()
    ]
    return f"""## Context of a council

Each council gets a context of its story before it begins: two graph queries, and a selection of the most relevant parts within
`limits.context_tokens`, by estimated tokens. All stories belong to one repository, whose earlier work is searched for similar tasks.
To measure Neo4j, set `MOOTHALL_TEST_NEO4J_URL=bolt://user:password@host:port` to one whose data may be deleted; `scripts/neo4j` starts one.

{format_table(("milliseconds", "nodes", "p50", "p95", "p99"), rows)}"""


def _streamed(results: Mapping[str, Any]) -> str:
    run = results["streamed"]
    return f"""## Streamed replies

Real models stream their replies. If each reply has 64 chunks distributed over its 50 ms instead of one at the end, the result for 64 at once
is {format_figure(run["rate"])} deliberations
a second at {format_figure(run["cpu_ms"])} CPU ms each. The additional cost is that of reading 576 chunks. The other systems above received whole replies."""


def _agents(steps: Mapping[str, Any]) -> str:
    results, cancellation = steps["agents"], steps.get("cancelled")
    cancellation_text = ""
    if cancellation:
        cancellation_text = f"""

If a client cancels its stream, the model call ends {format_figure(cancellation["p50"])} ms later (p99 {format_figure(cancellation["p99"])})."""
    return f"""## The agent service

`ExecuteTask` with a tool and without a model, called from another process, takes {format_figure(results["p50"])} ms (p99 {format_figure(results["p99"])}) in a session; 16 at once reach
{format_figure(results["a_second"])} a second. Without a session, each call needs a new workspace and takes {format_figure(results["sessionless_p50"])} ms. With {results["sessions"]:,.0f} idle sessions after one query each, the memory of serve grows by
{format_figure(max(results["session_kb"], 0))} KB a session, including the growth of the log; the state of sessions is on the bus.{cancellation_text}"""


def _commands(results: Mapping[str, Any]) -> str:
    rows = [(f"`{name}`", f"{seconds:.2f}") for name, seconds in results.items() if name != "run"]
    return f"## Commands without Ray\n\nMedians of whole processes from start to exit, with cached files. `deliberate` with a \
usable model server is measured until its first event, and `list` once the server has read the log after its start.\n\n{format_table(('', 's'), rows)}"


def _transfer(results: Mapping[str, Any]) -> str:
    rows = [
        (label, f"{results[name]:.2f}", f"{results[name] / results['clone']:.2f}")
        for label, name in (
            ("first time", "first"),
            ("second time, the same commit", "again"),
            ("one more commit", "commit"),
            ("`git clone --mirror` of the server's clone", "clone"),
        )
    ]
    return f"""## Repository transfer

{results["megabytes"]} MB of incompressible data are sent from the server to a host over the bus, as a bundle in parts. The runs alternate with `git clone` of the same packed repository on this disk.

{format_table(("", "s", "by git clone"), rows)}"""


def _readers(results: Mapping[str, Any]) -> str:
    rows = [
        (
            label,
            *(format_figure(results[f"{name}_{key}"]) for name in ("without", "with")),
            format_fixed(results[f"with_{key}"] / results[f"without_{key}"], 2),
        )
        for label, key in (
            ("deliberations a second", "rate"),
            ("CPU ms of a deliberation, all processes", "cpu"),
            ("CPU ms a second of serve", "serve"),
        )
    ]
    return f"""## Readers of the board

{results["readers"]:,} browsers show the board (server-sent events, a connection each) while councils run, eight at once with replies after 50 ms. The board changes
every five seconds. {results["deliberations"]} deliberations run without readers, and as many with them, in turn, on one `serve`. A reader uses {format_figure(results["kilobytes"])} KB of its
memory. From the request that changes the board to the notification, it takes {format_figure(results["notified_p50"] * 1000)} ms (median), {format_figure(results["notified_max"] * 1000)} ms at most. The readers run in a separate process on the same cores.

{format_table(("", "without", "with", "ratio"), rows)}"""


_PAGES_BEFORE: Mapping[str, float] = {
    "load_p50": 46.1,
    "load_p95": 78.1,
    "fresh_p50": 1067,
    "load_bytes": 935_227,
    "change_bytes": 935_227,
    "change_p50": 25.5,
    "change_max": 52.4,
    "refused": 2617,
    "cpu": 13.3,
    "load": 11.6,
}
"""The figures of commit 8f38a5f6^ on 2026-11-28: pages are not compressed, and each change fetches the
whole board.
"""


def _pages(results: Mapping[str, Any]) -> str:
    rows = [
        (label, *(format_figure(run[name] / divisor) for run in (_PAGES_BEFORE, results)))
        for label, name, divisor in (
            ("load, p50 ms", "load_p50", 1),
            ("load, p95 ms", "load_p95", 1),
            ("first load after a change, p50 ms", "fresh_p50", 1),
            ("load, KB as sent", "load_bytes", 1024),
            ("change, KB as sent to each browser", "change_bytes", 1024),
            ("from a change to the new card, p50 s", "change_p50", 1),
            ("from a change to the last new card, s", "change_max", 1),
            ("refused and repeated requests of a change", "refused", 1),
            ("CPU ms of `serve` for each browser and change", "cpu", 1),
            ("load average of the machine", "load", 1),
        )
    ]
    return f"""## Browsers with an open board

A board of {results["stories"]:,} stories is loaded by one browser. Then {results["pages"]:,} browsers have it open while councils run, four at once ({results["councils"]} end meanwhile), and a story changes six times.
The server notifies each browser after a random delay of up to 3 ms times the number of browsers, and each fetches the change within 300 ms, as the script of the page does. The browsers run in a separate process on the same cores.
"Before" is the last commit that sent whole boards without compression, measured earlier on the same day, under a higher load. The CPU time is that of `serve` as a whole, with the councils.

{format_table(("", "before", "now"), rows)}"""


def _views(results: Mapping[str, Any]) -> str:
    rows = [
        (
            name,
            *(format_figure(view[key]) for key in ("first", "cpu_first", "p50", "p95")),
            format_figure(view["bytes"] / 1024),
            *(format_figure(view[key]) for key in ("cpu", "callback_first", "callback")),
        )
        for name, view in results["views"].items()
    ]
    head = (
        "view",
        "first ms",
        "first CPU ms",
        "p50 ms",
        "p95 ms",
        "KB as sent",
        "CPU ms",
        "first loop ms",
        "loop ms",
    )
    return f"""## Views of the page

The demo project of `scripts/demo-data` with 1,000 more stories and a run with a diff of 5 MB, on one `serve` with the event loop of the standard library. Each view is loaded {results["rounds"]} times by one client.
At its start, `serve` reads the stories and runs, and compiles the templates and lexers of the page, in addition to its other work: it used {format_figure(results["start_cpu_ms"])} ms of CPU between opening its ports and being idle. A request in that time waits until the stories are read.
"First" is the first load after that. "CPU" is that of all threads; after the first load it is the median. "Loop" is the longest CPU time in ms that one callback blocked the event loop: in the first load, and in the others.
Templates are rendered and large values decoded in threads, and reading the log yields to other tasks after 2 ms. On {results.get("processor", "the machine above")}, the load average was {format_figure(results["load"])}. On a busy machine, the time of a load is a multiple of its CPU time.

{format_table(head, rows)}"""


def _tenants(results: Mapping[str, Any]) -> str:
    return f"""## A tenant behind a full queue

One tenant submits {results["queued"]:,} deliberations of one seat and one model call, which takes {results["delay_ms"]} ms. The host runs {results["at_once"]} at a time. Then another tenant submits {results["count"]}, each after the previous one started.
In between, {format_figure(results["overtaken_p50"])} of the first tenant start (median), {format_figure(results["overtaken_max"])} at most. Its [fair share](operating.md#several-tenants) is at most {results["share"]}: {results["at_once"]} that the host has just taken, the queue of eight, and one for the turn of that tenant.
So each starts after {format_figure(results["wait_p50"])} s (median), {format_figure(results["wait_max"])} s at most, while {results["waiting"]:,} of the first tenant still wait. In order of arrival, it would take {format_figure(results["queued"] / results["rate"])} s, at the measured {format_figure(results["rate"])} deliberations a second."""


def _cluster(results: Mapping[str, Any]) -> str:
    machine, date = results["run"]["machine"], results["run"]["date"]
    ready_rows = [
        (
            label,
            *(f"{results[name][key] / 1000:.2f}" for key in ("p50", "p95")),
            results[name]["count"],
            format_figure(results[name]["load"]),
        )
        for label, name in (("cold", "cold"), ("warm (`workspace.warm` 1)", "warm"))
    ]
    single_rate = results["pods"][0]["rate"]
    pods = [
        (
            row["count"],
            format_figure(row["rate"]),
            f"{row['rate'] / single_rate:.2f}",
            format_figure(row["wait"] * 1000),
            format_figure(row["load"]),
        )
        for row in results["pods"]
    ]
    return f"""## In a cluster

`scripts/test-k8s --part benchmark`, {date}: Kubernetes of `scripts/cluster up --nodes 2`, both nodes on one machine of {machine["cores"]} cores ({machine["processor"]}), {machine["memory"]}. The table includes the
load average over a minute. Workspaces in Jobs start one after the other; the time is from the request until the first tool can run:

{format_table(("", "p50, s", "p95, s", "count", "load"), ready_rows)}

The chart installs the server with a process for each role (api and collector twice, three bus servers with three replicas of each stream).
{results["at_once"]} callers use gRPC with TLS, and the model replies after {results["delay_ms"]} ms, without the graph. Each host pod has {results["cpu_limit"].removesuffix("m")}
thousandths of a core, so that the hosts are the bottleneck, as far as the load of the machine permits:

{format_table(("host pods", "deliberations a second", "by one pod", "median ms", "load"), pods)}

The transfer of a repository of 100 MB is measured [above](#repository-transfer)."""


def _soak(results: Mapping[str, Any]) -> str:
    memory = [
        (
            part,
            format_figure(values[0]),
            format_figure(values[-1]),
            f"{results['growth_kb'].get(part, 0):+.1f}",
        )
        for part, values in results["memory"].items()
    ]
    changes = [
        (name, f"{old:,}", f"{new:,}")
        for name, (old, new) in sorted(results["cumulative"].items())
        if new != old
    ]
    fixed = ", ".join(f"{name} {value:,}" for name, value in sorted(results["fixed"].items()))
    problems = "\n".join(f"- {line}" for line in results["problems"]) or "No leak was found."
    return f"""## Soak test

{results["text"]:,} deliberations on text run {results["at_once"]} at once, and then {results["with_tools"]} with tools, on one server (`scripts/soak`) with the embedded
graph, which stores fifty.

{format_table(("memory, PSS in MB", "before", "after", "KB a deliberation, second half"), memory)}

These counts grow with the number of deliberations: {"" if changes else "none."}

{format_table(("", "before", "after"), changes) if changes else ""}

These counts must not grow. Afterwards they are: {fixed}.

{problems}"""


def _instructions(document: Mapping[str, Any]) -> str:
    run_info = _run_info(document)
    packages = ", ".join(
        f"{name} {version}" for name, version in run_info.get("versions", {}).items()
    )
    rival_packages = ", ".join(
        f"{name} {version}"
        for name, version in document.get("text", {}).get("versions", {}).items()
    )
    commands = sorted(
        {
            f"`{part['run']['command']}` ({part['run']['date']})"
            for part in document.values()
            if "run" in part
        }
    )
    return f"""## How to run the benchmarks

`scripts/bench` measures everything in about a quarter of an hour and writes this file and docs/scaling.md. `scripts/bench --quick` checks in
two minutes that it works. `scripts/bench text held` measures parts, and `scripts/soak` runs the soak test. The code of the rivals is in
`benchmarks/rivals/`. Each is written as its documentation recommends, on uvloop and the same interpreter, in a separate environment
(`requirements/bench.txt`). The server of Restate comes from npm (`requirements/restate`); Restate is left out if npm is missing.

Runs: {", ".join(commands)}. Moothall with {packages}. Rivals: {rival_packages}."""
