"""docs/benchmarks.md, from the results: what it must reach, what it reached, tables and
pictures.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.contest import OURS, RESTATE, SYNCED
from benchmarks.machine import NOT_COUNTED
from benchmarks.picture import bars
from benchmarks.results import PLACE
from benchmarks.targets import targets

_NOTES = Path(__file__).resolve().parent / "notes.md"
"""Why something isn't reached, by people who looked into it: it goes below the table as it is."""
_DOCS = Path(__file__).resolve().parent.parent / "docs"
_HEAD, _REACHED, _HOW = "", "What it must reach", "How to run it"
_APART = {"In a cluster", "A long day"}  # measured by themselves
_OLDER = "Sections that this run did not measure are older; the last section lists the runs."
_DURABLE = """Moothall, Restate and LangGraph with SQLite take up work after a crash of their
processes; the others keep nothing. A power loss, or a crash of the operating system, is another
matter. By default the bus of Moothall hands each write to the operating system before it acks it,
and syncs it to the disk at most `bus.sync_interval` (two minutes) later: a power loss can take what
was written since, answers that callers have included. "Each write synced" is
`bus.sync_interval=always`: the bus syncs a write before it acks it, as Restate does with each step
and LangGraph with each checkpoint, and a power loss takes nothing that was acked
([recovery](recovery.md#a-power-loss)). Moothall alone has a ranking and budgets; Moothall and
Restate have callers in other processes."""
_RUN = re.compile(r"`python -m benchmarks[^`]*` \(\d{4}-\d\d-\d\d\)")
_PARTS = {"sandbox": "sandboxes, git and what ended"}
_COUNTED = """CPU is counted by a control group, over *all* its processes: serve, host, bus,
sandboxes and tests, with those that ended or were killed."""
_NAMES = {
    "moothall": "**Moothall**",
    SYNCED: "**Moothall**, each write synced",
    RESTATE: "Restate, each step synced",
    "langgraph-sqlite": "LangGraph with SQLite, each checkpoint synced",
    "langgraph": "LangGraph, nothing kept",
    "autogen-core": "AutoGen core, nothing kept",
    "openai": "the OpenAI SDK alone",
    "aiohttp": "aiohttp alone: what the machine can do",
}


def write(document: Mapping[str, Any], *, into_docs: bool) -> Path:
    """Write the report into docs/, or beside the results; return where it is."""
    folder = _DOCS if into_docs else PLACE.parent
    sections = [_head(document), _reached(document)]
    if "text" in document:
        crowd = _crowd(document["text"])
        shown = {_plain(name): found["rate"] for name, found in crowd.items()}
        (folder / "benchmarks.svg").write_text(
            bars("Deliberations a second, 64 at once, 50 ms a call", shown, "/s"), encoding="utf-8"
        )
        sections.append(_text(document["text"]))
    sections += [
        write_section(document[name])
        for name, write_section in (("tools", _tools), ("growth", _growth))
        if name in document
    ]
    if "steps" in document:
        sections.append(_projected(document["steps"]))
        sections.append(_streamed(document["steps"]))
        if "agents" in document["steps"]:
            sections.append(_agents(document["steps"]))
    last = {
        "packs": _packs,
        "commands": _commands,
        "lending": _lending,
        "readers": _readers,
        "pages": _pages,
        "tenants": _tenants,
        "views": _views,
        "cluster": _cluster,
        "soak": _soak,
    }
    sections += [
        write_section(document[name]) for name, write_section in last.items() if name in document
    ]
    sections.append(_how(document))
    path, page = folder / "benchmarks.md", "\n\n".join(part.strip() for part in sections) + "\n"
    if into_docs and path.exists():
        page = laid_over(path.read_text(encoding="utf-8"), page)
    path.write_text(page, encoding="utf-8")
    return path


def laid_over(old: str, new: str) -> str:
    """Lay a new page over an older one; sections that were not measured again stay.

    The head, the targets and the list of runs cover all sections: rows and runs that the new page
    does not replace stay in them. The parts in `_APART` do not touch them: they name their machine.
    """
    was, now = _sections(old), _sections(new)
    if was.keys() <= now.keys():
        return new
    *kept, last = was
    order = [*kept, *(title for title in now if title not in was), last]
    if not was.keys() - now.keys() <= _APART:
        if now.keys() - {_HEAD, _REACHED, _HOW} <= _APART:
            now = {title: text for title, text in now.items() if title in _APART}
        else:
            now[_HEAD] = f"{now[_HEAD].rstrip()} {_OLDER}\n\n"
            now[_REACHED] = _rows_added(now[_REACHED], was.get(_REACHED, ""))
            now[_HOW] = _runs_added(now[_HOW], was.get(_HOW, ""))
    return "".join({**was, **now}[title] for title in order).rstrip() + "\n"


def with_rows(page: str, rows: Mapping[str, str]) -> str:
    """Put rows of tables into a page in place of those that begin with the same cell."""
    return "\n".join(rows.get(_cell(line), line) for line in page.split("\n"))


def _cell(line: str) -> str:
    """Return the first cell of a table's row, or nothing."""
    return line[2:].partition(" | ")[0] if line.startswith("| ") else ""


def _rows_added(new: str, old: str) -> str:
    """Return the new section with the rows that only the old one has, in that one's order."""
    rows = {_cell(line): line for line in new.split("\n") if _cell(line).strip()}
    table_of_old = [line for line in with_rows(old, rows).split("\n") if line.startswith("|")]
    known = {_cell(line) for line in table_of_old}
    merged = [*table_of_old, *(line for cell, line in rows.items() if cell not in known)]
    before, _, rest = new.partition("|")
    after = [line for line in rest.split("\n")[1:] if not line.startswith("|")]
    return "\n".join([before.rstrip("\n") + "\n", *merged, *after])


def _runs_added(new: str, old: str) -> str:
    """Return the new section with the runs of the old one, and its rivals if none ran this time."""
    runs, older = (_RUN.findall(text) for text in (new, old))
    text = new.replace(", ".join(runs), ", ".join(dict.fromkeys([*runs, *older])), 1)
    if text.rstrip().endswith("Rivals: .") and "Rivals: " in old:
        text = text.rstrip().removesuffix("Rivals: .") + old[old.index("Rivals: ") :]
    return text


def _sections(page: str) -> dict[str, str]:
    """By title; the head of the page has none."""
    head, *rest = re.split(r"(?m)^(?=## )", page)
    parts = {"": head, **{part.partition("\n")[0].removeprefix("## "): part for part in rest}}
    return {title: f"{text.rstrip()}\n\n" for title, text in parts.items()}


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in markdown; all columns but the first are figures."""
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)])


def figure(value: float) -> str:
    """Three digits that matter."""
    if math.isnan(value):
        return "not measured"
    if value >= 100:  # noqa: PLR2004 - three digits
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3g}"  # noqa: PLR2004 - as above


def fixed(value: float, digits: int) -> str:
    """So many digits behind the point."""
    return "not measured" if math.isnan(value) else f"{value:.{digits}f}"


def _plain(name: str) -> str:
    return _NAMES.get(name, name).replace("**", "").partition(":")[0]


def _frame(document: Mapping[str, Any]) -> Mapping[str, Any]:
    return next(iter(part["frame"] for part in document.values() if "frame" in part), {})


def _head(document: Mapping[str, Any]) -> str:
    frame = _frame(document)
    machine = frame.get("machine", {})
    quick = (
        "\n\n**These are short runs, made to see that everything works: they say nothing.**"
        if frame.get("quick")
        else ""
    )
    counted = _COUNTED if frame.get("counted") else NOT_COUNTED
    return f"""# Benchmarks

Written by `scripts/bench` on {frame.get("date")}: {machine.get("cores")} cores ({machine.get("processor")}), {machine.get("memory")},
Linux {machine.get("kernel")}, Python {machine.get("python")} ({machine.get("build", "build unknown")}).
Run it again on yours; ratios travel better than figures.{quick}

The work: **one deliberation = three seats propose, each reviews another's proposal, all revise: nine model calls**, three of them
one behind the other. The model is a stub in a process of its own that answers after 0, 50 or 500 ms and is never the bottleneck.
Moothall runs as its users run it: `moothall serve` with the embedded bus and one host, one unary gRPC call a deliberation from another
process. The host is a child process; where a figure lists Ray, it was measured before, with the host on Ray. {counted}"""


def _reached(document: Mapping[str, Any]) -> str:
    rows = [
        (
            target.what,
            target.must,
            target.aim or "",
            figure(target.value) + target.unit,
            target.verdict,
        )
        for target in targets(document)
    ]
    notes = _NOTES.read_text(encoding="utf-8").strip() if _NOTES.exists() else ""
    return (
        "## What it must reach\n\n"
        + table(("", "must", "aim", "measured", "reached"), rows)
        + (f"\n\n{notes}" if notes else "")
    )


def _crowd(text: Mapping[str, Any]) -> dict[str, Any]:
    """The runs with many at once, fastest first."""
    found = next(by_name for case, by_name in text["cases"].items() if "64 at once" in case)
    return dict(sorted(found.items(), key=lambda item: -item[1]["rate"]))


def _text(text: Mapping[str, Any]) -> str:
    rows = [
        (
            _NAMES.get(name, name),
            figure(found["rate"]),
            "" if name == OURS else f"{found['faster']:.2f}",
            figure(found["cpu_ms"]),
            "" if name == OURS else fixed(found["cheaper"], 2),
            figure(sum(text["memory"][name]["pss"].values())),
        )
        for name, found in _crowd(text).items()
    ]
    crowd = table(
        (
            "64 at once, 50 ms a call",
            "a second",
            "times as fast is Moothall",
            "CPU ms each",
            "times Moothall's CPU",
            "memory, MB",
        ),
        rows,
    )
    alone = []
    for case, by_name in text["cases"].items():
        if "64 at once" in case:
            continue
        delay = float(case.split()[0])
        for name, found in by_name.items():
            over = f"{found['wait'] * 1000 / (text['phases'] * delay):.3f}" if delay else ""
            alone.append(
                (
                    case,
                    _NAMES.get(name, name),
                    figure(found["wait"] * 1000),
                    over,
                    figure(found["cpu_ms"]),
                )
            )
    own = _crowd(text)[OURS]
    parts = _parts(own["parts_ms"])
    memory = ", ".join(
        f"{part} {figure(value)}" for part, value in text["memory"][OURS]["pss"].items()
    )
    rounds = own["rounds"]
    return f"""## Beside others, on the same stub

![Deliberations a second](benchmarks.svg)

{crowd}

Medians of {rounds} rounds, contenders in turn within a round; ratios are of the same round.
The others are called within their own process, and that process, with the server that it started,
is all of their CPU; Moothall's caller uses {figure(own["caller_ms"])} ms more and the stub
{figure(own["stub_ms"])} ms in either case. {_idle(text["idle_cpu"])} {_left_out(text)}

{_DURABLE}

Moothall's CPU, ms a deliberation: {parts}. Its memory, PSS in MB: {memory}.

{table(("one at a time", "", "wall ms", "over critical path", "CPU ms"), alone)}"""


def _idle(shares: Mapping[str, float]) -> str:
    """Say what share of a core Moothall used while the others ran, if that was measured."""
    if math.isnan(total := sum(shares.values())):
        return ""
    return f"While the others ran, the idle Moothall used {total * 100:.1f} % of a core."


def _left_out(text: Mapping[str, Any]) -> str:
    """Name the rivals that did not run, and why."""
    reasons = text.get("left_out", {}).items()
    return " ".join(
        f"{_plain(name).partition(',')[0]} did not run: {reason}." for name, reason in reasons
    )


def _parts(parts: Mapping[str, float]) -> str:
    """List parts and their figures. The kernel's two clocks may differ by a hair: never below 0."""
    named = {_PARTS.get(part, part): value for part, value in parts.items()}
    return ", ".join(
        f"{part} {figure(value if math.isnan(value) else max(value, 0.0))}"
        for part, value in named.items()
    )


def _tools(found: Mapping[str, Any]) -> str:
    alone, together = found["alone"], found["together"]
    own = alone["wait"] - found["critical"]
    many = f"{together['at_once']} at once"
    machine = found.get("frame", {}).get("machine", {})
    rows = [
        (
            name,
            figure(run["wait"]),
            figure(plain["wait"]),
            figure(run["wait"] / plain["wait"]),
            figure(run["cpu_ms"] / 1000),
            figure(plain["cpu_ms"] / 1000),
            figure(run["cpu_ms"] / plain["cpu_ms"]),
        )
        for name, run, plain in (
            ("one at a time", alone, found["plain"]),
            (many, together, found["plain_together"]),
        )
    ]
    head = ("", "wall s", "plain loop", "ratio", "CPU s, tests included", "plain loop", "ratio")
    parts = _parts({part: value / 1000 for part, value in alone["parts_ms"].items()})
    return f"""## With tools

Three seats, three turns each, in a sandbox each, on a small repository: look, write something wrong and see the test fail, mend it and
see it pass; then every candidate is tested again on a clean checkout, ranked, the winner is tested twice more, and it is left as a branch. Critical path: three
model calls of {found["delay_ms"]} ms and four runs of the tests, which alone and outside take {figure(found["bare_tests"] * 1000)} ms each: {figure(found["critical"])} s.
Of the wall time one at a time {figure(own)} s are not on that path: three seats test at the same time on these cores, sandboxes start, diffs are made and applied.

The plain loop does the same work with git worktrees, a shell and pytest as subprocesses, without a sandbox, a log or a ranking. It runs the
tests 13 times: six times for the seats, once on each answer, twice more on the winner and twice on the base. A council runs them
11 to 13 times: runs on the base are shared for ten minutes, and an answer that reviews or later tests put first is tested twice more.
One at a time, both take turns; four at once, the plain loop follows. Measured on {machine.get("cores")} cores ({machine.get("processor")}) at a load of {figure(found["load"])}, the work's own included; medians of {alone["count"]}.

{table(head, rows)}

CPU seconds of one, one at a time: {parts}."""


def _growth(found: Mapping[str, Any]) -> str:
    idle = sum(found["idle"]["pss"].values())
    rows = [
        (
            f"{step['count']:,} deliberations, {3 * step['count']:,} seats",
            figure(sum(step["pss"].values())),
            figure((sum(step["pss"].values()) - idle) * 1e6 / 1024 / 3 / step["count"]),
            figure(step["placed"]),
            figure(step["placed"] * 1000 / step["count"]),
            figure(step["finish"]),
            figure(step["count"] / step["finish"]),
        )
        for step in found["steps"]
    ]
    head = (
        "held at once",
        "memory, MB",
        "KB a seat",
        "all placed, s",
        "ms each",
        "all ended, s",
        "a second",
    )
    return f"""## How it grows

The stub holds every answer until all seats of all deliberations wait for theirs, one connection each; then it answers at once and
the rest runs without delay. One host, idle before at {figure(idle)} MB over all processes.

{table(head, rows)}"""


def _projected(found: Mapping[str, Any]) -> str:
    received = found["projected"]
    return f"""## The graph, told apart

What is in the log goes into the context graph behind the answers, in batches, at a pace that leaves the machine to the councils. It is
put off in the figures above. With it a deliberation costs {figure(received["with_ms"])} CPU ms instead of {figure(received["without_ms"])}, all processes, without
what they use while nothing happens, until the graph has everything: {figure(received["with_ms"] - received["without_ms"])} ms each (on deliberations that come as fast as they can, without
delay, 64 at once); it had everything {figure(max(received["with_behind"], 0))} s after the last answer. The embedded graph lives in serve's memory, which grows by {figure(received["with_kb"])} KB a
deliberation with it and by {figure(received["without_kb"])} KB without, until it
holds `graph.keep` deliberations; Neo4j is where one keeps millions."""


def _packs(found: Mapping[str, Any]) -> str:
    rows = [
        (name, f"{one['nodes']:,.0f}", figure(one["p50"]), figure(one["p95"]), figure(one["p99"]))
        for name, one in found["stores"].items()
    ]
    return f"""## What a council is told

A pack of a story, as each of its councils gets one before it begins: two questions of the graph, then what is worth most within
`limits.context_tokens`, here by the estimate of tokens. All stories are of one repository, whose earlier work is looked through for what is similar.
Neo4j is asked where `MOOTHALL_TEST_NEO4J_URL=bolt://user:password@host:port` names one that may be emptied; `scripts/neo4j` starts one.

{table(("milliseconds", "nodes in the graph", "p50", "p95", "p99"), rows)}"""


def _streamed(found: Mapping[str, Any]) -> str:
    run = found["streamed"]
    return f"""## Answers that come in pieces

Real models stream. With each answer in 64 pieces spread over its 50 ms instead of in one at the end, 64 at once: {figure(run["rate"])} deliberations
a second at {figure(run["cpu_ms"])} CPU ms each. Reading 576 pieces is what costs; the others above were given whole answers too."""


def _agents(steps: Mapping[str, Any]) -> str:
    found, ended = steps["agents"], steps.get("cancelled")
    output_text = ""
    if ended:
        output_text = f"""

A stream that its client cancels: {figure(ended["p50"])} ms later (p99 {figure(ended["p99"])}) its call of the model has ended."""
    return f"""## The agent service

`ExecuteTask` with a tool and no model, from another process: in the workspace of a session {figure(found["p50"])} ms (p99 {figure(found["p99"])}), 16 at once
{figure(found["a_second"])} a second; without a session, a workspace for each, {figure(found["alone_p50"])} ms. {found["sessions"]:,.0f} sessions that were asked one query each and are idle cost serve
{figure(max(found["session_kb"], 0))} KB each, the log's own growth included: what is known of them lies on the bus.{output_text}"""


def _commands(found: Mapping[str, Any]) -> str:
    rows = [(f"`{name}`", f"{seconds:.2f}") for name, seconds in found.items() if name != "frame"]
    return (
        f"## Commands that need no Ray\n\nWhole processes, from start to exit, median, warm files; of `deliberate` with a \
model server that works until its first event.\n\n{table(('', 's'), rows)}"
    )


def _lending(found: Mapping[str, Any]) -> str:
    rows = [
        (words, f"{found[name]:.2f}", f"{found[name] / found['clone']:.2f}")
        for words, name in (
            ("first time", "first"),
            ("second time, the same commit", "again"),
            ("one more commit", "more"),
            ("`git clone --mirror` of the server's clone", "clone"),
        )
    ]
    return f"""## A repository for a host on another disk

{found["megabytes"]} MB that do not compress, from the server to a host through the bus, as a bundle in parts; in turn with git's own clone from the same packed one, on this disk.

{table(("", "s", "of a clone"), rows)}"""


def _readers(found: Mapping[str, Any]) -> str:
    rows = [
        (
            words,
            *(figure(found[f"{name}_{what}"]) for name in ("without", "with")),
            fixed(found[f"with_{what}"] / found[f"without_{what}"], 2),
        )
        for words, what in (
            ("deliberations a second", "rate"),
            ("CPU ms of one, all processes", "cpu"),
            ("CPU ms a second of serve", "serve"),
        )
    ]
    return f"""## Many who look on

{found["readers"]:,} browsers look at the board (server-sent events, a connection each) while councils run, eight at once with answers after 50 ms, and every five seconds
something happens on the board; {found["deliberations"]} deliberations without and as many with them, in turn, on one `serve`. A reader costs it {figure(found["kilobytes"])} KB. From the request that changes the
board until a reader hears of it: {figure(found["heard_p50"] * 1000)} ms in the middle, {figure(found["heard_max"] * 1000)} ms for the last. The readers are a process of their own on the same cores.

{table(("", "without", "with", "ratio"), rows)}"""


_PAGES_BEFORE: Mapping[str, float] = {
    "load_p50": 46.1,
    "load_p95": 78.1,
    "fresh_p50": 1067,
    "load_bytes": 935_227,
    "change_bytes": 935_227,
    "renewed_p50": 25.5,
    "renewed_max": 52.4,
    "refused": 2617,
    "cpu": 13.3,
    "load": 11.6,
}
"""The same of commit 8f38a5f6^, on 2026-11-28: pages are not compressed, and each change fetches the
whole board.
"""


def _pages(found: Mapping[str, Any]) -> str:
    rows = [
        (words, *(figure(one[name] / share) for one in (_PAGES_BEFORE, found)))
        for words, name, share in (
            ("load, p50 ms", "load_p50", 1),
            ("load, p95 ms", "load_p95", 1),
            ("first load after a change, p50 ms", "fresh_p50", 1),
            ("load, KB as sent", "load_bytes", 1024),
            ("change, KB as sent to each browser", "change_bytes", 1024),
            ("from a change to the new card, p50 s", "renewed_p50", 1),
            ("from a change to the last new card, s", "renewed_max", 1),
            ("requests refused and sent again, of one change", "refused", 1),
            ("CPU ms of `serve` for each browser and change", "cpu", 1),
            ("load average of the machine", "load", 1),
        )
    ]
    return f"""## Many who have the board open

A board of {found["stories"]:,} stories is loaded by one browser. Then {found["pages"]:,} browsers have it open while councils run, four at once ({found["councils"]} end meanwhile), and a story changes six times.
The server notifies each browser after a random delay of up to 3 ms times the number of browsers, and each fetches the change within 300 ms, as the page's script does. The browsers are a process of their own on the same cores.
"Before" is the last commit that sent whole boards without compression, measured earlier on the same day, under a higher load. The CPU time is that of `serve` as a whole, with the councils.

{table(("", "before", "now"), rows)}"""


def _views(found: Mapping[str, Any]) -> str:
    rows = [
        (
            name,
            *(figure(view[what]) for what in ("first", "cpu_first", "p50", "p95")),
            figure(view["bytes"] / 1024),
            *(figure(view[what]) for what in ("cpu", "callback_first", "callback")),
        )
        for name, view in found["views"].items()
    ]
    head = (
        *("view", "first ms", "its CPU ms", "p50 ms", "p95 ms", "KB as sent", "CPU ms"),
        *("loop, first", "loop"),
    )
    return f"""## Views of the page

The demo project of `scripts/demo-data` with 1,000 more stories and a run with a diff of 5 MB, on one `serve` with the event loop of the standard library. Each view is loaded {found["rounds"]} times by one client.
At its start, `serve` reads the stories and runs and compiles the templates and lexers of the page, beside its other work: it used {figure(found["start"])} ms of CPU between opening its ports and being idle. A request in that time waits for the stories to be read.
"First" is the first load after that. "CPU" is that of all threads; after the first load it is the median. "Loop" is the most CPU time in ms that one callback held up the event loop: in the first load, and in the others.
Templates are rendered and large values decoded in threads, and reading the log gives way to others after 2 ms. On {found.get("processor", "the machine above")}, the load average was {figure(found["load"])}. On a busy machine, the time of a load is a multiple of its CPU time.

{table(head, rows)}"""


def _tenants(found: Mapping[str, Any]) -> str:
    return f"""## A tenant behind a full queue

One tenant submits {found["queued"]:,} deliberations of one seat and one model call, which takes {found["delay_ms"]} ms. The host runs {found["at_once"]} at a time. Then another tenant submits {found["count"]}, each after the last one started.
In between, {figure(found["ahead_p50"])} of the first tenant start in the middle, {figure(found["ahead_max"])} at most. Its [fair share](operating.md#several-tenants) is at most {found["share"]}: {found["at_once"]} that the host has just taken, the queue of eight, and one turn.
So each starts after {figure(found["wait_p50"])} s in the middle, {figure(found["wait_max"])} s at most, while {found["left"]:,} of the first tenant still wait. First come, first served would take {figure(found["queued"] / found["rate"])} s, at the measured {figure(found["rate"])} deliberations a second."""


def _cluster(found: Mapping[str, Any]) -> str:
    machine, frame = found["frame"]["machine"], found["frame"]
    ready = [
        (
            words,
            *(f"{found[name][what] / 1000:.2f}" for what in ("p50", "p95")),
            found[name]["count"],
            figure(found[name]["load"]),
        )
        for words, name in (("cold", "cold"), ("kept warm (`workspace.warm` 1)", "warm"))
    ]
    one = found["pods"][0]["rate"]
    pods = [
        (
            row["count"],
            figure(row["rate"]),
            f"{row['rate'] / one:.2f}",
            figure(row["wait"] * 1000),
            figure(row["load"]),
        )
        for row in found["pods"]
    ]
    return f"""## In a cluster

`scripts/test-k8s --part benchmark`, {frame["date"]}: Kubernetes of `scripts/cluster up --nodes 2`, both nodes on one machine of {machine["cores"]} cores ({machine["processor"]}), {machine["memory"]}, whose load
average over a minute stands beside each figure. A workspace in a Job, from being asked for until its first tool can run, one after the other:

{table(("", "p50, s", "p95, s", "of", "load"), ready)}

The server by role as the chart installs it (api and collector twice, three bus servers that hold each stream three times), {found["at_once"]} callers over gRPC with TLS, a model that answers
after {found["delay_ms"]} ms, the graph put off; each pod of hosts has {found["slice"].removesuffix("m")} thousandths of a core, so that the hosts are what is waited for, as far as the load leaves them that:

{table(("pods of hosts", "deliberations a second", "of one pod's", "median ms", "load"), pods)}

A repository of 100 MB, first and second time: [above](#a-repository-for-a-host-on-another-disk)."""


def _soak(found: Mapping[str, Any]) -> str:
    memory = [
        (part, figure(values[0]), figure(values[-1]), f"{found['grew_kb'].get(part, 0):+.1f}")
        for part, values in found["memory"].items()
    ]
    grown = [
        (name, f"{was:,}", f"{now:,}")
        for name, (was, now) in sorted(found["grown"].items())
        if now != was
    ]
    stayed = ", ".join(f"{name} {value:,}" for name, value in sorted(found["stayed"].items()))
    problems = "\n".join(f"- {line}" for line in found["problems"]) or "Nothing was left behind."
    return f"""## A long day

{found["text"]:,} deliberations about text, {found["at_once"]} at once, then {found["with_tools"]} with tools, on one server (`scripts/soak`), the embedded
graph behind them, which keeps fifty.

{table(("memory, PSS in MB", "before", "after", "KB a deliberation, second half"), memory)}

What grows is the log and what is made from it: {"" if grown else "nothing."}

{table(("", "before", "after"), grown) if grown else ""}

What must not grow, after: {stayed}.

{problems}"""


def _how(document: Mapping[str, Any]) -> str:
    frame = _frame(document)
    ours = ", ".join(f"{name} {version}" for name, version in frame.get("versions", {}).items())
    theirs = ", ".join(
        f"{name} {version}"
        for name, version in document.get("text", {}).get("versions", {}).items()
    )
    commands = sorted(
        {
            f"`{part['frame']['command']}` ({part['frame']['date']})"
            for part in document.values()
            if "frame" in part
        }
    )
    return f"""## How to run it

`scripts/bench` measures all of it in about a quarter of an hour and writes this file and docs/scaling.md; `scripts/bench --quick` shows in two that it works;
`scripts/bench text growth` measures parts; `scripts/soak` runs the long day. The rivals live in `benchmarks/rivals/`, each written as
its documentation recommends, on uvloop and the same interpreter, in an environment of their own
(`requirements/bench.txt`). Restate's server comes from npm (`requirements/restate`); it is left out
if npm is missing.

Last run: {", ".join(commands)}. Moothall with {ours}. Rivals: {theirs}."""
