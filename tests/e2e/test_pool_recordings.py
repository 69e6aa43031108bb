"""Recorded replies of a strong model that judged the small pools, replayed end to end: the right
candidate wins with independent evidence.

`tests/strong/judge_pool.py FOLDER tests/e2e/pools/NAME.toml` records the replies.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from command import Command
from moothall.domain.evidence import EvidenceLevel
from moothall.testing.model import NativeReply, Reply, call_id_of, phase_of, scripted_model, seat_of
from support.pools import Pool, dealt_candidates, read_pool

pytestmark = [pytest.mark.e2e, pytest.mark.evidence]

_POOLS = sorted(Path(__file__).parent.glob("pools/*.toml"))
_RECORDINGS = Path(__file__).parent.parent / "recordings" / "pools"


class Council:
    """Seats that submit the candidates of a pool, and judges that reply as recorded."""

    def __init__(self, diffs: Mapping[str, str], replies: Mapping[str, Any]) -> None:
        self._diffs = diffs
        self._replies = replies
        self._turns: Counter[str] = Counter()

    def answer(self, _body: Mapping[str, Any], headers: Mapping[str, str]) -> Reply:
        """Return the reply to a call. Raises `KeyError` if it was not recorded."""
        seat = seat_of(headers)
        if phase_of(headers) == "propose":
            self._turns[seat] += 1
            if self._turns[seat] > 1:
                return NativeReply((("submit", {"summary": "The change is made."}),))
            command = (
                f"git apply --whitespace=nowarn <<'END_OF_DIFF'\n{self._diffs[seat]}END_OF_DIFF"
            )
            return NativeReply((("bash", {"command": command}),))
        reply = self._replies[call_id_of(headers).partition("/")[2]]
        calls = tuple((call["name"], call["arguments"]) for call in reply.get("calls", ()))
        return NativeReply(calls, reply.get("text", "")) if calls else reply["text"]


@pytest.mark.parametrize("path", _POOLS, ids=[path.stem for path in _POOLS])
async def test_the_right_candidate_wins_with_independent_evidence(
    tmp_path: Path, path: Path
) -> None:
    pool = read_pool(path)
    pool.skip_without_program()
    replies = json.loads((_RECORDINGS / f"{pool.name}.json").read_text(encoding="utf-8"))
    repository = tmp_path / "repository"
    pool.create_repository(repository)
    wrong_diff, right, other_diff = _diffs(pool, repository)
    seats = ("agent-dev-001", "agent-dev-002", "agent-dev-003")
    council = Council(dict(zip(seats, (wrong_diff, right, other_diff), strict=True)), replies)
    async with scripted_model(council.answer, tools=True) as model:
        command = Command(tmp_path / "data", model.base_url, {"MOOTHALL_LLM__RETRIES": "0"})
        result = await command(
            "deliberate",
            "--repo",
            str(repository),
            "--agents",
            "3",
            "--json",
            pool.task,
            seconds=600,
        )
    called = {call.call_id.partition("/")[2] for call in model.requests}
    assert result.document["winner_id"] == seats[1], result.document["results"]
    assert result.document["evidence_level"] == EvidenceLevel.REPRODUCED
    assert called >= replies.keys(), "a recorded judge was not called"


def _diffs(pool: Pool, repository: Path) -> list[str]:
    return [pool.diff(repository, item) for item in dealt_candidates(pool)]
