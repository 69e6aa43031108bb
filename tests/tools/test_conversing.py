"""Conversations with a program among a workspace's files, here and in a pod: its lines, its files,
and its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from support.local import in_pods, local, python

pytestmark = pytest.mark.e2e

ECHO = (
    "import sys\nfor line in sys.stdin:\n    open('/workspace/said.txt', 'a').write(line)\n    "
    "print('heard', line.strip(), flush=True)"
)
ENDS = "import sys; print('x' * 300, flush=True); sys.stderr.write('enough'); sys.exit(4)"
FLOOD = "while True: print('y' * 1000)"


class Caller:
    """A caller that sends this many lines, one for each line that it receives."""

    def __init__(self, most: int) -> None:
        self.heard: list[str] = []
        self._most = most

    async def __call__(self, lines: Sequence[str]) -> Sequence[str] | None:
        self.heard += lines
        return None if len(self.heard) >= self._most else [f"line {len(self.heard)} ö"]


@pytest.mark.parametrize("opened", [local, in_pods], ids=["here", "pod"])
async def test_a_program_hears_and_says_lines_and_its_files_stay_where_that_is_wanted(
    opened: Any, tmp_path: Path
) -> None:
    async with (
        opened(tmp_path) as app,
        app.workspaces.open(await app.prepared(), "one") as workspace,
    ):
        for keeps in (False, True):
            caller = Caller(3)
            assert (
                await workspace.converse(
                    python(ECHO), caller, seconds=30, max_bytes=100_000, keep_changes=keeps
                )
                == ""
            )
            assert caller.heard == ["heard line 0 ö", "heard line 1 ö", "heard line 2 ö"]
            assert (await workspace.patch("said")).paths == (("said.txt",) if keeps else ())
        ended = await workspace.converse(
            python(ENDS), Caller(10), seconds=30, max_bytes=100_000, keep_changes=True
        )
        assert ended == "it ended with exit code 4; it said: enough"
        flooded = await workspace.converse(
            python(FLOOD), Caller(10**9), seconds=30, max_bytes=50_000, keep_changes=True
        )
        assert flooded.startswith("it sent more than 50000 bytes")
        missing = await workspace.converse(
            ("no-such-program",), Caller(1), seconds=30, max_bytes=1000, keep_changes=True
        )
        assert missing == "no-such-program cannot be run: No such file or directory"
        silent = await workspace.converse(
            python("import time; time.sleep(99)"),
            Caller(1),
            seconds=1,
            max_bytes=1000,
            keep_changes=True,
        )
        assert silent == "it was stopped: timeout"
        assert (await app.call(workspace, "files.read", path="said.txt")).output["total_lines"] == 3
