"""The output while a council works, and at its end. Control characters are removed from
model-written text.
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
from moothall.cli.runtime import plain
from moothall.domain.event import EventType, Recorded
from moothall.domain.evidence import Verdict
from moothall.domain.outcome import Outcome, Result
from moothall.stories.diff_lines import read_diff

BASE = "base:"
"""The prefix of progress steps about the checks of the unchanged base."""
_LINE_CHARS = 800
_GOOD_STYLE, _BAD_STYLE, _DIM_STYLE = "green", "red", "dim"


def line_of(recorded: Recorded) -> Text | None:
    """Return one line about an event, or None if there is nothing to show."""
    description = describe_event(recorded)
    if description is None:
        return None
    seat = str(recorded.event.data.get("seat") or "council")
    return Text.assemble(
        (f"{plain(seat, 24):<15} ", "bold cyan" if seat != "council" else "bold"), description
    )


def describe_event(recorded: Recorded) -> tuple[str, str] | None:
    """Return the text of an event in one line, and its style; None if there is nothing to show."""
    describe = _DESCRIBERS.get(recorded.event.type)
    description = describe(recorded.event.data) if describe else None
    return (
        (" ".join(plain(description[0], _LINE_CHARS).split()), description[1])
        if description
        else None
    )


def thought_of(recorded: Recorded) -> Text | None:
    """Return the thought of a seat's turn, or None."""
    thought = (
        recorded.event.data.get("thought") if recorded.event.type is EventType.SEAT_TURN else None
    )
    if not isinstance(thought, str) or not thought.strip():
        return None
    return Text.assemble(
        (f"{recorded.event.data.get('seat', ''):<16}", "bold cyan"),
        (" ".join(plain(thought).split()), "italic"),
    )


def _describe_request(data: Mapping[str, Any]) -> tuple[str, str]:
    base = f", on commit {data['base_sha'][:10]}" if data.get("base_sha") else ", about text"
    count, choice = len(data["seats"]), data.get("choice")
    return (
        (
            f"{count} {'seat' if count == 1 else 'seats'} ({data['role']}), protocol "
            f"{data['protocol']}{base}" + (f"; {choice}" if choice else "")
        ),
        "",
    )


_REPLY_MODES = {
    "tools": "native tool calls",
    "json": "replies in JSON",
    "blocks": "replies in tagged blocks",
}


def _describe_start(data: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the models and limits; None for an event of an older version."""
    models, limits = data.get("models"), data.get("limits")
    if not isinstance(models, list) or not isinstance(limits, Mapping):
        return None
    if not models:
        return "no model is called", ""
    parts = [
        _describe_model(model, limits.get("turns"))
        for model in models
        if isinstance(model, Mapping)
    ]
    tokens = limits.get("tokens") or 0
    budget = f"{tokens:,} tokens" if tokens else "no limit of tokens"
    return (
        (
            f"{'; '.join(parts)}; at most {limits.get('turns')} turns a seat, {budget}, "
            f"{limits.get('seconds', 0) / 60:.0f} min"
        ),
        "",
    )


def _describe_model(model: Mapping[str, Any], default_turns: object) -> str:
    name = " ".join(
        part
        for part in (str(model.get("profile") or ""), str(model.get("model") or "model"))
        if part
    )
    window_source = model.get("window_source")
    source = (
        f"from {window_source}"
        if window_source
        else "assumed, since the server does not report it: set llm.context_tokens"
    )
    harness = model.get("harness")
    reply_mode = _REPLY_MODES.get(str(model.get("reply")), "")
    model_turns = model.get("turns", default_turns)
    turns = "" if model_turns == default_turns else f", {model_turns} turns"
    window, reply = f"{model.get('window', 0):,}", f"{model.get('reply_tokens', 0):,}"
    if harness:
        return f"{name}: worked on by {harness}, window {window} tokens, replies up to {reply}"
    return f"{name}: {reply_mode}, window {window} tokens ({source}), replies up to {reply}{turns}"


def _describe_progress(data: Mapping[str, Any]) -> tuple[str, str]:
    task = str(data["current_task"])
    return (task, "") if task.startswith(BASE) else (f"preparing: {task}", _DIM_STYLE)


def _describe_seat_start(data: Mapping[str, Any]) -> tuple[str, str]:
    approach = data.get("approach")
    return f"takes its seat: {approach}" if approach else "takes its seat", ""


def _describe_model_call(data: Mapping[str, Any]) -> tuple[str, str]:
    usage = data["usage"]
    cached = f" ({usage['cached_tokens']} cached)" if usage["cached_tokens"] else ""
    seconds = data.get("duration_ms", 0) / 1000
    tokens = f"{usage['prompt_tokens']}{cached} + {usage['completion_tokens']} tokens"
    return f"model, {data.get('phase', '')}: {tokens}, {seconds:.1f} s", _DIM_STYLE


def _describe_turn(data: Mapping[str, Any]) -> tuple[str, str]:
    tools = (
        ", ".join(f"{item['tool']} {item['status']}" for item in data["operations"]) or "no tool"
    )
    checks = ", ".join(f"{name} {verdict}" for name, verdict in (data.get("checks") or {}).items())
    text = f"turn {data['turn']}: {tools}" + (f" · checks: {checks}" if checks else "")
    if refused := data.get("refused"):
        return f"turn {data['turn']}: submit refused: {refused}", "yellow"
    if stuck := data.get("stuck"):
        attempt, attempts = data.get("attempt", 1), data.get("attempts", 1)
        return f"{text} · " + (
            f"starts again ({attempt + 1} of {attempts}): {stuck}"
            if attempt < attempts
            else f"stops: {stuck}"
        ), ""
    return text, ""


def _describe_proposal(data: Mapping[str, Any]) -> tuple[str, str]:
    diff = data["proposal"]["diff"]
    added, removed = count_changes(diff)
    size = (
        f"{added} lines added, {removed} removed"
        if diff
        else f"{len(data['proposal']['content'])} characters"
    )
    return f"proposes: {size}", "bold"


def _describe_check(data: Mapping[str, Any]) -> tuple[str, str]:
    evidence = data["evidence"]
    failed_before = evidence.get("before", 0)
    counted = (
        (evidence["passed"], "passed"),
        (evidence["failed"] - failed_before, "failed"),
        (failed_before, "failed before"),
        (evidence["skipped"], "skipped"),
    )
    counts = ", ".join(f"{count} {word}" for count, word in counted if count)
    name = f"tests of {data['cross_author']}" if data.get("cross_author") else evidence["check"]
    has_passed = evidence["verdict"] == Verdict.PASSED
    reason = f": {plain(evidence['why'], 200)}" if evidence.get("why") and not has_passed else ""
    return f"clean re-check, {name}: {evidence['verdict']}" + (
        f" ({counts})" if counts else ""
    ) + reason, _GOOD_STYLE if has_passed else _BAD_STYLE


def _describe_review(data: Mapping[str, Any]) -> tuple[str, str]:
    review = data["review"]
    return f"reviews {data['candidate']}: {review['score']:.2f} {review['comment']}", ""


def _describe_report(data: Mapping[str, Any]) -> tuple[str, str]:
    report = data["report"]
    usage = report.get("usage") or {}
    token_count = usage.get("prompt_tokens", 0) + usage.get("completion_tokens", 0)
    text = plain(report["message"], 600) + (f" ({token_count} tokens)" if token_count else "")
    return text, "yellow" if report.get("missing") else "bold"


def _describe_failure(data: Mapping[str, Any]) -> tuple[str, str]:
    return f"failed: {data['error']['message']} [{data['error']['code']}]", _BAD_STYLE


def _describe_seat_end(data: Mapping[str, Any]) -> tuple[str, str] | None:
    outcome = data["outcome"]
    if outcome["status"] in {"proposed", "failed"}:
        return None
    return ": ".join(filter(None, (outcome["status"], outcome["error_message"]))), "yellow"


def _describe_cancellation(data: Mapping[str, Any]) -> tuple[str, str]:
    return f"cancelled: {data['reason']}", "yellow"


def _describe_steering(data: Mapping[str, Any]) -> tuple[str, str]:
    return f"{data['by']} says: {data['message']}", "bold"


def _describe_damage(data: Mapping[str, Any]) -> tuple[str, str]:
    return (
        (
            f"the log lost {data['count']} records that may belong to this deliberation (seq "
            f"{data['missing'][0]} …)"
        ),
        _BAD_STYLE,
    )


_DESCRIBERS = {
    EventType.DELIBERATION_REQUESTED: _describe_request,
    EventType.AGENT_PROGRESS: _describe_progress,
    EventType.DELIBERATION_STARTED: _describe_start,
    EventType.SEAT_STARTED: _describe_seat_start,
    EventType.MODEL_CALLED: _describe_model_call,
    EventType.SEAT_TURN: _describe_turn,
    EventType.SEAT_PROPOSED: _describe_proposal,
    EventType.SEAT_REVISED: _describe_proposal,
    EventType.CHECK_FINISHED: _describe_check,
    EventType.SEAT_REVIEWED: _describe_review,
    EventType.EVIDENCE_REPORTED: _describe_report,
    EventType.SEAT_FAILED: _describe_failure,
    EventType.SEAT_FINISHED: _describe_seat_end,
    EventType.DELIBERATION_CANCELLED: _describe_cancellation,
    EventType.DELIBERATION_STEERED: _describe_steering,
    EventType.DELIBERATION_DAMAGED: _describe_damage,
}


def count_changes(diff: str) -> tuple[int, int]:
    """Return how many lines a diff adds and removes."""
    kinds = Counter(line.kind for line in read_diff(diff))
    return kinds["added"], kinds["removed"]


def first_added(diff: str) -> tuple[str, int] | None:
    """Return the path and number of the first non-blank line that a diff adds."""
    lines = read_diff(diff)
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
    calls = f"{usage.calls} model call{'' if usage.calls == 1 else 's'}"
    console.print(
        Text(
            f"{outcome.duration_ms / 1000:.1f} s, {calls}, {usage.prompt_tokens} "
            f"prompt tokens ({usage.cached_tokens} cached), {usage.completion_tokens} completion "
            "tokens",
            style=_DIM_STYLE,
        )
    )


def _show_ranking(console: Console, outcome: Outcome) -> None:
    table = Table(title="Ranking", title_justify="left", box=box.SIMPLE)
    for heading in ("rank", "seat", "score", "gates", "evidence", "lines"):
        table.add_column(heading)
    for result in outcome.results:
        added, removed = count_changes(result.diff)
        lines = f"+{added} -{removed}" if result.diff else ""
        level = Text(result.level.words, style=_GOOD_STYLE if result.level.independent else "")
        table.add_row(
            str(result.rank),
            result.answer,
            f"{result.score:.2f}",
            _yes_or_no(result.passed_gates),
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
            tuple(index for index, result in enumerate(results) if reason in result.reasons), []
        ).append(reason)
    for index in range(len(results)):
        groups.setdefault((index,), [])
    order = sorted(groups, key=lambda index: (len(index) == 1, -len(index), index))
    return [(tuple(results[position] for position in index), groups[index]) for index in order]


def _yes_or_no(value: bool) -> Text:  # noqa: FBT001 - it is what is shown
    return Text("yes", style=_GOOD_STYLE) if value else Text("no", style=_BAD_STYLE)


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
