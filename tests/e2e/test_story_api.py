"""A story over `/api/v1` of a real server, from the backlog to a commit: the board is followed
live, ranking and diff are read, and the story is accepted.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from served import make_command, run_server

from command import Command, answer_turns_with, turn
from moothall.testing.model import scripted_model

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

PERSON = "the-token-of-somebody-who-may-everything"
TOKENS = (
    f'[[principals]]\ntoken = "{PERSON}"\nname = "pat"\ntenant = "team-p"\nroles = ["po", "qa", '
    '"architect"]\n'
)
STORY = {
    "title": "Say hello to the world",
    "brief": (
        "As a reader, I want a greeting, so that I know that the program works. "
        "<script>alert(1)</script>"
    ),
    "ac": [
        "Given the module, when hello_world() is called, then it returns 'hello'",
        "Given the module, when it is imported, then nothing is printed",
    ],
    "repository": "project",
}
CODE = 'def hello_world():\n    """<img src=x onerror=alert(1)>"""\n    return "hello"\n'
CHECK = (
    'import sys\nsys.path.insert(0, ".")\nimport greet\nassert getattr(greet, "hello_world", '
    'lambda: "hello")() == "hello"\n'
)


def answer(_body: dict[str, Any], _headers: Mapping[str, str]) -> str:
    return turn("files.write", path="greet.py", content=CODE)


@pytest_asyncio.fixture(loop_scope="session")
async def own_command(tmp_path: Path) -> AsyncIterator[Command]:
    async with scripted_model(answer_turns_with(answer)) as server:
        command = make_command(tmp_path, server.base_url)
        command.extra["MOOTHALL_WEB__PORT"] = "0"
        (tmp_path / "tokens.toml").write_text(TOKENS, encoding="utf-8")
        yield command


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    path.mkdir()
    (path / "greet.py").write_text("", encoding="utf-8")
    (path / "check.py").write_text(CHECK, encoding="utf-8")
    declared = 'setup = []\nprotected = ["check.py"]\n[checks]\ntests = ["python3", "check.py"]\n'
    (path / ".moothall.toml").write_text(declared, encoding="utf-8")
    for args in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "begin")):
        identity = (
            "-c",
            "user.name=t",
            "-c",
            "user.email=t@localhost",
            "-c",
            "init.defaultBranch=main",
        )
        subprocess.run(["git", *identity, *args], cwd=path, check=True)
    return path


async def follow(
    session: aiohttp.ClientSession, url: str, until: str, last_seq: int = 0
) -> list[tuple[int, str]]:
    """Return seq and state of each board event up to the first one in a state."""
    states: list[tuple[int, str]] = []
    async with session.get(
        f"{url}/api/v1/events", headers={"Last-Event-ID": str(last_seq)}
    ) as response:
        assert response.content_type == "text/event-stream"
        async for line in response.content:
            if line.startswith(b"data: "):
                event = json.loads(line[6:])
                states.append((int(event["seq"]), event["story"]["state"]))
                if states[-1][1] == until:
                    break
    return states


async def test_a_story_is_carried_to_its_commit_over_the_json_api(
    own_command: Command, repo: Path
) -> None:
    added = await own_command("repo", "add", str(repo), "--id", "project", "--tenant", "team-p")
    assert added.code == 0, added.err
    session = aiohttp.ClientSession(headers={"Authorization": f"Bearer {PERSON}"})
    async with run_server(own_command) as app, session, asyncio.timeout(240):
        url = f"http://{app.web}"

        async def ask(method: str, path: str, body: Any = None, **headers: str) -> Any:
            async with session.request(
                method, f"{url}/api/v1/{path}", json=body, headers=headers
            ) as response:
                assert response.status in {200, 201}, await response.text()
                return await response.json()

        score = await ask(
            "POST",
            "coach/score",
            {"title": STORY["title"], "description": STORY["brief"], "ac": STORY["ac"]},
        )
        assert score["total"] >= 75
        created = await ask("POST", "stories", STORY, **{"Idempotency-Key": "once"})
        assert (await ask("POST", "stories", STORY, **{"Idempotency-Key": "once"})) == created
        story = f"stories/{created['story_id']}"
        live = asyncio.create_task(follow(session, url, "done"))

        async def move(event: str) -> str:
            while True:
                current = await ask("GET", story)
                if any(line["event"] == event and not line["missing"] for line in current["moves"]):
                    moved = await ask("POST", f"{story}/transitions", {"event": event})
                    if not moved["blocked"]:
                        return str(moved["state"])
                await asyncio.sleep(0.1)

        assert [
            await move(event) for event in ("refine", "submit", "accept_design", "accept_test")
        ][-1] == "docs"
        document = await ask("GET", story)
        assert document["story"]["brief"] == STORY["brief"]
        checked = next(
            event["data"]
            for event in document["history"]
            if event["type"] == "moothall.story.checked"
        )
        (task, *_) = json.loads(document["plan_json"])["tasks"]
        deliberation = await ask("GET", f"deliberations/{task['task_id']}")
        # As a string in a JSON document.
        assert "onerror=alert(1)" in json.dumps(deliberation["results"])
        assert await move("accept") == "done"
        events = await live
        states = [state for _, state in events]
        assert list(dict.fromkeys(states)) == [
            "backlog",
            "draft",
            "design",
            "build",
            "test",
            "docs",
            "done",
        ]
        # Nothing is lost or duplicated.
        assert await follow(session, url, "done", events[1][0]) == events[2:]
    committed = subprocess.run(
        ["git", "show", f"{checked['branch']}:greet.py"],
        cwd=repo,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert committed == CODE
