"""Replies of a model that no encoding accepts: a real model server, gateway and runner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from moothall.testing.model import step_of
from support.council import ONE, code, outcomes
from support.python import open_coding_council
from support.repos import SOLUTION

pytestmark = pytest.mark.e2e
APPEND = f"ws.write('src/utils.py', ws.read('src/utils.py') + {SOLUTION!r})"
HALF = "\ud800"


@pytest.mark.parametrize(
    "half",
    [f"x = '{HALF}'\nprint(x)", f"ws.write('a.txt', '{HALF}')", f"import socket\nprint('{HALF}')"],
)
async def test_a_lone_surrogate_in_a_block_does_not_end_the_seat(tmp_path: Path, half: str) -> None:
    turns = (code(half), code(APPEND, HALF))

    def answer(_body: Any, headers: Any) -> Any:
        return turns[min(int(step_of(headers).split(".")[1]), len(turns)) - 1]

    async with open_coding_council(tmp_path, answer) as app:
        events = await app.run(app.deliberation("single", 1))
    assert outcomes(events) == {ONE: "proposed"}, events[-1]
