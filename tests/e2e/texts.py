"""A story about texts in both cases: its repository, the model's replies, and a person who moves it
on the board.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
from served import Served

from command import task_of, turn
from moothall.pb.planning.v1 import planning_pb2 as pb
from moothall.pb.planning.v1.planning_pb2_grpc import PlanningServiceStub

PERSON = "the-token-of-somebody-who-may-everything"
TOKENS = (
    f'[[principals]]\ntoken = "{PERSON}"\nname = "pat"\ntenant = "team-p"\nroles = ["po", "qa", '
    '"architect"]\n'
)
_PATIENCE = 240  # in seconds, for a busy machine
METADATA = (("authorization", f"Bearer {PERSON}"),)
AC = (
    "Given the module, when upper('a') is called, then it returns 'A'",
    "Given the module, when lower('A') is called, then it returns 'a'",
)
CHECK = """
import sys
sys.path.insert(0, ".")
from tools import texts
assert texts.first() == "first"
assert getattr(texts, "mode", "old") in {"old", "one", "two", "both", "french", "moved"}
"""


def by_words(body: dict[str, Any], headers: Mapping[str, str]) -> str:
    """Reply for each task by a word of its criteria."""
    prompt = task_of(body)
    if "Divide this story" in prompt:
        first_task = {"id": "one", "role": "dev", "description": "the first", "criteria": [1]}
        second_task = {"id": "two", "role": "dev", "description": "the second", "criteria": [2]}
        last = {
            "id": "last",
            "role": "dev",
            "description": "the last",
            "criteria": [1, 2],
            "after": ["one", "two"],
        }
        single_task = {"id": "alone", "role": "dev", "description": "all of it", "criteria": [1, 2]}
        tasks = {"tasks": [single_task] if "ALONE" in prompt else [last, first_task, second_task]}
        return json.dumps({"thought": "", "finish": json.dumps(tasks)})
    if "sent back: Say it in French" in prompt:
        return turn(
            "files.append",
            path="tools/texts.py",
            content='\n\ndef french():\n    return "premier"\n',
        )
    if "does not go together" in prompt:
        return turn("files.edit", path="tools/texts.py", old='mode = "moved"', new='mode = "both"')
    if "they disagree" in prompt:
        return turn("files.edit", path="tools/texts.py", old='mode = "one"', new='mode = "both"')
    criteria = prompt.partition("It is done when:")[2]
    part = (
        "both"
        if "upper" in criteria and "lower" in criteria
        else "one"
        if "upper" in criteria
        else "two"
    )
    if "MODE" in prompt:
        return turn("files.edit", path="tools/texts.py", old='mode = "old"', new=f'mode = "{part}"')
    return turn(
        "files.write", path=f"tools/{part}.py", content=f"def {part}(text):\n    return text\n"
    )


def make_repository(path: Path, check: str = CHECK) -> Path:
    """Create the repository of the story."""
    files = {
        "tools/texts.py": 'mode = "old"\n\n\ndef first():\n    return "first"\n',
        "check.py": check,
        ".moothall.toml": (
            'setup = []\nprotected = ["check.py"]\n[checks]\ntests = ["python3", "check.py"]\n'
        ),
    }
    for name, text in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text, encoding="utf-8")
    identity = (
        "-c",
        "user.name=t",
        "-c",
        "user.email=t@localhost",
        "-c",
        "init.defaultBranch=main",
    )
    for args in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "begin")):
        subprocess.run(["git", *identity, *args], cwd=path, check=True)
    return path


class Person:
    """A person at the board of a server."""

    def __init__(self, app: Served, story_id: str = "") -> None:
        self.board = PlanningServiceStub(app.channel)
        self.stub = app.stub(PERSON)
        self.story_id = story_id
        self.app = app

    async def create(self, brief: str) -> None:
        request = pb.CreateStoryRequest(
            title="Texts in both cases", brief=brief, ac=AC, repository="project"
        )
        self.story_id = (await self.board.CreateStory(request, metadata=METADATA)).story_id

    async def move(self, *events: str, comment: str = "") -> Any:
        for event in events:
            request = pb.TransitionRequest(story_id=self.story_id, event=event, comment=comment)
            answer = await self.board.Transition(request, metadata=METADATA)
            assert not answer.blocked, answer.reason
        return answer

    async def move_once_allowed(self, event: str) -> None:
        """Move the story as soon as its evidence exists."""
        request = pb.TransitionRequest(story_id=self.story_id, event=event)
        async with asyncio.timeout(_PATIENCE):
            while (await self.board.Transition(request, metadata=METADATA)).blocked:
                await asyncio.sleep(0.1)

    async def delivery_record(self) -> dict[str, Any]:
        """Return the delivery of the story, recorded after its last move to done."""
        headers = {"Authorization": METADATA[0][1]}
        url = f"http://{self.app.web}/api/v1/stories/{self.story_id}"
        async with asyncio.timeout(_PATIENCE), aiohttp.ClientSession(headers=headers) as session:
            while True:
                async with session.get(url) as response:
                    history = (await response.json())["history"]
                position = max(
                    place
                    for place, event in enumerate(history)
                    if event["data"].get("to_state") == "done"
                )
                deliveries = [
                    event["data"]
                    for event in history[position:]
                    if event["type"] == "moothall.story.delivered"
                ]
                if deliveries:
                    return dict(deliveries[0])
                await asyncio.sleep(0.1)

    async def current_board(self) -> Any:
        """Return the current board."""
        return (await self.board.ListStories(pb.ListStoriesRequest(), metadata=METADATA)).stories

    async def wait_for_state(self, state: str) -> Any:
        async with asyncio.timeout(_PATIENCE):
            while True:
                answer = await self.board.GetStory(
                    pb.GetStoryRequest(story_id=self.story_id), metadata=METADATA
                )
                if answer.story.state == state:
                    return answer
                await asyncio.sleep(0.1)
