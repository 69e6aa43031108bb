"""A task, a branch and a file name full of quotes, `$()` and newlines, in a council whose seats
work in Jobs.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from k8s.conftest import NEWLINE, ODD
from k8s.test_deploy import SAMPLE, run_in_pod

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]

TASK = (
    'ODD: add hello_world() function to src/utils.py\n--; it\'s "quoted" $(touch /data/pwned) '
    "`touch /data/pwned` $HOME %s \\n {x}"
)
BRANCH = 'it\'s-"$(touch${IFS}pwned)";x&y|`z`'
BEFORE = "was here: $(id)\n"
ON_BRANCH = """
import subprocess, sys
from pathlib import Path
repo, branch, name, text = sys.argv[1:]
subprocess.run(("git", "-C", repo, "checkout", "-q", "-b", branch), check=True)
Path(repo, name).write_text(text)
who = ("-c", "user.name=t", "-c", "user.email=t@localhost")
for words in (("add", "."), (*who, "commit", "-q", "-m", "second"), ("checkout", "-q", "main")):
    subprocess.run(("git", "-C", repo, *words), check=True)
"""


async def git(*arguments: str) -> str:
    return await run_in_pod("git", "-C", "/data/odd", *arguments)


async def test_values_with_quotes_and_newlines_do_not_change_the_outcome(
    installed: dict[str, Path],
) -> None:
    await run_in_pod("python", "-c", SAMPLE, "/data/odd")
    await run_in_pod("python", "-c", ON_BRANCH, "/data/odd", BRANCH, ODD, BEFORE)
    arguments = (
        "deliberate",
        "--repo",
        "/data/odd",
        "--ref",
        BRANCH,
        "--agents",
        "3",
        "--task-id",
        "odd",
        "--json",
        "--",
        TASK,
    )
    output = await run_in_pod("moothall", *arguments)
    result = json.loads(output[output.index("{") : output.rindex("}") + 1])
    assert result["proven"] is True
    tip = f"refs/heads/{BRANCH}"
    assert (await git("rev-parse", f"{result['branch']}~1")) == (await git("rev-parse", tip)), (
        "the branch has the delivery"
    )
    changed = await git("diff", "--name-only", "-z", tip, result["branch"])
    assert set(changed.strip("\0").split("\0")) == {ODD, "src/utils.py"}
    assert await git("show", f"{result['branch']}:{ODD}") == BEFORE + "$(id)\n'\"\n"
    listed = json.loads(await run_in_pod("moothall", "list", "--json"))
    (description,) = [task["description"] for task in listed["tasks"] if task["task_id"] == "odd"]
    assert description == TASK
    events = [
        json.loads(line)
        for line in (
            await run_in_pod("moothall", "log", "tail", "--task", "odd", "--json")
        ).splitlines()
    ]
    turns = [task["data"]["operations"] for task in events if task["type"] == "moothall.seat.turn"]
    ends = [[operation["status"] for operation in turn] for turn in turns]
    assert ends == [["success", "success", "blocked"]] * 3, (
        "tools accept every name except one with two lines"
    )
    assert await run_in_pod("find", "/data", "/tmp", "-name", "pwned*", check=False) == "", (
        "a value was executed"
    )


async def test_a_file_name_with_a_newline_is_kept_in_the_repository(
    installed: dict[str, Path],
) -> None:
    await run_in_pod("python", "-c", SAMPLE, "/data/lines")
    await run_in_pod("python", "-c", ON_BRANCH, "/data/lines", "lines", NEWLINE, BEFORE)
    arguments = (
        "deliberate",
        "--repo",
        "/data/lines",
        "--ref",
        "lines",
        "--agents",
        "3",
        "--json",
        "Add hello_world()",
    )
    output = await run_in_pod("moothall", *arguments)
    result = json.loads(output[output.index("{") : output.rindex("}") + 1])
    names = await run_in_pod(
        "git", "-C", "/data/lines", "ls-tree", "-rz", "--name-only", result["branch"]
    )
    assert NEWLINE in names.split("\0")
