"""Recorded replies of a strong model on small projects, replayed end to end: the right change
reaches the branch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from command import Command, git
from moothall.domain.event import EventType
from moothall.domain.evidence import TEST_WRITER, TIE_BREAKER
from moothall.testing.model import NativeReply, Reply, phase_of, scripted_model, seat_of, step_of

pytestmark = [pytest.mark.e2e, pytest.mark.evidence]

RECORDINGS = sorted((Path(__file__).parent.parent / "recordings").glob("*.json"))
QUICK = {"MOOTHALL_LLM__RETRIES": "0", "MOOTHALL_LIMITS__PATIENCE": "0"}
AGENTS = (TEST_WRITER, TIE_BREAKER)


def replay(recording: Mapping[str, Any]) -> Any:
    """Reply as recorded, by seat and turn. A call after the last turn is an error of the loop."""

    def answer(body: Mapping[str, Any], headers: Mapping[str, str]) -> Reply:
        if "tools" not in body and phase_of(headers) == "verify" and seat_of(headers) in AGENTS:
            return json.dumps({"dropped": []})  # the reader of tests against the task
        if phase_of(headers) != "propose" and seat_of(headers) not in AGENTS:
            return json.dumps({"comment": "fine", "met": [], "unmet": [1], "score": 6})
        turns = recording["seats"][seat_of(headers)]
        reply = turns[int(step_of(headers).split(".")[1]) - 1]
        calls = tuple((call["name"], call["arguments"]) for call in reply.get("calls", ()))
        return NativeReply(calls, reply.get("text", ""))

    return answer


@pytest.mark.parametrize("place", RECORDINGS, ids=lambda place: str(place.stem))
async def test_a_right_change_is_never_lost(place: Path, tmp_path: Path) -> None:
    recording = json.loads(place.read_text(encoding="utf-8"))
    repo = tmp_path / "repo"
    for name, text in recording["files"].items():
        (repo / name).parent.mkdir(parents=True, exist_ok=True)
        (repo / name).write_text(text, encoding="utf-8")
    git(tmp_path, "init", "--quiet", "repo")
    git(repo, "add", "--all")
    git(
        repo,
        "-c",
        "user.name=Ada",
        "-c",
        "user.email=ada@example.org",
        "commit",
        "--quiet",
        "--message",
        "begin",
    )
    async with scripted_model(replay(recording), tools=True) as model:
        settings = {
            "MOOTHALL_EVIDENCE__AGENTS": json.dumps(
                ["reviewers", *(agent for agent in AGENTS if agent in recording["seats"])]
            ),
        }
        command = Command(tmp_path / "data", model.base_url, QUICK | settings)
        seats = [seat for seat in recording["seats"] if seat not in AGENTS]
        options = ("--protocol", recording.get("protocol", "single"), "--agents", str(len(seats)))
        result = await command(
            "deliberate", "--repo", str(repo), *options, "--json", recording["task"], seconds=600
        )
        assert result.document["winner_id"], result.err
        assert recording.get("level") in {None, result.document["evidence_level"]}, result.document[
            "results"
        ][0]["reasons"]
        calls = [call for call in model.requests if "tools" in call.body]
        assert len(calls) == sum(map(len, recording["seats"].values()))
        first = model.requests[0]
        logged = await command("log", "tail", "--task", result.document["task_id"], "--json")
    assert len(first.prompt) < 9_000, "the first prompt stays short"
    turns = [
        event
        for line in logged.out.splitlines()
        if (event := json.loads(line)).get("type") == EventType.SEAT_TURN
    ]
    assert len(turns) == sum(map(len, recording["seats"].values()))
    git(repo, "checkout", "--quiet", result.document["branch"])
    for name, text in recording["hidden"].items():
        (repo / name).parent.mkdir(parents=True, exist_ok=True)
        (repo / name).write_text(text, encoding="utf-8")
    argv = [sys.executable if word == "python" else word for word in recording["check"]]
    hidden = subprocess.run(
        argv,
        cwd=repo,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "CARGO_TARGET_DIR": str(tmp_path)},
    )
    assert hidden.returncode == 0, hidden.stdout + hidden.stderr
