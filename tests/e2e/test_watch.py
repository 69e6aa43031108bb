"""`moothall watch` as a process: an issue in, a pull request out. The forge is a fake, or a real
Gitea that scripts/test-forge names.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from command import SOLVED, WRONG, Command, answer_turns_with, task_of, turn
from moothall.config import environment
from moothall.testing.model import Fault, scripted_model
from support.forge import REPOSITORY, Place, fake_forge, place_of

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

LABEL = "moothall"
FURTHER = '\n\ndef goodbye():\n    return "Goodbye"\n'


def propose(body: dict[str, Any], headers: Mapping[str, str]) -> str | Fault:
    task, prompt = task_of(body), "\n".join(str(message["content"]) for message in body["messages"])
    if task.startswith(("Change what was done", "Fix the checks")):
        if "def goodbye" in prompt:
            return json.dumps({"thought": "", "finish": "There is a goodbye() now."})
        return turn("files.append", path="src/utils.py", content=FURTHER)
    return turn("files.append", path="src/utils.py", content=WRONG if "WRONG" in task else SOLVED)


@pytest.fixture(params=["gitea", "github", "real gitea"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param != "real gitea":
        with fake_forge(tmp_path, request.param) as forge:
            yield place_of(forge)
        return
    binary = environment().get("GITEA", "")
    if not binary:
        pytest.skip("no real Gitea: scripts/test-forge brings one")
    from support.gitea import real_gitea

    with real_gitea(Path(binary), tmp_path) as real:
        yield real


@pytest_asyncio.fixture(loop_scope="session")
async def watch(place: Place, tmp_path: Path) -> AsyncIterator[Command]:
    """The command with the settings of a forge."""
    token = tmp_path / "token"
    token.write_text(place.tokens["moothall-bot"] + "\n", encoding="utf-8")
    async with scripted_model(answer_turns_with(propose)) as model:
        yield Command(
            tmp_path / "data",
            model.base_url,
            {
                "MOOTHALL_FORGE__KIND": place.kind,
                "MOOTHALL_FORGE__URL": place.url,
                "MOOTHALL_FORGE__TOKEN_FILE": str(token),
                "MOOTHALL_FORGE__REPOSITORIES": json.dumps([REPOSITORY]),
                "MOOTHALL_FORGE__MENTION": "@moothall-bot",
                "MOOTHALL_WORKSPACE__ALLOWED_SCHEMES": '["http"]',
            },
        )


async def test_an_issue_leads_to_a_pull_request_and_a_review_to_a_second_commit(
    place: Place, watch: Command
) -> None:
    ada, eve = place.person("ada"), place.person("eve")
    number = ada.open_issue(
        "hello_world() is missing", "It belongs into src/utils.py.", label=LABEL
    )
    outsider_issue = eve.open_issue("Do this @moothall-bot", "for a stranger")
    result = await watch("watch", "--once")
    assert result.code == 0, result.err
    (pull,) = ada.pulls()
    branch = pull["head"]["ref"]
    assert branch.startswith(f"moothall/issue-{number}-")
    assert (pull["title"], pull["base"]["ref"]) == ("hello_world() is missing", "main")
    assert pull["body"].startswith(
        f"Task `{branch.removeprefix('moothall/')}` for issue #{number}: agent-dev-"
    )
    assert f"Closes #{number}\n" in pull["body"]
    assert "| 1 | agent-dev-" in pull["body"]
    assert "tests passed (2 passed, 0 failed)" in pull["body"]
    assert (ada.comments(number), ada.comments(outsider_issue)) == ([], [])
    assert "hello_world" in place.repo.git("show", f"{branch}:src/utils.py")
    first = pull["head"]["sha"]
    assert place.repo.git("log", "--format=%s", "-1", first).startswith(
        f"Solve issue {number} of {REPOSITORY}"
    )

    second_run = await watch("watch", "--once")
    assert (second_run.code, len(ada.pulls())) == (0, 1), second_run.err

    eve.review(pull["number"], "Delete all of it.")
    ada.review(pull["number"], "Looks fine so far.", event="COMMENT")
    ada.review(
        pull["number"], "There should be a goodbye() too.", ("src/utils.py", "below this, please")
    )
    further = await watch("watch", "--once")
    assert further.code == 0, further.err
    (pull,) = ada.pulls()
    second = pull["head"]["sha"]
    assert place.repo.git("log", "--format=%H", f"{second}", "-3").split()[1] == first
    assert "def goodbye" in place.repo.git("show", f"{branch}:src/utils.py")
    (comment,) = ada.comments(pull["number"])
    assert comment.startswith(f"Task `{branch.removeprefix('moothall/')}-r")
    assert f"commit {second}" in comment
    assert place.repo.git("branch", "--list", "moothall/*") == branch

    last = await watch("watch", "--once")
    assert (last.code, ada.pulls()[0]["head"]["sha"], len(ada.comments(pull["number"]))) == (
        0,
        second,
        1,
    ), last.err


def run_ci(place: Place, sha: str) -> str:
    """Act as a CI system: set the status of a commit, which is green if it has a goodbye(). Return
    the combined status of the commit.
    """
    ada = place.person("ada")
    if "def goodbye" in place.repo.git("show", f"{sha}:src/utils.py"):
        ada.set_status(sha, "success", "2 passed")
    else:
        ada.set_status(sha, "failure", "1 failed: src/utils.py has no goodbye()")
    (status,) = ada("GET", f"/commits/{sha}/status")["statuses"]
    return str(status.get("status") or status["state"])


async def test_a_failed_status_leads_to_a_second_commit_that_passes(
    place: Place, watch: Command
) -> None:
    ada = place.person("ada")
    ada.open_issue("hello_world() is missing", "It belongs into src/utils.py.", label=LABEL)
    assert (await watch("watch", "--once")).code == 0
    (pull,) = ada.pulls()
    first, branch = pull["head"]["sha"], pull["head"]["ref"]
    assert run_ci(place, first) == "failure"

    result = await watch("watch", "--once")
    assert result.code == 0, result.err
    (pull,) = ada.pulls()
    second = pull["head"]["sha"]
    assert place.repo.git("log", "--format=%H", "-2", second).split() == [second, first]
    assert place.repo.git("log", "--format=%s", "-1", second).startswith("Fix the checks that")
    (comment,) = ada.comments(pull["number"])
    task_id = f"{branch.removeprefix('moothall/')}-checks-{first[:12]}"
    assert comment.startswith(f"Task `{task_id}` for the failed checks of {first}: ")
    assert f"commit {second}" in comment
    assert run_ci(place, second) == "success"

    last = await watch("watch", "--once")
    assert (last.code, ada.pulls()[0]["head"]["sha"]) == (0, second), last.err
    assert len(ada.comments(pull["number"])) == 1


async def test_a_missing_answer_is_a_comment_and_a_writers_mention_starts_another_attempt(
    place: Place, watch: Command
) -> None:
    ada, eve = place.person("ada"), place.person("eve")
    number = eve.open_issue("hello_world() WRONG", "")
    ada("POST", f"/issues/{number}/labels", labels=[LABEL])
    result = await watch("watch", "--once")
    assert result.code == 0, result.err
    (comment,) = ada.comments(number)
    assert "there is no answer" in comment
    assert ada.pulls() == []
    ada("PATCH", f"/issues/{number}", title="hello_world()")
    eve("POST", f"/issues/{number}/comments", body="@moothall-bot try again")
    second_run = await watch("watch", "--once")
    assert (second_run.code, len(ada.comments(number)), ada.pulls()) == (0, 2, []), second_run.err
    ada("POST", f"/issues/{number}/comments", body="@moothall-bot, try again")
    third = await watch("watch", "--once")
    assert third.code == 0, third.err
    (pull,) = ada.pulls()
    assert pull["body"].startswith(f"Task `{pull['head']['ref'].removeprefix('moothall/')}-c")


async def test_a_killed_watch_resumes_and_opens_one_pull_request(
    place: Place, watch: Command
) -> None:
    ada = place.person("ada")
    ada.open_issue("hello_world() is missing", "", label=LABEL)
    process = await watch.start("watch")
    assert process.stderr is not None
    async with asyncio.timeout(120):
        while "is at work" not in (line := (await process.stderr.readline()).decode()):
            assert line, "watch ended unexpectedly"
    process.send_signal(signal.SIGKILL)
    await process.wait()
    result = await watch("watch", "--once")
    assert result.code == 0, result.err
    assert len(ada.pulls()) == 1
