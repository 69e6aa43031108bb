"""Commands of docs/operating.md, run with a deployment's own names in place of the page's."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

from support.kube.stood import DEPLOYMENTS

TEXT = (Path(__file__).parents[3] / "docs/operating.md").read_text(encoding="utf-8")
ROOT = Path(__file__).parents[3]


def lines(part: str) -> list[str]:
    """Return the commands of the page on lines of their own that contain this text, in order.
    Raises `AssertionError` if there are none.
    """
    matching = [line for line in re.findall(r"^    (\S.*)$", TEXT, re.MULTILINE) if part in line]
    assert matching, f"docs/operating.md has no command with {part!r}"
    return matching


def line(part: str) -> str:
    """Return the only such command. Raises `AssertionError` if it is not unique."""
    matching = lines(part)
    assert len(set(matching)) == 1, matching
    return matching[0]


def by_role(command: str, space: str) -> str:
    """Return a command as adapted to a deployment by role: `where this page says
    deployment/moothall, say the four`.
    """
    deployments = " ".join(f"deployment/moothall-{name}" for name in DEPLOYMENTS)
    return re.sub(
        r"deployment/moothall(?![\w-])",
        deployments,
        command.replace("-n moothall ", f"-n {space} "),
    )


async def run(command: str, folder: Path = ROOT) -> str:
    """Run a command in a folder as a person does and return its output. Raises `AssertionError`
    with the output if it fails.
    """
    process = await asyncio.create_subprocess_exec(
        "bash",
        "-eo",
        "pipefail",
        "-c",
        command,
        cwd=folder,
        env=os.environ,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output = (await process.communicate())[0].decode()
    assert process.returncode == 0, f"{command}: {output}"
    return output
