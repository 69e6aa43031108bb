"""The output while a council works: every event with -v, important events without."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from moothall.cli.council import ProgressPrinter, SeatLines
from moothall.domain.codec import dump
from moothall.domain.event import EventType, Recorded, new_event
from moothall.domain.evidence import TEST_WRITER, Evidence, Verdict

ONE, TWO = "agent-dev-001", "agent-dev-with-a-very-long-name-indeed-002"
USAGE = {"prompt_tokens": 10, "cached_tokens": 0, "completion_tokens": 2}
EVENTS: tuple[tuple[EventType, dict[str, Any]], ...] = (
    (
        EventType.DELIBERATION_REQUESTED,
        {
            "seats": [ONE, TWO],
            "role": "dev",
            "protocol": "vote",
            "base_sha": "a" * 40,
            "max_turns": 4,
        },
    ),
    (EventType.AGENT_PROGRESS, {"current_task": "setting up: pip install x"}),
    (EventType.AGENT_PROGRESS, {"current_task": "base: tests 3 passed, 1 failed (test_a)"}),
    (EventType.SEAT_STARTED, {"seat": ONE, "approach": "append"}),
    (
        EventType.MODEL_CALLED,
        {"seat": ONE, "usage": USAGE, "phase": "propose", "duration_ms": 1500},
    ),
    (
        EventType.SEAT_TURN,
        {
            "seat": ONE,
            "turn": 1,
            "operations": [{"tool": "files.edit", "status": "success"}],
            "thought": "I see\x1b[2J it",
        },
    ),
    (
        EventType.SEAT_TURN,
        {
            "seat": ONE,
            "turn": 2,
            "operations": [],
            "refused": "a file may hold 5 bytes\x1b[2J; larger is x.",
        },
    ),
    (
        EventType.SEAT_FAILED,
        {"seat": TWO, "error": {"code": "MODEL_UNAVAILABLE", "message": "gone\x1b[2J\nnext"}},
    ),
)


def record_event(kind: EventType, data: dict[str, Any], seq: int) -> Recorded:
    return Recorded(seq, new_event(kind, "t", {"task_id": "t", **data}, ordinal=str(seq)))


def printed_progress(*, verbose: bool, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    printer = ProgressPrinter(verbose=verbose, thoughts=True, console=console)
    for seq, (kind, data) in enumerate(EVENTS, 1):
        printer.show_event(record_event(kind, data, seq))
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return] # it is the StringIO above


def test_verbose_output_has_a_line_for_every_event() -> None:
    output = printed_progress(verbose=True)
    for text in (
        "append",
        "10 + 2 tokens",
        "turn 1: files.edit success",
        "I see",
        "gone",
        "preparing: setting up",
        "base: tests 3",
        "turn 2: submit refused: a file may hold 5 bytes\N{REPLACEMENT CHARACTER}[2J; larger is x.",
    ):
        assert text in output


def test_default_output_has_only_important_events() -> None:
    lines = printed_progress(verbose=False).splitlines()
    assert [line.split(maxsplit=1)[1][:20] for line in lines] == [
        "2 seats (dev), proto",
        "preparing: setting u",
        "base: tests 3 passed",
        "turn 2: submit refus",
        "failed: gone\N{REPLACEMENT CHARACTER}[2J nex",
    ]


@pytest.mark.parametrize("verbose", [True, False])
def test_model_output_cannot_move_the_cursor(verbose: bool) -> None:  # noqa: FBT001 - the parameter
    assert "\x1b" not in printed_progress(verbose=verbose)


def test_the_board_has_one_line_per_seat_for_any_event() -> None:
    board = SeatLines()
    for seq, (kind, data) in enumerate(EVENTS, 1):
        board.add_event(record_event(kind, data, seq))
    console = Console(file=io.StringIO(), width=80)
    console.print(board)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined] # it is the StringIO above
    assert len(lines) == 3
    assert all(len(line) <= 80 for line in lines)
    assert lines[0].startswith("council")
    assert " %  at work" in lines[0]
    assert lines[1].startswith("agent-dev-001")
    assert "turn 2: submit refused" in lines[1]
    assert lines[2].startswith("agent-dev-with-a-ve…  failed: gone")


def test_quiet_mode_prints_nothing() -> None:
    console = Console(file=io.StringIO(), quiet=True)
    printer = ProgressPrinter(quiet=True, console=console)
    with printer.live_display():
        printer.report("x")
        printer.show_event(record_event(*EVENTS[0], 1))
    assert console.file.getvalue() == ""  # type: ignore[attr-defined] # it is the StringIO above


def test_the_live_lines_disappear_when_the_end_is_shown() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80, no_color=True)
    printer = ProgressPrinter(console=console)
    with printer.live_display():
        printer.report("starting")
        printer.stop_live()
        printer.report("after")
    assert console.file.getvalue().rstrip().endswith("after\x1b[0m")  # type: ignore[attr-defined] # it is the StringIO above


def test_without_a_terminal_waits_are_logged_in_whole_lines() -> None:
    console = Console(file=io.StringIO(), width=40)
    printer = ProgressPrinter(console=console)
    printer.print_waiting()
    assert console.file.getvalue() == ""  # type: ignore[attr-defined] # it is the StringIO above
    for seq, (kind, data) in enumerate(EVENTS, 1):
        printer.show_event(record_event(kind, data, seq))
    printer.print_waiting()
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined] # as above
    assert lines[-1].strip() == f"{ONE} waits for the model"
    assert any(len(line) > 60 for line in lines)


def test_without_a_terminal_the_wait_for_the_model_is_logged() -> None:
    console = Console(file=io.StringIO(), width=40)
    printer = ProgressPrinter(console=console)
    for seq, (kind, data) in enumerate(
        (EVENTS[0], (EventType.DELIBERATION_STARTED, {"seats": [ONE, TWO]})), 1
    ):
        printer.show_event(record_event(kind, data, seq))
    printer.print_waiting()
    assert "council waits for the model" in console.file.getvalue()  # type: ignore[attr-defined] # it is the StringIO above
    printer.show_event(record_event(*EVENTS[3], 3))
    printer.print_waiting()
    assert console.file.getvalue().splitlines()[-1].strip() == f"{ONE} waits for the model"  # type: ignore[attr-defined] # as above


def test_without_a_terminal_lines_are_not_repeated_and_text_waits_for_reviews() -> None:
    console = Console(file=io.StringIO(), width=40)
    printer = ProgressPrinter(console=console)
    request = {"seats": [ONE, TWO], "role": "dev", "protocol": "vote", "max_turns": 4}
    turn = {"seat": ONE, "turn": 1, "operations": []}
    printer.report("setting up")
    printer.report("setting up")
    events: tuple[tuple[EventType, dict[str, Any]], ...] = (
        (EventType.DELIBERATION_REQUESTED, request),
        (EventType.SEAT_STARTED, {"seat": ONE, "approach": ""}),
        (EventType.SEAT_TURN, turn),
        (EventType.SEAT_TURN, {**turn, "turn": 2}),
        (
            EventType.SEAT_PROPOSED,
            {"seat": ONE, "proposal": {"diff": "", "content": "An old pond"}},
        ),
    )
    for seq, (kind, data) in enumerate(events, 1):
        printer.show_event(record_event(kind, data, seq))
        printer.print_waiting()
    lines = [line.strip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined] # it is the StringIO above
    assert len(lines) == len(set(lines))
    assert lines[-1] == f"{ONE} waits for the reviews"


def test_without_a_terminal_the_work_of_the_test_writer_is_logged() -> None:
    console = Console(file=io.StringIO(), width=40)
    printer = ProgressPrinter(console=console)
    check = {"seat": ONE, "evidence": dump(Evidence("tests", Verdict.PASSED, passed=1))}
    call = {"seat": TEST_WRITER, "usage": USAGE, "phase": "verify", "duration_ms": 1500}
    for seq, (kind, data) in enumerate(
        (EVENTS[0], EVENTS[3], (EventType.CHECK_FINISHED, check), (EventType.MODEL_CALLED, call)), 1
    ):
        printer.show_event(record_event(kind, data, seq))
    printer.print_waiting()
    assert console.file.getvalue().splitlines()[-1].strip() == (  # type: ignore[attr-defined] # it is the StringIO above
        f"{ONE} waits for the decision; council: the test writer is at work"
    )


def test_the_waiting_reason_of_a_seat_fits_into_80_columns() -> None:
    board = SeatLines()
    approach = (
        "an approach that is described in more words than one line of a terminal has room for"
    )
    for seq, (kind, data) in enumerate(
        (EVENTS[0], (EventType.SEAT_STARTED, {"seat": ONE, "approach": approach})), 1
    ):
        board.add_event(record_event(kind, data, seq))
    console = Console(file=io.StringIO(), width=80)
    console.print(board)
    line = console.file.getvalue().splitlines()[1]  # type: ignore[attr-defined] # it is the StringIO above
    assert "waits for the model" in line
    assert len(line) <= 80
