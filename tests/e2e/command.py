"""Helpers of the end-to-end tests: a scripted council, repositories, and the real command as a
process.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from moothall.testing.model import Answer, Fault, Reply, phase_of, seat_of

SOLVED = '\n\ndef hello_world():\n    """Return the greeting."""\n    return "Hello, World!"\n'
QUICK = {
    "MOOTHALL_LLM__APPROACHES": "off",
}
"""Settings that skip flakiness checks and approaches, for tests about other things."""
WRONG = '\n\ndef hello_world():\n    return "Goodbye"\n'


def git(repo: Path, *args: str) -> str:
    """Run git in a repository and return its output."""
    completed = subprocess.run(
        ["git", "-C", str(repo), *args], check=True, capture_output=True, text=True
    )
    return completed.stdout.strip()


def turn(tool: str, **args: Any) -> str:
    """Return a reply with one action."""
    return json.dumps({"thought": "do it", "actions": [{"tool": tool, "args": args}]})


def task_of(body: dict[str, Any]) -> str:
    """Return the task of a prompt, or the whole prompt if it has none. The story's context mentions
    other tasks too.
    """
    prompt = "\n".join(str(message["content"]) for message in body["messages"])
    match = re.search(r"(?s)--- the task \[(\w+)\] ---\n(.*?)\n--- end \[\1\] ---", prompt)
    return match[2] if match else prompt


def answer_turns_with(propose: Answer) -> Answer:
    """Answer requests for approaches and reviews; delegate turns to `propose`."""

    async def answer(body: dict[str, Any], headers: Mapping[str, str]) -> Reply:
        phase = phase_of(headers)
        if phase == "plan":
            return json.dumps(
                {"approaches": ["append the function", "rewrite the file", "edit in place"]}
            )
        if phase in {"critique", "verify"}:
            return json.dumps({"score": 7, "met": [], "unmet": [], "comment": "reads well"})
        reply = propose(body, headers)
        return reply if isinstance(reply, Reply) else await reply

    return answer


def by_task(body: dict[str, Any], headers: Mapping[str, str]) -> str | Fault:
    """Choose a seat's reply by a word in its task, so that one server serves every test."""
    prompt = "\n".join(str(message["content"]) for message in body["messages"])
    if "HANG" in prompt:
        return Fault("silent", delay=0.1)
    if "WRONG" in prompt:
        return turn("files.append", path="src/utils.py", content=WRONG)
    if "NOTES" in prompt:
        return (
            turn("files.write", path="NOTES.md", content="# Notes\n")
            if "NOTES.md" not in prompt
            else '{"thought": "", "finish": "ok"}'
        )
    if "HAIKU" in prompt:
        return json.dumps({"thought": "", "finish": "An old silent pond"})
    own_words = f"\n# written by {seat_of(headers)[-1]}\n" if "VARIED" in prompt else ""
    return turn("files.append", path="src/utils.py", content=SOLVED + own_words)


@dataclass(frozen=True, slots=True)
class Run:
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The JSON document on its stdout."""
        return json.loads(self.out)


@dataclass(slots=True)
class Command:
    """The `moothall` command with its own environment."""

    data_dir: Path
    model_url: str = ""
    extra: dict[str, str] = field(default_factory=dict)
    served_at: str = ""
    server_pid: int = 0
    pass_fds: tuple[int, ...] = ()
    """Descriptors that its process inherits."""
    python: str = sys.executable
    """The interpreter of the environment in which it is installed."""

    def environment(self) -> dict[str, str]:
        """The environment of the process."""
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith("MOOTHALL_")
        }
        # Remove the settings of whoever runs the tests.
        own_variables = {
            "MOOTHALL_DATA_DIR": str(self.data_dir),
            "MOOTHALL_LLM__MODEL": "",
            "XDG_CONFIG_HOME": str(self.data_dir / "config"),
        }
        if self.model_url:
            own_variables["MOOTHALL_LLM__BASE_URL"] = self.model_url
        return inherited | own_variables | self.extra

    async def start(
        self, *args: str, cwd: Path | None = None, stdout: int = asyncio.subprocess.PIPE
    ) -> asyncio.subprocess.Process:
        """Start the command and return the process. `stdout` receives its output."""
        return await asyncio.create_subprocess_exec(
            self.python,
            "-m",
            "moothall",
            *args,
            cwd=cwd,
            env=self.environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=stdout,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=self.pass_fds,
        )

    async def __call__(self, *args: str, cwd: Path | None = None, seconds: float = 240) -> Run:
        """Run the command and wait for its end."""
        process = await self.start(*args, cwd=cwd)
        try:
            async with asyncio.timeout(seconds):
                out, err = await process.communicate()
        except TimeoutError:
            process.terminate()
            out, err = await process.communicate()
            raise AssertionError(
                f"{args} took longer than {seconds} s\n{out.decode()}\n{err.decode()}"
            ) from None
        assert process.returncode is not None
        return Run(process.returncode, out.decode(), err.decode())


def most_at_once(tasks: list[dict[str, Any]]) -> int:
    """Return the maximum number of these tasks, given as in `list --json`, that ran at the same
    time.
    """
    moments = [(datetime.fromisoformat(task["requested"]), 1) for task in tasks]
    moments += [(datetime.fromisoformat(task["ended"]), -1) for task in tasks]
    running = max_running = 0
    for _, step in sorted(moments):
        running += step
        max_running = max(max_running, running)
    return max_running


def mounts_below(path: Path) -> list[str]:
    """Return the mounts below a path in this machine's mount namespace."""
    return [
        line
        for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
        if str(path) in line
    ]
