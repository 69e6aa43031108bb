"""The message of the winner's commit: its seat's own message, and the task in trailers."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest

from moothall.collector.decide import (
    clean_commit_message,
    commit_title,
    deliver,
    find_unmasked_diff,
)
from moothall.domain.evidence import EvidenceLevel
from moothall.domain.outcome import DeliberationStatus, Outcome, Result
from moothall.domain.repository import Base, Profile
from moothall.errors import PatchRefused
from support.story import SEATS, Remembering, deliberation

MASKED = "--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a = 1\n+a = 'https://ann:redacted@example.org/'\n"
TITLE = "Add hello_world() function to src/utils.py"


async def message_of(message: str, origin: str = "") -> str:
    repositories = Remembering()
    won = Result(
        1,
        SEATS[0],
        "dev",
        1.0,
        ("proven",),
        True,
        True,
        diff="diff --git a/x b/x\n",
        message=message,
    )
    outcome = Outcome(
        "task-a",
        DeliberationStatus.COMPLETED,
        winner_id=SEATS[0],
        proven=True,
        evidence_level=EvidenceLevel.PROVEN,
        results=(won,),
    )
    delivered = await deliver(repositories, replace(deliberation(), origin=origin), outcome)
    assert delivered.branch == "moothall/task-a"
    (commit_message,) = repositories.messages
    return commit_message


@pytest.mark.parametrize(
    ("message", "origin", "expected"),
    [
        ("feat: add hello_world()\n\nIt greets.", "", "feat: add hello_world()\n\nIt greets."),
        ("", "", TITLE),
        (" \n", "", TITLE),
        ("Signed-off-by: Somebody <a@b.example>", "", TITLE),
        ("fixes #7, thanks to @ann", "forge", TITLE),
    ],
)
async def test_the_seats_message_is_the_commit_message(
    message: str, origin: str, expected: str
) -> None:
    assert (
        await message_of(message, origin)
        == f"{expected}\n\nDeliberation: task-a\nWinner: {SEATS[0]} (proven)\n"
    )


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("fix: x\x1b[31m red\x00", "fix: x [31m red"),
        ("fix: x [skip ci]\n\n[ci skip] y\n[no ci]", "fix: x\n\n y"),
        ("fix: x [skip[skip ci] ci]\n[[no ci]no ci]", "fix: x"),
        ("fix: x\n\n[skip ci]Signed-off-by: A <a@b>", "fix: x"),
        (
            (
                "fix: x\n\n\n\nCo-authored-by: A <a@b>\nDeliberation: other\nwinner: me\nthe "
                "winner "
                "is ours"
            ),
            "fix: x\n\nthe winner is ours",
        ),
        ("x" * 10_000, "x" * 4_000),
        ("fix: \u202ereversed", "fix:  reversed"),
    ],
)
def test_active_text_is_removed_from_a_commit_message(message: str, expected: str) -> None:
    assert clean_commit_message(message) == expected


@pytest.mark.parametrize(
    ("description", "title"),
    [
        ("Add hello()", "Add hello()"),
        ("Add hello()\n\nIt greets.", "Add hello()"),
        (
            f"A number counts as a limit. {'When such an input is merged, ' * 4}",
            "A number counts as a limit",
        ),
        (
            (
                "retry counts as a shorthand for an object with a limit when options are merged "
                "with others"
            ),
            "retry counts as a shorthand for an object with a limit when options are…",
        ),
        ("x" * 100, "x" * 71 + "…"),
    ],
)
def test_a_title_ends_after_a_sentence_or_a_word(description: str, title: str) -> None:
    assert commit_title(description) == title
    assert len(title) <= 72  # what git shows in one line


@pytest.mark.parametrize(
    ("diff", "is_refused"),
    [
        (MASKED, True),
        (MASKED.replace("+a", " a"), False),
        (MASKED.replace("https://ann:redacted@", "redacted "), False),
    ],
)
async def test_a_diff_replaces_a_missing_commit_unless_an_added_line_is_masked(
    diff: str, *, is_refused: bool
) -> None:
    result = Result(1, SEATS[0], "dev", 1.0, (), True, True, diff=diff, commit_sha="c" * 40)
    with pytest.raises(PatchRefused) if is_refused else nullcontext():
        unmasked = await find_unmasked_diff(Remembering(), Base("r", "a" * 40, Profile()), result)
        assert unmasked == diff
