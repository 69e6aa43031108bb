"""Paths, links, and links that change while a tool looks at them."""

from __future__ import annotations

import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from canary_workspace import SECRET, CanaryWorkspace, guarded_workspace  # noqa: F401 - a fixture
from corpus.attempt import Attempt
from corpus.paths import ATTEMPTS
from moothall.sandbox_runtime import files
from moothall.sandbox_runtime.file_access import TextLimits, ToolFailure
from support.tools import CATALOGUE

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda attempt: attempt.name)
async def test_an_escape_attempt_is_contained(
    guarded_workspace: CanaryWorkspace, attempt: Attempt
) -> None:
    await guarded_workspace.make_attempt(attempt)


async def test_no_process_of_a_workspace_runs_while_its_files_are_handled(
    guarded_workspace: CanaryWorkspace,
) -> None:
    code = (
        "import os, subprocess\nsubprocess.Popen(['sleep', '60'], start_new_session=True)\n"
        "print(len(os.listdir('/proc')))"
    )
    assert (await guarded_workspace.call("code.python", {"code": code})).status == "success"
    running = await guarded_workspace.call("system.processes", {})
    assert [process["pid"] for process in running.output["processes"]] == [2]


@pytest.mark.parametrize(
    "tool",
    [
        "files.write",
        "files.append",
        "files.mkdir",
        "files.read",
        "files.delete",
        "files.edit",
        "files.define",
    ],
)
async def test_a_link_that_changes_during_access_never_leads_outside(
    tmp_path: Path, tool: str
) -> None:
    """The kernel resolves the path when it is opened, so the checked file is the used file."""
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (outside / "f").write_text(SECRET, encoding="utf-8")
    stop = threading.Event()
    folder = inside / "link"

    def flip() -> None:
        steps: tuple[Callable[[], object], ...] = (
            folder.mkdir,
            lambda: (folder / "f").write_text("mine", encoding="utf-8"),
            lambda: folder.rename(inside / "old"),
            lambda: folder.symlink_to(outside),
            lambda: shutil.rmtree(inside / "old"),
            folder.unlink,  # the tool may have made a folder of this name meanwhile
            lambda: shutil.rmtree(folder),
        )
        while not stop.is_set():
            for step in steps:
                with suppress(OSError):
                    step()

    flipping = threading.Thread(target=flip)
    flipping.start()
    arguments = {
        "path": "link/n" if tool == "files.mkdir" else "link/f",
        "content": "escaped",
        "old": "canary",
        "new": "x",
    }
    if tool == "files.define":
        arguments |= {"path": "link/f.py", "name": "f", "content": "def f(): pass"}
    checked = CATALOGUE[tool].arguments
    arguments = checked(
        **{k: v for k, v in arguments.items() if k in checked.model_fields}
    ).model_dump()
    root, outcomes = os.open(inside, os.O_PATH | os.O_DIRECTORY), Counter[str]()
    try:
        for _ in range(400):
            try:
                answer = files.TOOLS[tool](root, arguments, TextLimits(1_000_000, 100_000))
                assert SECRET not in str(answer)
                outcomes["done"] += 1
            except (ToolFailure, OSError) as error:
                outcomes[type(error).__name__] += 1
    finally:
        stop.set()
        flipping.join()
        os.close(root)
    assert [(path.name, path.read_text(encoding="utf-8")) for path in outside.iterdir()] == [
        ("f", SECRET)
    ]
    assert outcomes.total() == 400
