"""The messages of a seat's own commits are part of its proposal."""

from __future__ import annotations

from itertools import chain, repeat
from typing import Any

import pytest

from moothall.domain.event import EventType
from support.council import act, append, finish, of
from support.repos import SOLUTION

pytestmark = pytest.mark.e2e  # real processes over and over: run with the end-to-end tests

WRITE = ("files.append", {"path": "src/utils.py", "content": SOLUTION})
COMMIT = ("git.commit", {"message": "feat: add hello_world()\n\nIt greets."})


@pytest.mark.parametrize(
    ("replies", "message"),
    [
        ([act(WRITE, COMMIT)], COMMIT[1]["message"]),
        (
            [act(("files.append", {"path": "README.md", "content": "More.\n"})), act(COMMIT)],
            COMMIT[1]["message"],
        ),
        ([append()], ""),
    ],
)
async def test_a_proposal_has_the_message_of_its_seats_commits(
    council: Any, replies: list[str], message: str
) -> None:
    reply_sequence = chain(replies, repeat(finish()))
    async with council(lambda _body, _headers: next(reply_sequence)) as app:
        events = await app.run(app.deliberation("single", seats=1))
        (proposed,) = of(events, EventType.SEAT_PROPOSED)
        assert proposed["proposal"]["message"] == message
