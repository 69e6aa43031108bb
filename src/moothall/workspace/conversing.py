"""The trusted side of a program that is talked to in a box. What comes from the box is hostile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from moothall.inside.conversing import COMMAND
from moothall.ports import Hear
from moothall.sandbox.spec import ENVIRONMENT
from moothall.workspace.asking import cut
from moothall.workspace.box import Answer, Box

_MOST_ASKED = 10_000


async def converse(box: Box, argv: Sequence[str], hear: Hear, seconds: float, most: int) -> str:
    """Run a program in a box and carry lines between it and `hear`. See `ports.Workspace.converse`."""
    left = _MOST_ASKED

    async def asked(message: Answer) -> Answer:
        nonlocal left
        left -= 1
        arguments = message.get("args")
        lines = arguments.get("lines") if isinstance(arguments, Mapping) else None
        told = await hear([line for line in lines if isinstance(line, str)] if isinstance(lines, list) else [])
        return {"lines": list(told or ()), "end": told is None or left < 0}

    env = box.variables()
    # What is run is the operator's choice, and no program of that name that a repository brought.
    env["PATH"] = ":".join(folder for folder in env["PATH"].split(":") if not folder.startswith(f"{ENVIRONMENT}/"))
    answer = await box.request(
        "run",
        wall_seconds=seconds,
        asked=asked,
        argv=(box.python, "-B", "-c", COMMAND),
        env=env,
        block={"argv": list(argv), "most": most},
    )
    end = answer.get("end")
    if answer.get("status") != "success":
        why = f"it was stopped: {str(answer.get('status'))[:40]}"
    elif not isinstance(end, Mapping):
        why = f"it ended by itself with exit code {answer.get('exit_code')}"
    elif not (why := str(end.get("ended") or "")):
        return ""
    said = str(answer.get("output") or "").strip()
    return cut(f"{why}; it said: {said}" if said else why)
