from __future__ import annotations

import html
import io
import re
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from moothall.cli.council import summarize
from moothall.cli.runtime import plain
from moothall.cli.show import count_changes, line_of, show_outcome
from moothall.domain.event import EventType, Recorded, new_event
from moothall.domain.outcome import DeliberationStatus, Outcome, Result
from moothall.domain.task import DeliberationRequest
from moothall.errors import InvalidRequest

DIFF = "diff --git a/x b/x\nindex 1..2\n--- a/x\n+++ b/x\n@@ -1 +1,2 @@\n-old\n+new\n+more\n"


@given(st.text())
def test_control_characters_are_removed_from_hostile_text(text: str) -> None:
    plain_text = plain(text)
    assert len(plain_text) <= 400
    assert not any(ord(char) < 32 and char not in "\t\n" for char in plain_text)
    assert "\x1b" not in plain_text
    assert "\u202e" not in plain_text


def test_colours_are_removed_without_a_trace() -> None:
    assert plain("\x1b[0m\x1b[1;31m[ERROR]\x1b[m no such file") == "[ERROR] no such file"


def test_a_diff_is_counted_without_its_headers() -> None:
    assert count_changes(DIFF) == (2, 1)


def test_model_text_cannot_add_lines_or_markup() -> None:
    data = {
        "seat": "agent-dev-001",
        "error": {"code": "X", "message": "one\ntwo \x07\x1b[31m[red]"},
    }
    line = line_of(Recorded(1, new_event(EventType.SEAT_FAILED, "t", data)))
    assert line is not None
    assert line.plain == "agent-dev-001   failed: one two \N{REPLACEMENT CHARACTER}[red] [X]"


def test_an_agents_report_is_one_line_with_its_tokens() -> None:
    report = {
        "agent": "test-writer",
        "message": "test writer: 4 tests, 3 of them fail on the base\n\x1b[31m",
        "usage": {"prompt_tokens": 900, "completion_tokens": 100},
    }
    line = line_of(
        Recorded(1, new_event(EventType.EVIDENCE_REPORTED, "t", {"task_id": "t", "report": report}))
    )
    assert line is not None
    assert "test writer: 4 tests, 3 of them fail on the base" in line.plain
    assert line.plain.endswith("(1000 tokens)")
    assert "\x1b" not in line.plain
    assert "\n" not in line.plain


def test_a_test_that_failed_before_is_not_reported_as_broken() -> None:
    evidence = {
        "check": "tests",
        "verdict": "passed",
        "passed": 7,
        "failed": 3,
        "skipped": 1,
        "before": 2,
    }
    line = line_of(
        Recorded(
            1,
            new_event(
                EventType.CHECK_FINISHED, "t", {"seat": "agent-dev-001", "evidence": evidence}
            ),
        )
    )
    assert line is not None
    assert line.plain.endswith(
        "clean re-check, tests: passed (7 passed, 1 failed, 2 failed before, 1 skipped)"
    )


@pytest.mark.parametrize(
    ("winner", "winner_text"),
    [("agent-dev-001", "Winner: agent-dev-001 (unproven)"), ("", "No winner. Nothing held.")],
)
def test_the_end_shows_the_winner_and_the_reason(winner: str, winner_text: str) -> None:
    result = Result(
        1, "agent-dev-001", "dev", 0.6, ("because",), passed_gates=True, proven=False, diff=DIFF
    )
    outcome = Outcome(
        "t",
        DeliberationStatus.COMPLETED,
        winner_id=winner,
        results=(result,),
        error_message="" if winner else "Nothing held.",
    )
    console = Console(file=io.StringIO(), width=100)
    show_outcome(console, outcome)
    output = console.file.getvalue()  # type: ignore[attr-defined] # it is the StringIO above
    assert winner_text in output
    assert "because" in output


def test_a_seat_that_repeats_itself_is_asked_to_start_anew_or_stop() -> None:
    turn = {
        "task_id": "t",
        "seat": "agent-dev-001",
        "turn": 3,
        "operations": [],
        "attempts": 3,
        "stuck": "the same tests failed for 3 turns",
    }

    def message(attempt: int) -> str:
        return str(
            line_of(
                Recorded(
                    1,
                    new_event(EventType.SEAT_TURN, "t", {**turn, "attempt": attempt}, ordinal="1"),
                )
            )
        )

    assert "starts again (2 of 3): the same tests failed for 3 turns" in message(1)
    assert "stops: the same tests failed for 3 turns" in message(3)


JOINER = "\N{WORD JOINER}"
"""Inserted after text that could mention a user or an issue in the raw text."""


@given(st.text(max_size=80))
def test_a_summary_contains_only_literal_text(reason: str) -> None:
    result = Result(1, "agent-dev-001", "dev", 0.5, (reason,), passed_gates=True, proven=True)
    with TemporaryDirectory() as folder:
        path = Path(folder, "summary.md")
        summarize(
            Outcome(
                "t", DeliberationStatus.COMPLETED, results=(result,), winner_id="agent-dev-001"
            ),
            DeliberationRequest(reason, "DEV"),
            path,
        )
        summary = path.read_text(encoding="utf-8")
    title, *_, row = [line for line in summary.split("\n") if line]
    texts = [title.removeprefix("### "), row.split(" | ")[-1].removesuffix(" |")]
    for text in texts:
        assert not set(re.sub(r"&#\d+;", "", text)) & set("<>`*_[]()|\\!#~@")
        visible_reason = "".join(
            character if character.isprintable() else "\N{REPLACEMENT CHARACTER}"
            for character in " ".join(reason.split())
        )
        assert html.unescape(text).replace(JOINER, "") == visible_reason


def test_a_summary_is_added_and_a_failure_to_write_it_is_reported(tmp_path: Path) -> None:
    outcome = Outcome("t", DeliberationStatus.FAILED, error_message="nobody <b>proposed</b>")
    for _ in range(2):
        summarize(outcome, DeliberationRequest("x", "DEV"), tmp_path / "summary.md")
    summary = html.unescape((tmp_path / "summary.md").read_text(encoding="utf-8")).replace(
        JOINER, ""
    )
    assert summary.count("t: no winner (nobody <b>proposed</b>)") == 2
    with pytest.raises(InvalidRequest, match=r"the summary .* cannot be written: Is a directory"):
        summarize(outcome, DeliberationRequest("x", "DEV"), tmp_path)


def test_reasons_of_several_answers_are_shown_once() -> None:
    reasons = {
        1: ("passes", "proven", "first"),
        2: ("passes", "proven", "second"),
        3: ("passes", "third"),
    }
    results = tuple(
        Result(
            rank, f"s-{rank}", "dev", 1.0, given_reasons, passed_gates=True, proven=True, diff=DIFF
        )
        for rank, given_reasons in reasons.items()
    )
    console = Console(file=io.StringIO(), width=80)
    show_outcome(
        console, Outcome("t", DeliberationStatus.COMPLETED, winner_id="s-1", results=results)
    )
    lines = [line.strip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined] # it is the StringIO above
    at = lines.index("All 3 candidates")
    assert lines[at : at + 10] == [
        "All 3 candidates",
        "passes",
        "1. s-1, 2. s-2",
        "proven",
        "1. s-1",
        "first",
        "2. s-2",
        "second",
        "3. s-3",
        "third",
    ]


@pytest.mark.parametrize(
    ("source", "window_note"),
    [
        ("the server's list of models", "(from the server's list of models)"),
        ("", "(assumed, since the server does not report it: set llm.context_tokens)"),
    ],
)
def test_the_start_shows_models_windows_and_limits(source: str, window_note: str) -> None:
    model = {
        "profile": "",
        "model": "qwen",
        "reply": "tools",
        "window": 131_072,
        "window_source": source,
        "reply_tokens": 32_768,
    }
    data = {
        "seats": ["a"],
        "models": [model],
        "limits": {"turns": 100, "tokens": 5_000_000, "calls": 1000, "seconds": 1798},
    }
    line = line_of(Recorded(1, new_event(EventType.DELIBERATION_STARTED, "t", data)))
    assert line is not None
    assert line.plain == (
        f"council         qwen: native tool calls, window 131,072 tokens {window_note}, "
        "replies up to 32,768; at most 100 turns a seat, 5,000,000 tokens, 30 min"
    )
    assert (
        line_of(Recorded(1, new_event(EventType.DELIBERATION_STARTED, "t", {"seats": ["a"]})))
        is None
    )


def test_the_reason_of_the_model_choice_is_shown_completely() -> None:
    choice = f"auto: default + deep, {'x' * 600}; together 9 of 10"
    data = {"seats": ["a", "b"], "role": "dev", "protocol": "vote", "base_sha": "c0ffee"}
    line = line_of(
        Recorded(1, new_event(EventType.DELIBERATION_REQUESTED, "t", data | {"choice": choice}))
    )
    assert line is not None
    assert line.plain.endswith(f"2 seats (dev), protocol vote, on commit c0ffee; {choice}")
