"""The environment of the page's tests: a repository with a failing check, a scripted model, a
running server and a browser.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, async_playwright

from command import Command, git, task_of, turn
from moothall.testing.model import Fault

BIDI = "\u202etxt.exe"
HOSTILE = (
    "<script>document.title='owned'</script><img src=x "
    f"onerror=\"document.title='owned'\"><b>bold</b>{BIDI}"
)
"""Text that would have an effect if the page treated it as HTML."""
HELLO = '\n\ndef hello_world():\n    """Return the greeting."""\n    return "Hello, World!"\n'
FRENCH = '\n\ndef bonjour():\n    """Return the greeting in French."""\n    return "Bonjour"\n'
_FILES = {
    "src/utils.py": '"""Small things."""\n',
    "check.py": (
        'import sys\nsys.path.insert(0, ".")\nfrom src.utils import hello_world\nassert '
        'hello_world() == "Hello, World!"\n'
    ),
    ".moothall.toml": (
        'setup = []\nprotected = ["check.py"]\n[checks]\ntests = ["python3", "check.py"]\n'
    ),
}
VIEWPORTS = {"wide": (1440, 900), "narrow": (390, 844)}


def make_repository(path: Path) -> Path:
    """Create a repository in which hello_world is missing."""
    for name, text in _FILES.items():
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


def by_words(body: dict[str, Any], headers: Mapping[str, str]) -> str | Fault:
    """Reply by words of the task.

    By default there is one task that adds the function. A line comment that sends it back is
    answered in French. HOSTILE makes names and text hostile. SLOW yields two tasks, whose seats
    stream a reply until somebody stops them.
    """
    del headers
    task_text, prompt = (
        task_of(body),
        "\n".join(str(message["content"]) for message in body["messages"]),
    )
    if "Divide this story" in task_text:
        count = len(re.findall(r"(?m)^\d+\. ", task_text.partition("Divide this story")[2])) or 1
        task = {
            "id": "hello",
            "role": "dev",
            "description": "Add hello_world",
            "criteria": list(range(1, count + 1)),
        }
        test_task = {
            "id": "tests",
            "role": "qa",
            "description": "Test it",
            "criteria": [1],
            "after": ["hello"],
        }
        tasks = [task, test_task] if "SLOW" in task_text else [task]
        return json.dumps({"thought": "", "finish": json.dumps({"tasks": tasks})})
    if "SLOW" in task_text:
        return Fault("silent", f"I would write {HOSTILE} ")
    if "sent back" in task_text and "in French" in task_text:
        return turn("files.append", path="src/utils.py", content=FRENCH)
    if "HOSTILE" in task_text and "<script" not in prompt.partition("src/utils.py")[2]:
        return turn("files.append", path="src/utils.py", content=f"{HELLO}\n\n# {HOSTILE}\n")
    return turn("files.append", path="src/utils.py", content=HELLO)


@dataclass(slots=True)
class Reader:
    """A browser page at a server, with its errors."""

    page: Page
    web: str
    errors: list[str]

    def note(self, problem: str) -> None:
        """Record an error."""
        self.errors.append(problem)

    async def open(self, path: str) -> None:
        """Go to a path of the server."""
        await self.page.goto(f"{self.web}{path}")

    async def sign_in(self, link: str) -> None:
        """Follow the link that `serve` printed. From then on, only that server may be requested."""
        self.web = link.partition("/sign-in")[0]
        await self.page.goto(link)

    async def take_session(self, of: Reader) -> None:
        """Take over the session of another reader."""
        self.web = of.web
        [session] = await of.page.context.cookies()
        await self.page.context.add_cookies(
            [{"name": session["name"], "value": session["value"], "url": of.web}]
        )

    async def press(self, name: str) -> None:
        """Press the button that begins with these words, and wait for the next page."""
        await self.page.get_by_role(
            "button", name=re.compile(f"^{re.escape(name)}", re.IGNORECASE)
        ).first.click()
        await self.page.wait_for_load_state()

    async def sign_out(self) -> None:
        """Sign out with the menu of the account."""
        await self.page.locator(".menu summary").click()
        await self.press("Sign out")

    async def text(self) -> str:
        """Return the visible text."""
        return await self.page.inner_text("body")

    async def violations(self) -> list[str]:
        """Return the findings of axe-core, a line each."""
        entries = (await Axe().run(self.page)).response["violations"]
        return [f"{item['id']}: {node['html'][:200]}" for item in entries for node in item["nodes"]]


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """Start the system's Chromium."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("Chromium is missing; apt-get install chromium brings it")
    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(executable_path=path)
        try:
            yield started
        finally:
            await started.close()


@asynccontextmanager
async def reader(
    browser: Browser, viewport: str = "wide", scheme: Any = "light", *, scripts: bool = True
) -> AsyncIterator[Reader]:
    """Open a fresh browser profile and record its errors, dialogs and requests to other hosts."""
    width, height = VIEWPORTS[viewport]
    context = await browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=scheme,
        java_script_enabled=scripts,
    )
    page = await context.new_page()
    new_reader = Reader(page, "", [])
    page.on("dialog", lambda dialog: new_reader.note(f"dialog: {dialog.message}"))
    page.on("pageerror", lambda error: new_reader.note(f"error: {error}"))
    page.on(
        "console",
        lambda message: (
            new_reader.note(f"console: {message.text}") if message.type == "error" else None
        ),
    )
    page.on(
        "request",
        lambda request: (
            None
            if request.url.startswith((new_reader.web, "data:"))
            else new_reader.note(f"asked {request.url}")
        ),
    )
    try:
        yield new_reader
    finally:
        await context.close()


def make_command(folder: Path, model_url: str) -> Command:
    """Return a command whose server hosts its councils itself, and serves HTTP on a port that stays
    the same after a restart.
    """
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    variables = {
        "MOOTHALL_RAY__MODE": "process",
        "MOOTHALL_LOG__LEVEL": "error",
        "MOOTHALL_WEB__PORT": str(port),
    }
    return Command(folder / "data", model_url, variables)


def commits(repo: Path, branch: str) -> str:
    """Return the file of the story, as committed on the branch."""
    return git(repo, "show", f"{branch}:src/utils.py")
