"""What a person sees while a council works, and at its end. Model-written text is shown without its
control characters.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.rule import Rule
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from moothall.cli.documents import outcome_document
from moothall.cli.text import plain
from moothall.domain.event import EventType, Recorded
from moothall.domain.evidence import Verdict
from moothall.domain.outcome import Outcome, Result
from moothall.stories.diffs import read_diff

BASE = "base:"
"""What a step begins with that tells how the checks of the untouched base are."""
_GOOD, _BAD, _QUIET = "green", "red", "dim"


def line_of(recorded: Recorded) -> Text | None:
    """Return one line about an event, or None where there is nothing to say."""
    said = describe_event(recorded)
    if said is None:
        return None
    who = str(recorded.event.data.get("seat") or "council")
    return Text.assemble(
        (f"{plain(who, 24):<15} ", "bold cyan" if who != "council" else "bold"), said
    )


def describe_event(recorded: Recorded) -> tuple[str, str] | None:
    """Return an event in a line of words, and their style; None where there is nothing to say."""
    describe = _LINES.get(recorded.event.type)
    said = describe(recorded.event.data) if describe else None
    return (" ".join(plain(said[0]).split()), said[1]) if said else None


def thought_of(recorded: Recorded) -> Text | None:
    """Return what a seat said with its turn, or None where it said nothing."""
    thought = (
        recorded.event.data.get("thought") if recorded.event.type is EventType.SEAT_TURN else None
    )
    if not isinstance(thought, str) or not thought.strip():
        return None
    return Text.assemble(
        (f"{recorded.event.data.get('seat', ''):<16}", "bold cyan"),
        (" ".join(plain(thought).split()), "italic"),
    )


def _tell_request(data: Mapping[str, Any]) -> tuple[str, str]:
    base = f", on commit {data['base_sha'][:10]}" if data.get("base_sha") else ", about text"
    count = len(data["seats"])
    return (
        (
            f"{count} {'seat' if count == 1 else 'seats'} ({data['role']}), protocol "
            f"{data['protocol']}{base}"
        ),
        "",
    )


_SPELLINGS = {
    "tools": "native tool calls",
    "json": "replies in JSON",
    "blocks": "replies in tagged blocks",
}


def _started(data: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return which models are used, and how; None of an event of an older version."""
    models, limits = data.get("models"), data.get("limits")
    if not isinstance(models, list) or not isinstance(limits, Mapping):
        return None
    parts = [_model(one, limits.get("turns")) for one in models if isinstance(one, Mapping)]
    tokens = limits.get("tokens") or 0
    budget = f"{tokens:,} tokens" if tokens else "no limit of tokens"
    return (
        (
            f"{'; '.join(parts)}; at most {limits.get('turns')} turns a seat, {budget}, "
            f"{limits.get('seconds', 0) / 60:.0f} min"
        ),
        "",
    )


def _model(one: Mapping[str, Any], most: object) -> str:
    name = " ".join(
        part for part in (str(one.get("profile") or ""), str(one.get("model") or "model")) if part
    )
    said = one.get("window_source")
    source = (
        f"from {said}"
        if said
        else "a guess, since the server does not say it: set llm.context_tokens"
    )
    spelling = _SPELLINGS.get(str(one.get("reply")), "")
    own = one.get("turns", most)
    turns = "" if own == most else f", {own} turns"
    window, reply = f"{one.get('window', 0):,}", f"{one.get('reply_tokens', 0):,}"
    return f"{name}: {spelling}, window {window} tokens ({source}), replies up to {reply}{turns}"


def _progress(data: Mapping[str, Any]) -> tuple[str, str]:
    task = str(data["current_task"])
    return (task, "") if task.startswith(BASE) else (f"preparing: {task}", _QUIET)


def _seat_started(data: Mapping[str, Any]) -> tuple[str, str]:
    return f"takes its seat: {data.get('approach') or 'no particular approach'}", ""


def _model_called(data: Mapping[str, Any]) -> tuple[str, str]:
    usage = data["usage"]
    cached = f" ({usage['cached_tokens']} cached)" if usage["cached_tokens"] else ""
    seconds = data.get("duration_ms", 0) / 1000
    tokens = f"{usage['prompt_tokens']}{cached} + {usage['completion_tokens']} tokens"
    return f"model, {data.get('phase', '')}: {tokens}, {seconds:.1f} s", _QUIET


def _turn(data: Mapping[str, Any]) -> tuple[str, str]:
    tools = (
        ", ".join(f"{item['tool']} {item['status']}" for item in data["operations"]) or "no tool"
    )
    checks = ", ".join(f"{name} {verdict}" for name, verdict in (data.get("checks") or {}).items())
    said = f"turn {data['turn']}: {tools}" + (f" · checks: {checks}" if checks else "")
    if refused := data.get("refused"):
        return f"turn {data['turn']}: submit refused: {refused}", "yellow"
    if stuck := data.get("stuck"):
        attempt, attempts = data.get("attempt", 1), data.get("attempts", 1)
        return f"{said} · " + (
            f"starts anew ({attempt + 1} of {attempts}): {stuck}"
            if attempt < attempts
            else f"stops: {stuck}"
        ), ""
    return said, ""


def _tell_proposal(data: Mapping[str, Any]) -> tuple[str, str]:
    diff = data["proposal"]["diff"]
    added, removed = count_changes(diff)
    what = (
        f"{added} lines added, {removed} removed"
        if diff
        else f"{len(data['proposal']['content'])} characters"
    )
    return f"proposes: {what}", "bold"


def _tell_check(data: Mapping[str, Any]) -> tuple[str, str]:
    evidence = data["evidence"]
    before = evidence.get("before", 0)
    told = (
        (evidence["passed"], "passed"),
        (evidence["failed"] - before, "failed"),
        (before, "red before"),
        (evidence["skipped"], "skipped"),
    )
    counts = ", ".join(f"{count} {word}" for count, word in told if count)
    name = f"tests of {data['cross_author']}" if data.get("cross_author") else evidence["check"]
    good = evidence["verdict"] == Verdict.PASSED
    why = f": {plain(evidence['why'], 200)}" if evidence.get("why") and not good else ""
    return f"clean re-check, {name}: {evidence['verdict']}" + (
        f" ({counts})" if counts else ""
    ) + why, _GOOD if good else _BAD


def _tell_review(data: Mapping[str, Any]) -> tuple[str, str]:
    review = data["review"]
    return f"reviews {data['candidate']}: {review['score']:.2f} {review['comment']}", ""


def _tell_report(data: Mapping[str, Any]) -> tuple[str, str]:
    report = data["report"]
    usage = report.get("usage") or {}
    spent = usage.get("prompt_tokens", 0) + usage.get("completion_tokens", 0)
    text = plain(report["message"], 600) + (f" ({spent} tokens)" if spent else "")
    return text, "yellow" if report.get("missing") else "bold"


def _tell_failure(data: Mapping[str, Any]) -> tuple[str, str]:
    return f"failed: {data['error']['message']} [{data['error']['code']}]", _BAD


def _tell_end(data: Mapping[str, Any]) -> tuple[str, str] | None:
    outcome = data["outcome"]
    if outcome["status"] in {"proposed", "failed"}:
        return None
    return ": ".join(filter(None, (outcome["status"], outcome["error_message"]))), "yellow"


def _tell_cancellation(data: Mapping[str, Any]) -> tuple[str, str]:
    return f"cancelled: {data['reason']}", "yellow"


def _tell_words(data: Mapping[str, Any]) -> tuple[str, str]:
    return f"{data['by']} says: {data['message']}", "bold"


def _tell_damage(data: Mapping[str, Any]) -> tuple[str, str]:
    return (
        (
            f"the log lost {data['count']} records that may be of this deliberation (seq "
            f"{data['missing'][0]} …)"
        ),
        _BAD,
    )


_LINES = {
    EventType.DELIBERATION_REQUESTED: _tell_request,
    EventType.AGENT_PROGRESS: _progress,
    EventType.DELIBERATION_STARTED: _started,
    EventType.SEAT_STARTED: _seat_started,
    EventType.MODEL_CALLED: _model_called,
    EventType.SEAT_TURN: _turn,
    EventType.SEAT_PROPOSED: _tell_proposal,
    EventType.SEAT_REVISED: _tell_proposal,
    EventType.CHECK_FINISHED: _tell_check,
    EventType.SEAT_REVIEWED: _tell_review,
    EventType.EVIDENCE_REPORTED: _tell_report,
    EventType.SEAT_FAILED: _tell_failure,
    EventType.SEAT_FINISHED: _tell_end,
    EventType.DELIBERATION_CANCELLED: _tell_cancellation,
    EventType.DELIBERATION_STEERED: _tell_words,
    EventType.DELIBERATION_DAMAGED: _tell_damage,
}


def count_changes(diff: str) -> tuple[int, int]:
    """Return how many lines a diff adds and removes."""
    kinds = Counter(line.kind for line in read_diff(diff, len(diff)))
    return kinds["added"], kinds["removed"]


def first_added(diff: str) -> tuple[str, int] | None:
    """Return the path and number of the first line with words that a diff adds."""
    lines = read_diff(diff, len(diff))
    return next(
        (
            (line.path, line.number)
            for line in lines
            if line.kind == "added" and line.text[1:].strip()
        ),
        None,
    )


def show_outcome(console: Console, outcome: Outcome) -> None:
    """Print the ranking with its reasons and the winner's diff or text."""
    console.print(Rule(f"{outcome.task_id}: {outcome.status}"))
    if outcome.results:
        _show_ranking(console, outcome)
    for seat in outcome.seats:
        if seat.error_code:
            console.print(
                Text(
                    plain(f"{seat.seat} {seat.status}: {seat.error_message} [{seat.error_code}]"),
                    style="yellow",
                )
            )
    winner = next(
        (result for result in outcome.results if outcome.winner_id and result.rank == 1), None
    )
    if winner is not None:
        _show_winner(console, outcome, winner)
    else:
        console.print(Text(f"No winner. {plain(outcome.error_message)}", style="bold red"))
    usage = outcome.usage
    console.print(
        Text(
            f"{outcome.duration_ms / 1000:.1f} s, {usage.calls} model calls, {usage.prompt_tokens} "
            f"prompt tokens ({usage.cached_tokens} cached), {usage.completion_tokens} completion "
            "tokens",
            style=_QUIET,
        )
    )


def _show_ranking(console: Console, outcome: Outcome) -> None:
    table = Table(title="Ranking", title_justify="left", box=box.SIMPLE)
    for heading in ("rank", "seat", "score", "gates", "evidence", "lines"):
        table.add_column(heading)
    for result in outcome.results:
        added, removed = count_changes(result.diff)
        lines = f"+{added} -{removed}" if result.diff else ""
        level = Text(result.level.words, style=_GOOD if result.level.independent else "")
        table.add_row(
            str(result.rank),
            result.answer,
            f"{result.score:.2f}",
            _yes(result.passed_gates),
            level,
            lines,
        )
    console.print(table)
    for results, reasons in _group_reasons(outcome.results):
        if len(results) == len(outcome.results) > 1:
            heading = f"All {len(results)} candidates"
        elif len(results) > 1:
            heading = ", ".join(f"{result.rank}. {result.answer}" for result in results)
        else:
            heading = f"{results[0].rank}. {results[0].answer}"
        console.print(Text(heading, style="bold cyan"))
        for reason in reasons:
            console.print(Padding(Text(plain(reason)), (0, 0, 0, 3), expand=False))


def _group_reasons(results: Sequence[Result]) -> list[tuple[tuple[Result, ...], list[str]]]:
    """Group reasons by the results that share them, reasons of several results first."""
    groups: dict[tuple[int, ...], list[str]] = {}
    for reason in dict.fromkeys(reason for result in results for reason in result.reasons):
        groups.setdefault(
            tuple(at for at, result in enumerate(results) if reason in result.reasons), []
        ).append(reason)
    for at in range(len(results)):
        groups.setdefault((at,), [])
    order = sorted(groups, key=lambda at: (len(at) == 1, -len(at), at))
    return [(tuple(results[one] for one in at), groups[at]) for at in order]


def _yes(value: bool) -> Text:  # noqa: FBT001 - it is what is shown
    return Text("yes", style=_GOOD) if value else Text("no", style=_BAD)


def _show_winner(console: Console, outcome: Outcome, winner: Result) -> None:
    undecided = ", undecided: no test or review puts it first" if outcome.undecided else ""
    if outcome.final_state == "already_done":
        text = (
            f"{outcome.winner_id}: the task is already done. These tests pass on the base; nothing "
            "was changed."
        )
        console.print(Text(text, style="bold green"))
    else:
        console.print(
            Text(
                f"Winner: {outcome.winner_id} ({outcome.level.words}{undecided})",
                style="bold green",
            )
        )
    if winner.diff:
        readable = "\n".join(
            line for line in winner.diff.splitlines() if not line.startswith("index ")
        )
        if console.is_terminal:
            console.print(
                Syntax(plain(readable, 20_000), "diff", background_color="default", word_wrap=True)
            )
        else:
            console.print(Text(plain(readable, 20_000)), soft_wrap=True)
    else:
        console.print(Text(plain(winner.content, 20_000)))
    if outcome.branch:
        console.print(Text(f"Branch {outcome.branch} at {outcome.commit_sha[:12]}", style="bold"))
    if outcome.error_message:
        console.print(Text(plain(outcome.error_message), style="yellow"))


def as_json(outcome: Outcome) -> str:
    """Return the one JSON document of `--json`."""
    return json.dumps(outcome_document(outcome), indent=2)
