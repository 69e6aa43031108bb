"""Requests on a forge over HTTP, other text, and the reaction to them; the council is simulated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from moothall.concurrency import run_in_background
from moothall.config import ForgeSettings
from moothall.domain.outcome import DeliberationStatus, Outcome, Result
from moothall.domain.task import Deliberation, RepositoryRef
from moothall.errors import AlreadyExists, Refused
from moothall.forge.client import forge_client
from moothall.forge.watch import Watch, task_of
from support.deliberation_service import MemoryDeliberations
from support.forge import REPOSITORY, TOKENS, FakeForge, fake_forge, place_of

pytestmark = pytest.mark.e2e  # real processes over and over: run with the end-to-end tests

CALL = "@moothall-bot"


@pytest.fixture(params=["gitea", "github", "gitlab"])
def forge(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FakeForge]:
    with fake_forge(tmp_path, request.param) as served:
        yield served


def failed_outcome(d: Deliberation) -> Outcome:
    return Outcome(d.task_id, DeliberationStatus.FAILED, error_message="no candidate passed")


@dataclass
class App:
    """A simulated council, and clones whose commits go straight to the forge."""

    forge: FakeForge
    deliberations: MemoryDeliberations = field(default_factory=MemoryDeliberations)
    offered: list[tuple[str, str]] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    commits_made: int = 0

    async def offer(self, repository: str, sha: str, branch: str) -> None:
        """Offer the change like the real one."""
        branch_head, repo = self.forge.sha(branch), self.forge.repo
        if branch_head not in {"", sha, repo.git("rev-parse", f"{sha}^")}:
            raise AlreadyExists("the branch is already another commit")
        repo.git("update-ref", f"refs/heads/{branch}", sha)
        self.offered.append((repository, sha))

    def commit(self, parent: str) -> str:
        """Create a commit."""
        self.commits_made += 1  # commits are unique
        return self.forge.repo.git(
            "commit-tree", f"{parent}^{{tree}}", "-p", parent, "-m", f"work {self.commits_made}"
        )

    def won(self, d: Deliberation, *, proven: bool = True) -> Outcome:
        """End with a winner."""
        assert d.repository is not None
        sha = self.commit(d.repository.ref or self.forge.sha("main"))
        result = Result(
            1,
            d.seats[0],
            d.role,
            1.0,
            ("its tests pass",),
            passed_gates=True,
            proven=proven,
            content="done",
        )
        branch = f"moothall/{d.task_id}"
        return Outcome(
            d.task_id,
            DeliberationStatus.COMPLETED,
            winner_id=d.seats[0],
            proven=proven,
            results=(result,),
            branch=branch,
            commit_sha=sha,
        )

    @asynccontextmanager
    async def watching(
        self, at_once: int = 2, poll_seconds: float = 60.0, **settings: Any
    ) -> AsyncIterator[Watch]:
        """Open a new watch, as after a restart."""
        forge_fields = {
            "kind": self.forge.kind,
            "url": self.forge.url,
            "repositories": (REPOSITORY,),
            "mention": CALL,
            **settings,
        }
        forge_settings = ForgeSettings.model_validate(
            {"token": SecretStr(TOKENS["moothall-bot"]), **forge_fields}
        )
        async with forge_client(forge_settings) as client:
            yield Watch(
                forge_settings,
                client,
                self.deliberations,
                self.offer,
                {REPOSITORY: "app"},
                task_chars=5000,
                report_progress=self.messages.append,
                at_once=at_once,
                poll_seconds=poll_seconds,
            )

    async def poll(self, ends: Callable[[Deliberation], Outcome], **settings: Any) -> bool:
        """Poll once, with a council that ends like this."""

        async def play() -> None:
            while True:
                await self.deliberations.submitted.wait()
                self.deliberations.submitted.clear()
                for d in self.deliberations.under_way():
                    await self.deliberations.decide(ends(d))

        async with self.watching(**settings) as watch, run_in_background(play(), "council"):
            return await watch.watch_issues(once=True)


@pytest.fixture
def app(forge: FakeForge) -> App:
    return App(forge)


async def test_a_label_starts_one_task_and_progress_is_read_from_the_forge(
    app: App, forge: FakeForge
) -> None:
    number = place_of(forge).person("ada").open_issue("Add a thing", "with care", label="moothall")
    task = task_of(forge.url, REPOSITORY, number)
    forge.failing = lambda call: 502 if call.startswith("POST") and call.endswith("/pulls") else 0
    assert not await app.poll(app.won), "the forge was unavailable"
    assert (forge.pulls, app.deliberations.task_ids()) == ({}, [task])
    assert any("502" in line for line in app.messages)
    forge.failing = lambda call: 0
    assert await app.poll(failed_outcome)
    assert await app.poll(failed_outcome), "a third one, after the end"
    (pull,) = forge.pulls.values()
    assert (pull["head"]["ref"], pull["base"]["ref"], pull["title"]) == (
        f"moothall/{task}",
        "main",
        "Add a thing",
    )
    assert app.deliberations.task_ids() == [task]
    request = app.deliberations.request(task)
    assert request.repository == RepositoryRef(id="app")
    assert all(
        text in request.description
        for text in ("Solve issue 1 of acme/app", "Add a thing", "with care")
    )


async def test_a_changed_issue_keeps_its_running_task(app: App, forge: FakeForge) -> None:
    number = place_of(forge).person("ada").open_issue("Add a thing", "with care", label="moothall")
    forge.failing = lambda call: 502 if call.startswith("POST") else 0
    await app.poll(app.won)
    forge.failing = lambda call: 0
    forge.issues[number]["body"] = "something else"
    assert await app.poll(failed_outcome)
    assert len(forge.pulls) == 1


async def test_a_user_without_write_access_starts_nothing(app: App, forge: FakeForge) -> None:
    ada, eve = place_of(forge).person("ada"), place_of(forge).person("eve")
    issue_number = eve.open_issue(f"{CALL} do this", f"{CALL} please")
    eve("POST", f"/issues/{issue_number}/comments", body=f"{CALL} go")
    ada(
        "POST",
        f"/issues/{issue_number}/comments",
        body=f"> {CALL} go\n\nNo, {CALL}-2 or x{CALL} should.",
    )
    place_of(forge).person("moothall-bot")(
        "POST", f"/issues/{issue_number}/comments", body=f"{CALL} go"
    )
    for number in range(5):
        eve("POST", f"/issues/{issue_number}/comments", body=f"{CALL} go {number}")
    forge.calls.clear()
    assert await app.poll(app.won)
    assert sum("/eve/permission" in call for call in forge.calls) == 1, (
        "many comments of one person cost one request per poll"
    )
    assert app.deliberations.task_ids() == []
    ada("POST", f"/issues/{issue_number}/comments", body=f"Yes, {CALL}: do it")
    assert await app.poll(app.won)
    (task,) = app.deliberations.task_ids()
    assert task.startswith(f"{task_of(forge.url, REPOSITORY, issue_number)}-c")
    assert "Yes, " in app.deliberations.request(task).description


async def test_without_a_configured_mention_nothing_is_started(app: App, forge: FakeForge) -> None:
    place_of(forge).person("ada").open_issue(f"{CALL} do this", "", label="other")
    assert await app.poll(app.won, mention="")
    assert app.deliberations.task_ids() == []


async def test_a_stranger_cannot_impersonate_the_bot_or_its_pull_request(
    app: App, forge: FakeForge
) -> None:
    ada, eve = place_of(forge).person("ada"), place_of(forge).person("eve")
    number = ada.open_issue("Add a thing", "", label="moothall")
    task = task_of(forge.url, REPOSITORY, number)
    eve(
        "POST",
        "/pulls",
        title="mine",
        body=f"Task `{task}`",
        head=f"eve:moothall/{task}",
        base="main",
    )
    eve("POST", f"/issues/{number}/comments", body=f"Task `{task}`: there is no answer")
    assert await app.poll(app.won)
    assert [pull["user"]["login"] for pull in forge.pulls.values()] == ["eve", "moothall-bot"]


async def test_a_missing_answer_or_proof_is_reported_on_the_issue_only(
    app: App, forge: FakeForge
) -> None:
    ada = place_of(forge).person("ada")
    first, second = (ada.open_issue(title, "", label="moothall") for title in ("one", "two"))
    answered = task_of(forge.url, REPOSITORY, first)
    assert await app.poll(
        lambda d: failed_outcome(d) if d.own_id == answered else app.won(d, proven=False)
    )
    assert (forge.pulls, app.offered) == ({}, [])
    assert ada.comments(first)[0].startswith(
        f"Task `{answered}`: there is no answer: no candidate passed"
    )
    assert "no test that failed before shows that it is right" in ada.comments(second)[0]
    assert await app.poll(failed_outcome)
    assert len(ada.comments(first)) == 1


async def test_changes_requested_by_a_writer_are_added_to_the_same_branch(
    app: App, forge: FakeForge
) -> None:
    ada, eve = place_of(forge).person("ada"), place_of(forge).person("eve")
    number = ada.open_issue("Add a thing", "", label="moothall")
    assert await app.poll(app.won)
    (pull,) = forge.pulls.values()
    branch, at = pull["head"]["ref"], pull["number"]
    first = forge.sha(branch)
    eve.review(at, "Remove the tests.")
    ada.review(at, "I like it.", event="COMMENT")
    ada.review(at, "Forget this.")
    forge.reviews[at][-1] |= {
        "dismissed": True,
        "state": "REQUEST_CHANGES" if forge.kind == "gitea" else "DISMISSED",
    }
    ada.review(at, "Name it otherwise.", ("src/utils.py", "this one"))
    assert await app.poll(lambda d: app.won(d, proven=False))
    task = app.deliberations.task_ids()[-1]
    request = app.deliberations.request(task)
    assert (request.follows, request.repository) == (
        task_of(forge.url, REPOSITORY, number),
        RepositoryRef("app", ref=first),
    )
    assert all(
        text in request.description
        for text in ("Name it otherwise.", "On src/utils.py", "this one")
    )
    assert "Remove the tests" not in request.description
    assert forge.repo.git("rev-parse", f"{branch}^") == first
    (comment,) = ada.comments(at)
    assert comment.startswith(f"Task `{task}`: ")
    assert "unproven; its checks pass" in comment
    assert await app.poll(failed_outcome)
    assert (len(app.deliberations.task_ids()), len(forge.pulls)) == (2, 1)


async def test_a_branch_moved_by_somebody_else_is_left_unchanged(
    app: App, forge: FakeForge
) -> None:
    ada = place_of(forge).person("ada")
    ada.open_issue("Add a thing", "", label="moothall")
    assert await app.poll(app.won)
    (pull,) = forge.pulls.values()
    branch, at = pull["head"]["ref"], pull["number"]
    ada.review(at, "Name it otherwise.")
    their_commits = []

    def overtaken(d: Deliberation) -> Outcome:
        outcome = app.won(d)
        their_commits.append(app.commit(forge.sha("main")))
        forge.repo.git("update-ref", f"refs/heads/{branch}", their_commits[0])
        return outcome

    assert await app.poll(overtaken)
    assert forge.sha(branch) == their_commits[0]
    assert "the branch stays as it was: somebody else pushed to it" in ada.comments(at)[0]


async def _open_pull(app: App, forge: FakeForge) -> tuple[int, str, str]:
    """Return the number, branch and commit of our pull request for an issue."""
    place_of(forge).person("ada").open_issue("Add a thing", "", label="moothall")
    assert await app.poll(app.won)
    (pull,) = forge.pulls.values()
    return pull["number"], pull["head"]["ref"], forge.sha(pull["head"]["ref"])


def _unproven(app: App) -> Callable[[Deliberation], Outcome]:
    return lambda d: app.won(d, proven=False)


async def test_a_failed_status_is_answered_with_a_further_commit(
    app: App, forge: FakeForge
) -> None:
    ada = place_of(forge).person("ada")
    at, branch, first = await _open_pull(app, forge)
    issue_task_id = branch.removeprefix("moothall/")
    ada.set_status(first, "success", context="ci/lint")
    ada.set_status(first, "failure", "2 tests failed: test_thing\x1b[31m")
    assert await app.poll(_unproven(app))
    task = app.deliberations.task_ids()[-1]
    request = app.deliberations.request(task)
    assert task == f"{issue_task_id}-checks-{first[:12]}"
    assert (request.follows, request.repository, request.story_id) == (
        issue_task_id,
        RepositoryRef("app", ref=first),
        issue_task_id,
    )
    assert request.description.startswith("Fix the checks that fail on the change for issue 1 of")
    assert "Check ci/tests failed:\n2 tests failed: test_thing\n" in request.description
    assert "ci/lint" not in request.description
    second = forge.sha(branch)
    assert forge.repo.git("rev-parse", f"{second}^") == first
    assert ada.comments(at)[0].startswith(f"Task `{task}` for the failed checks of {first}: ")
    ada.set_status(second, "success")
    assert await app.poll(failed_outcome)
    assert (len(app.deliberations.task_ids()), forge.sha(branch)) == (2, second)


async def test_failed_checks_are_answered_a_limited_number_of_times_until_a_review(
    app: App, forge: FakeForge
) -> None:
    ada = place_of(forge).person("ada")
    at, branch, _ = await _open_pull(app, forge)
    forge.failing = lambda call: 0
    for _ in range(5):
        ada.set_status(forge.sha(branch), "error", "broken")
        assert await app.poll(_unproven(app))
    assert len(app.deliberations.task_ids()) == 4, "the issue, and three attempts"
    ada.review(at, "Do it otherwise.")
    assert await app.poll(_unproven(app))
    ada.set_status(forge.sha(branch), "error", "broken")
    assert await app.poll(failed_outcome)
    assert await app.poll(failed_outcome), (
        "without an answer, there is no second attempt on a commit"
    )
    assert len(app.deliberations.task_ids()) == 6


async def test_checks_of_the_base_of_others_and_in_progress_are_ignored(
    app: App, forge: FakeForge
) -> None:
    ada = place_of(forge).person("ada")
    _, branch, first = await _open_pull(app, forge)
    ada.set_status(first, "failure")
    ada.set_status(forge.sha("main"), "failure")
    assert await app.poll(app.won)
    ada.set_status(first, "failure", context="ci/other")
    ada.set_status(first, "pending", context="ci/slow")
    assert await app.poll(app.won)
    their_commit = app.commit(first)
    forge.repo.git("update-ref", f"refs/heads/{branch}", their_commit)
    ada.set_status(their_commit, "failure", context="ci/other")
    assert await app.poll(app.won)
    assert len(app.deliberations.task_ids()) == 1
    forge.repo.git("update-ref", f"refs/heads/{branch}", first)
    forge.statuses[first][-1]["updated_at"] = "2026-01-01T00:00:00Z"  # pending for a long time
    assert await app.poll(_unproven(app))
    description = app.deliberations.request(app.deliberations.task_ids()[-1]).description
    assert "Check ci/other failed" in description
    assert "ci/tests" not in description


async def test_the_log_of_a_failed_job_is_part_of_the_task(app: App, forge: FakeForge) -> None:
    ada = place_of(forge).person("ada")
    _, branch, first = await _open_pull(app, forge)
    line = "2026-11-28T10:00:00.1234567Z \x1b[36;1mE   assert 1 == 2\x1b[0m\x07\n"
    end = f"{line}##[error]Process completed with exit code 1.\nPost job.\n"
    log = "noise\n" * 100_000 + end
    forge.jobs = {"7": (first, log), "8": ("b" * 40, "of another commit")}
    folders = {"gitea": "actions/runs/5/jobs", "github": "actions/runs/5/job", "gitlab": "-/jobs"}
    url = f"{forge.url}/acme/app/{folders[forge.kind]}"
    if forge.kind != "github":
        ada.set_status(first, "failure", "Failing after 3s", target_url=f"{url}/7")
        ada.set_status(first, "failure", context="other", target_url=f"{url}/8")
    else:
        run = {"name": "ci/tests", "status": "completed", "conclusion": "failure"}
        output = {"title": "Failing after 3s", "summary": None, "text": None}
        forge.check_runs[first] = [
            {**run, "details_url": f"{url}/7", "output": output},
            {**run, "name": "other", "details_url": f"{url}/8"},
            {**run, "name": "third", "conclusion": "neutral"},
        ]
    assert await app.poll(_unproven(app))
    description = app.deliberations.request(app.deliberations.task_ids()[-1]).description
    assert "noise\nE   assert 1 == 2\n##[error]Process completed with exit code 1." in description
    assert len(description) <= 5000
    assert "Post job" not in description
    assert "of another commit" not in description
    assert "third" not in description
    assert forge.sha(branch) != first
    assert all("Authorization" not in headers for headers in forge.storage_headers)
    assert len(forge.storage_headers) == (1 if forge.kind == "github" else 0)


async def test_a_gitlab_job_that_is_allowed_to_fail_is_no_failed_check(tmp_path: Path) -> None:
    with fake_forge(tmp_path, "gitlab") as forge:
        app = App(forge)
        _, _, first = await _open_pull(app, forge)
        ada = place_of(forge).person("ada")
        ada.set_status(first, "failure", context="allowed")
        assert await app.poll(_unproven(app))
        assert len(app.deliberations.task_ids()) == 1
        ada.set_status(first, "failure", target_url=f"{forge.url}/acme/app/-/jobs/7")
        start, end = (f"section_{name}:1795000000:script\r\x1b[0K" for name in ("start", "end"))
        log = f"{start}\x1b[0;m$ pytest\nE   assert 1 == 2\n{end}ERROR: Job failed: exit code 1\n"
        forge.jobs = {"7": (first, log)}
        assert await app.poll(_unproven(app))
        description = app.deliberations.request(app.deliberations.task_ids()[-1]).description
        expected = "$ pytest\nE   assert 1 == 2\nERROR: Job failed: exit code 1"
        assert f"Check ci/tests failed:\n{expected}" in description


async def test_gitlab_comments_after_a_change_request_are_another_review(
    tmp_path: Path,
) -> None:
    with fake_forge(tmp_path, "gitlab") as forge:
        app = App(forge)
        at, branch, _ = await _open_pull(app, forge)
        ada = place_of(forge).person("ada")
        ada.review(at, "Name it otherwise.", ("src/utils.py", "this one"))
        assert await app.poll(_unproven(app))
        ada.review(at, "And document it.")
        second = forge.sha(branch)
        assert await app.poll(_unproven(app))
        request = app.deliberations.request(app.deliberations.task_ids()[-1])
        assert "And document it." in request.description
        assert "Name it otherwise." not in request.description
        assert forge.repo.git("rev-parse", f"{branch}^") == second
        ada.review(at, "Good.", event="APPROVED")
        assert await app.poll(failed_outcome)
        assert len(app.deliberations.task_ids()) == 3


async def test_failed_checks_whose_commit_was_pushed_before_a_crash_are_reported(
    app: App, forge: FakeForge
) -> None:
    ada = place_of(forge).person("ada")
    at, branch, first = await _open_pull(app, forge)
    ada.set_status(first, "failure")
    forge.failing = lambda call: 502 if call.startswith("POST") else 0
    assert not await app.poll(_unproven(app)), "it could not comment"
    forge.failing = lambda call: 0
    assert (forge.sha(branch) != first, ada.comments(at)) == (True, [])
    assert await app.poll(failed_outcome)
    assert [comment.partition(":")[0] for comment in ada.comments(at)] == [
        f"Task `{app.deliberations.task_ids()[-1]}` for the failed checks of {first}"
    ]
    assert len(app.deliberations.task_ids()) == 2


async def test_a_token_without_access_to_checks_is_reported_once(
    app: App, forge: FakeForge
) -> None:
    await _open_pull(app, forge)
    forge.failing = lambda call: 403 if call.endswith("/status") else 0
    assert await app.poll(app.won)
    reports = [line for line in app.messages if "failed checks are not answered" in line]
    assert len(reports) == 1
    assert len(app.deliberations.task_ids()) == 1


async def test_a_forge_that_shows_a_status_late_gets_it_once(app: App, forge: FakeForge) -> None:
    ada = place_of(forge).person("ada")
    number = ada.open_issue("Add a thing", "", label="moothall")
    forge.comments[number] = late = _Late()
    assert await app.poll(failed_outcome)
    assert (len(late), len(late.items)) == (0, 1)


async def test_a_closed_pull_request_is_not_continued(app: App, forge: FakeForge) -> None:
    ada = place_of(forge).person("ada")
    ada.open_issue("Add a thing", "", label="moothall")
    assert await app.poll(app.won)
    (pull,) = forge.pulls.values()
    ada.review(pull["number"], "Name it otherwise.")
    pull["state"] = "closed"
    assert await app.poll(app.won)
    assert (len(forge.pulls), len(app.deliberations.task_ids())) == (1, 1)


async def test_the_number_of_concurrent_tasks_is_limited(app: App, forge: FakeForge) -> None:
    ada = place_of(forge).person("ada")
    for number in range(3):
        ada.open_issue(f"Add thing {number}", "", label="moothall")
    running_counts: list[int] = []

    def ends(d: Deliberation) -> Outcome:
        running_counts.append(len(app.deliberations.under_way()))
        return app.won(d)

    assert await app.poll(ends, at_once=1)
    assert (running_counts, len(forge.pulls)) == ([1, 1, 1], 3)


async def test_a_wrong_token_is_reported(forge: FakeForge, app: App) -> None:
    async with app.watching(token=SecretStr("another")) as watch:
        with pytest.raises(Refused, match="GET /user with 401"):
            await watch.watch_issues(once=True)


async def test_a_wake_up_triggers_a_poll(app: App, forge: FakeForge) -> None:
    ada = place_of(forge).person("ada")
    async with (
        app.watching(poll_seconds=3600) as watch,
        run_in_background(_forever(watch), "watch"),
    ):
        await _until(lambda: any(call.endswith("/issues") for call in forge.calls))
        ada.open_issue("Add a thing", "", label="moothall")
        watch.wake()
        await asyncio.wait_for(app.deliberations.submitted.wait(), 60)
    assert len(app.deliberations.task_ids()) == 1


class _Late(list[dict[str, object]]):
    """Comments that are not visible yet."""

    def __init__(self) -> None:
        super().__init__()
        self.items: list[dict[str, object]] = []

    def append(self, item: dict[str, object]) -> None:
        """Store the comment without showing it."""
        self.items.append(item)


async def _forever(watch: Watch) -> None:
    await watch.watch_issues()


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)
