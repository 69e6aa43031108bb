"""A model that knows the answer and gives it with a probability of one half.

A hash of project and seat decides whether a seat is right, and how it is wrong; the model reads
nothing in a prompt. A right seat removes the fault. A wrong one removes it and inserts another,
leaves it and says so in a comment, or empties the failing tests.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from moothall.testing.model import Answer, Headers, call_id_of, phase_of, seat_of, step_of
from mutate import Fault

SEATS = ("agent-dev-001", "agent-dev-002", "agent-dev-003")
_COMMENTS = {".py": "#"}


@dataclass(frozen=True, slots=True)
class Riddle:
    """A broken repository: its files as released, the fault, another possible fault, and the test
    files that detect it.
    """

    texts: Mapping[str, str]
    first: Fault
    second: Fault
    tests: tuple[str, ...] = ()

    @property
    def broken(self) -> str:
        """The broken file's text."""
        return self.first.broken(self.texts[self.first.path])

    def right_actions(self) -> list[dict[str, Any]]:
        """Return the actions that restore the release."""
        path = self.first.path
        return [_edit(path, self.broken, self.texts[path])]

    def wrong_actions(self, variant: int) -> list[dict[str, Any]]:
        """Return actions that do not, in one of several ways."""
        path, second_path = self.first.path, self.second.path
        if variant == 0:
            broken = {**self.texts, path: self.broken}
            files = {**self.texts, second_path: self.second.broken(self.texts[second_path])}
            return [
                _edit(file, broken[file], files[file])
                for file in dict.fromkeys((path, second_path))
            ]
        if variant == 1 and self.tests:
            return [
                {"tool": "files.write", "args": {"path": test, "content": ""}}
                for test in self.tests[:4]
            ]
        mark = _COMMENTS.get(path[path.rfind(".") :], "//")
        return [
            {
                "tool": "files.append",
                "args": {"path": path, "content": f"\n{mark} This is as it was meant.\n"},
            }
        ]


@dataclass(slots=True)
class Player:
    """Answers for every council by its task id. `chance` is the probability of a right seat; with 0
    none is right, otherwise at least one.
    """

    chance: float = 0.5
    riddles: dict[str, Riddle] = field(default_factory=dict)

    def right_seats(self, task_id: str) -> frozenset[str]:
        """Return the right seats of a council, drawn until there is one."""
        for attempt in range(100 if self.chance else 0):
            drawn = frozenset(
                seat for seat in SEATS if _draw(task_id, seat, str(attempt)) < self.chance
            )
            if drawn:
                return drawn
        return frozenset()

    def answer(self) -> Answer:
        """Return the server's reply."""

        def reply(_body: dict[str, Any], headers: Headers) -> str:
            task_id, seat, phase = (
                call_id_of(headers).split("/")[0],
                seat_of(headers),
                phase_of(headers),
            )
            if phase == "plan":
                return json.dumps(
                    {
                        "approaches": [
                            "take the change back",
                            "look at the failing tests",
                            "read the callers",
                        ]
                    }
                )
            if phase in {"critique", "verify"}:
                return json.dumps({"score": 7, "met": [], "unmet": [], "comment": "reads well"})
            riddle = self.riddles[task_id]
            if step_of(headers) != "0.1":
                return json.dumps({"thought": "that is it", "finish": "Mended."})
            right = seat in self.right_seats(task_id)
            actions = (
                riddle.right_actions()
                if right
                else riddle.wrong_actions(int(_draw(task_id, seat, "how") * 3))
            )
            return json.dumps({"thought": "mend it", "actions": actions})

        return reply


def _draw(*parts: str) -> float:
    """Return a number from 0 to 1, the same for the same words."""
    return int(hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8], 16) / 0x100000000


def _edit(path: str, before: str, after: str) -> dict[str, Any]:
    """Return the action that turns one text into the other: the lines that differ, preceded by as
    many lines as make the place unique.
    """
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    first = next(
        (
            at
            for at, (old_line, new_line) in enumerate(zip(old, new, strict=False))
            if old_line != new_line
        ),
        min(len(old), len(new)),
    )
    last = 0
    while last < min(len(old), len(new)) - first and old[-1 - last] == new[-1 - last]:
        last += 1
    while first and before.count("".join(old[first : len(old) - last])) != 1:
        first -= 1
    args = {
        "path": path,
        "old": "".join(old[first : len(old) - last]),
        "new": "".join(new[first : len(new) - last]),
    }
    return {"tool": "files.edit", "args": args}
