"""Watches the issues of a forge. Each requested issue becomes a task, a proven winner a pull
request, and a review that requests changes or a failed check a further commit.

Nothing is stored here. The state is read from the forge: our pull requests for the branch
`moothall/TASK`, and our comments, whose first line names their task. Task ids are derived from the
forge, the repository and the number of the issue or comment, or the commit whose checks failed, so
that a started task is found in the log. Each step first checks whether it is already done: after a
crash, the watch continues and repeats nothing.

A webhook of the forge makes the watch check the forge at once.
"""

from __future__ import annotations

import asyncio
import functools
import hmac
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from itertools import takewhile

from aiohttp import web

from moothall.config import ForgeSettings as Settings
from moothall.domain.ids import LOCAL, TaskId, check_task_id, digest
from moothall.domain.outcome import Outcome
from moothall.domain.task import FORGE, DeliberationRequest, RepositoryRef
from moothall.errors import (
    AlreadyExists,
    ConfigurationError,
    MoothallError,
    NotFound,
    Refused,
    Temporary,
)
from moothall.forge import texts
from moothall.forge.client import ForgeClient, ForgeComment, Issue, PullRequest
from moothall.forge.texts import FailedCheck, read_failed_checks
from moothall.ports import Deliberations

_POLL_SECONDS = 60.0
"""How often the forge is polled for changes."""
_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 1.0, 3600.0
_CONCURRENT_ISSUES = 2
_MAX_CHECK_ATTEMPTS = 3
"""Tasks in a row for failed checks; the next review of a person allows as many again."""


Offer = Callable[[str, str, str], Awaitable[None]]
"""Pushes a commit of a repository to our branch, which must be new or at the commit's parent:
repository, sha, branch. Raises `AlreadyExists`.
"""


@dataclass(frozen=True, slots=True)
class ForgeTask:
    """Work requested on a forge: the deliberation's request, and the pull request to update, if
    there is one. `failed_commit`: its checks failed.
    """

    issue: Issue
    request: DeliberationRequest
    pull: PullRequest | None = None
    failed_commit: str = ""


class Watch:
    """The watch of a forge. `repositories` maps each owner/name to its registered id.
    `report_progress` receives lines for people.
    """

    def __init__(
        self,
        settings: Settings,
        client: ForgeClient,
        deliberations: Deliberations,
        offer: Offer,
        repositories: Mapping[str, str],
        *,
        task_chars: int,
        report_progress: Callable[[str], None],
        at_once: int = _CONCURRENT_ISSUES,
        poll_seconds: float = _POLL_SECONDS,
    ) -> None:
        self._settings = settings
        self._client = client
        self._deliberations = deliberations
        self._offer = offer
        self._repositories = repositories
        self._task_chars = task_chars
        self._report_progress = report_progress
        self._own_login = ""
        self._mentions_us = _mention_matcher(settings.mention)
        self._active: set[str] = set()
        self._processed: set[str] = set()  # a clustered forge may show our answers with a delay
        self._slots = asyncio.Semaphore(at_once)
        self._wake, self._poll_seconds = asyncio.Event(), poll_seconds
        self._failed = False
        self._unreadable_checks: set[str] = set()
        self._writers: dict[tuple[str, str], bool] = {}
        self._pause = 0.0

    async def watch_issues(self, *, once: bool = False) -> bool:
        """Watch until cancelled. With `once`, finish the work that there is now and return whether
        all of it succeeded. Raises the forge's error if the token belongs to no account.
        """
        self._own_login = await self._client.account()
        async with asyncio.TaskGroup() as group:
            while True:
                self._wake.clear()
                self._writers.clear()
                self._pause = 0.0
                for repository in self._repositories:
                    with self._reporting_errors(repository):
                        for issue in await self._client.issues(
                            repository, "" if self._settings.mention else self._settings.label
                        ):
                            if (label := f"{repository}#{issue.number}") not in self._active:
                                self._active.add(label)
                                group.create_task(
                                    self._process_issue(repository, issue, label), name=label
                                )
                if once:
                    break
                # Pause at least briefly however often it is woken, and as long as the forge asks
                # for, because forges limit the rate of calls.
                await asyncio.sleep(max(self._pause, min(_MIN_PAUSE_SECONDS, self._poll_seconds)))
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), self._poll_seconds)
        return not self._failed

    def wake(self) -> None:
        """Check the forge at once."""
        self._wake.set()

    async def _process_issue(self, repository: str, issue: Issue, label: str) -> None:
        """Process the tasks of an issue, one after the other."""
        try:
            async with self._slots:
                with self._reporting_errors(label):
                    while (
                        task := await self._find_task(repository, issue)
                    ) and task.request.task_id not in self._processed:
                        await self._process_task(repository, task)
                        self._processed.add(task.request.task_id)
        finally:
            self._active.discard(label)

    @contextmanager
    def _reporting_errors(self, label: str) -> Iterator[None]:
        """Report an error, and leave the work to the next round."""
        try:
            yield
        except MoothallError as error:
            self._failed = True
            if isinstance(error, Temporary) and error.retry_after:
                self._pause = min(max(self._pause, error.retry_after), _MAX_PAUSE_SECONDS)
            self._report_problem(label, f"{error.message} [{error.code}]")

    def _report_problem(self, label: str, message: str) -> None:
        self._report_progress(f"{label}: {message}")

    async def _find_task(self, repository: str, issue: Issue) -> ForgeTask | None:
        """Return the next task of an issue, or None."""
        first_task_id = task_of(self._settings.url, repository, issue.number)
        pull = await self._client.find_pull(
            repository, f"moothall/{first_task_id}", self._own_login
        )
        comments = await self._client.comments(repository, issue.number)
        finished = self._answered_tasks(comments)
        if pull is None:
            return await self._find_issue_task(repository, issue, first_task_id, comments, finished)
        if pull.state != "open":
            return None
        finished = (
            *finished,
            texts.task_marked(pull.body) or first_task_id,
            *self._answered_tasks(await self._client.pull_comments(repository, pull.number)),
        )
        for review in await self._client.reviews(repository, pull.number):
            task_id = f"{first_task_id}-r{review.id}"
            if (
                review.requests_changes
                and task_id not in finished
                and await self._is_from_writer(repository, review)
            ):
                review_comments = await self._client.review_comments(
                    repository, pull.number, review.id
                )
                description = texts.review_task(
                    repository, issue, review, review_comments, self._task_chars
                )
                return ForgeTask(
                    issue,
                    await self._request_for(
                        repository, issue, task_id, description, finished, base=pull.sha
                    ),
                    pull,
                )
        return await self._find_checks_task(repository, issue, pull, finished)

    async def _find_checks_task(
        self, repository: str, issue: Issue, pull: PullRequest, finished: Sequence[str]
    ) -> ForgeTask | None:
        """Return the task for failed checks of a pull request, or None. A commit has at most one,
        and only if it is ours: the author of another commit fixes it.
        """
        prefix = f"{task_of(self._settings.url, repository, issue.number)}-checks-"
        attempts = len(list(takewhile(lambda task: task.startswith(prefix), reversed(finished))))
        for answered in finished:
            outcome = await self._find_outcome(answered)
            sha = outcome.commit_sha if outcome is not None else ""
            task_id = f"{prefix}{sha[:12]}"
            if not sha or task_id in finished:
                continue
            failed: Sequence[FailedCheck] = ()
            # A task that was begun is finished, even if its commit was pushed before a crash.
            is_begun = await self._find_outcome(task_id) is not None
            if not is_begun and sha == pull.sha and attempts < _MAX_CHECK_ATTEMPTS:
                failed = await self._read_failed_checks(repository, pull)
            if is_begun or failed:
                description = texts.checks_task(repository, issue, failed, self._task_chars)
                return ForgeTask(
                    issue,
                    await self._request_for(
                        repository, issue, task_id, description, finished, base=sha
                    ),
                    pull,
                    failed_commit=sha,
                )
        return None

    async def _read_failed_checks(
        self, repository: str, pull: PullRequest
    ) -> Sequence[FailedCheck]:
        """Return the failed checks of a pull request; none, reported once, if the token may not
        read them.
        """
        try:
            return await read_failed_checks(
                self._client, repository, pull.sha, pull.base_sha, datetime.now(UTC)
            )
        except (Refused, NotFound) as error:
            if repository not in self._unreadable_checks:
                self._unreadable_checks.add(repository)
                self._report_problem(repository, f"failed checks are not answered: {error.message}")
            return ()

    async def _find_issue_task(
        self,
        repository: str,
        issue: Issue,
        first_task_id: str,
        comments: Sequence[ForgeComment],
        finished: Sequence[str],
    ) -> ForgeTask | None:
        """Return the task of an issue without a pull request: once for its label or its own text,
        and for every comment after our last answer.
        """
        watched_label, describe = (
            self._settings.label,
            functools.partial(texts.issue_task, repository, issue, limit=self._task_chars),
        )
        has_label = bool(watched_label) and watched_label in {
            issue_label.name for issue_label in issue.labels
        }
        issue_text = ForgeComment(id=0, body=f"{issue.title}\n{issue.body}", author=issue.author)
        if first_task_id not in finished and (
            has_label or await self._is_mention_by_writer(repository, issue_text)
        ):
            return ForgeTask(
                issue,
                await self._request_for(
                    repository, issue, first_task_id, describe(comment=None), ()
                ),
            )
        last_answer_id = max(
            (
                comment.id
                for comment in comments
                if comment.author == self._own_login and texts.task_marked(comment.body)
            ),
            default=0,
        )
        for comment in comments:
            if comment.id > last_answer_id and await self._is_mention_by_writer(
                repository, comment
            ):
                return ForgeTask(
                    issue,
                    await self._request_for(
                        repository,
                        issue,
                        f"{first_task_id}-c{comment.id}",
                        describe(comment=comment),
                        finished,
                    ),
                )
        return None

    def _answered_tasks(self, comments: Sequence[ForgeComment]) -> tuple[str, ...]:
        """Return the answered tasks, in order. Only our own comments count."""
        return tuple(
            task
            for comment in comments
            if comment.author == self._own_login and (task := texts.task_marked(comment.body))
        )

    async def _is_mention_by_writer(self, repository: str, comment: ForgeComment) -> bool:
        return self._mentions_us(comment.body) and await self._is_from_writer(repository, comment)

    async def _is_from_writer(self, repository: str, comment: ForgeComment) -> bool:
        """Return whether a comment is from somebody else who may write to the repository."""
        if not comment.author or comment.author == self._own_login:
            return False
        key = (repository, comment.author)
        if key not in self._writers:  # cached for each round
            self._writers[key] = await self._client.may_write(repository, comment.author)
        return self._writers[key]

    async def _request_for(
        self,
        repository: str,
        issue: Issue,
        task_id: str,
        description: str,
        finished: Sequence[str],
        *,
        base: str = "",
    ) -> DeliberationRequest:
        """Return the request for a council: on the newest commit, or on `base`, following the last
        answered task that the log still has. All tasks of an issue share the budget of a story.
        """
        request = DeliberationRequest(
            description,
            "DEV",
            task_id,
            repository=RepositoryRef(id=self._repositories[repository], ref=base),
            story_id=task_of(self._settings.url, repository, issue.number),
            origin=FORGE,
        )
        for earlier_task in reversed(finished):
            outcome = await self._find_outcome(earlier_task)
            if outcome is not None and outcome.status.ended:
                return replace(request, follows=earlier_task)
        return request

    async def _find_outcome(self, task_id: str) -> Outcome | None:
        """Return the outcome of a task, None if the log does not have it any more."""
        try:
            return await self._deliberations.result(check_task_id(task_id), LOCAL)
        except NotFound:
            return None

    async def _process_task(self, repository: str, task: ForgeTask) -> None:
        """Run a task, and publish its result on the forge."""
        label, pull = f"{repository}#{task.issue.number}", task.pull
        outcome = await self._run_deliberation(label, task.request)
        first_task_id = task_of(self._settings.url, repository, task.issue.number)
        registered, branch = self._repositories[repository], f"moothall/{first_task_id}"
        if pull is not None:
            reason = ""
            if outcome.commit_sha:
                try:
                    await self._offer(registered, outcome.commit_sha, branch)
                except AlreadyExists:
                    reason = "somebody else pushed to it meanwhile; request the changes again"
            comment = texts.further(outcome, reason, task.failed_commit)
            await self._client.comment_on_pull(repository, pull.number, comment)
            self._report_problem(
                label, f"{task.request.task_id} is reported on pull request {pull.number}"
            )
        elif outcome.level.independent and outcome.commit_sha:
            await self._offer(registered, outcome.commit_sha, branch)
            base_branch = await self._client.default_branch(repository)
            title, body = texts.pull_title(task.issue), texts.pull_body(outcome, task.issue)
            number = await self._client.create_pull(
                repository, title, body, branch=branch, onto=base_branch
            )
            self._report_problem(label, f"pull request {number}")
        else:
            await self._client.comment(repository, task.issue.number, texts.no_pull(outcome))
            self._report_problem(label, "no pull request; the issue says why")

    async def _run_deliberation(self, label: str, request: DeliberationRequest) -> Outcome:
        """Return the outcome of a task, starting it if needed. A task with this id is the same
        task, even if the issue's text has changed.
        """
        try:
            await self._deliberations.submit(request, LOCAL)
            self._report_problem(label, f"{request.task_id} is at work")
        except AlreadyExists:
            self._report_problem(label, f"{request.task_id} was begun before")
        return await self._deliberations.wait(check_task_id(request.task_id), LOCAL)


def task_of(url: str, repository: str, number: int) -> TaskId:
    """Return the deterministic id of an issue's task."""
    issue_digest = digest(url.rstrip("/").lower(), repository.lower(), str(number))
    return TaskId(f"issue-{number}-{issue_digest[:12]}")


def _mention_matcher(mention: str) -> Callable[[str], bool]:
    """Return a function that tells whether a text mentions us outside of quotes."""
    pattern = re.compile(rf"(?<![\w@./-]){re.escape(mention.strip())}(?![\w-])", re.IGNORECASE)

    def is_mentioned(text: str) -> bool:
        return bool(mention.strip()) and any(
            pattern.search(line) for line in text.splitlines() if not line.lstrip().startswith(">")
        )

    return is_mentioned


# The forge's webhooks. They are signed, and their content is not read.


_MAX_BODY_BYTES = 26_000_000  # GitHub sends up to 25 MB


def is_signed(secret: str, body: bytes, signature: str) -> bool:
    """Return whether a signature, `sha256=HEX` or HEX, is that of the body with the secret."""
    expected = hmac.new(secret.encode(), body, sha256).hexdigest()
    return hmac.compare_digest(
        expected.encode(), signature.removeprefix("sha256=").encode("utf-8", "surrogateescape")
    )


def _is_from_forge(headers: Mapping[str, str], body: bytes, secret: str, kind: str) -> bool:
    """Return whether a webhook has the secret: GitLab sends it, the others sign with it."""
    if kind == "gitlab":
        token = headers.get("X-Gitlab-Token", "")
        return hmac.compare_digest(token.encode("utf-8", "surrogateescape"), secret.encode())
    signature = headers.get("X-Hub-Signature-256") or headers.get("X-Gitea-Signature") or ""
    return is_signed(secret, body, signature)


@asynccontextmanager
async def serve_webhooks(settings: Settings, wake: Callable[[], None]) -> AsyncIterator[int]:
    """Accept the forge's webhooks until the block ends. Yield the port, 0 if webhooks are disabled.
    Raises `ConfigurationError`.
    """
    if not settings.webhook_address or settings.webhook_secret is None:
        yield 0
        return
    secret = settings.webhook_secret.get_secret_value()

    async def handle_webhook(request: web.Request) -> web.Response:
        if not _is_from_forge(request.headers, await request.read(), secret, settings.kind):
            return web.Response(status=401, text="not signed with forge.webhook_secret\n")
        wake()
        return web.Response(status=204)

    app = web.Application(client_max_size=_MAX_BODY_BYTES)
    app.router.add_post("/", handle_webhook)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        host, _, port = settings.webhook_address.rpartition(":")
        site = web.TCPSite(runner, host.strip("[]"), int(port))
        try:
            await site.start()
        except OSError as error:
            raise ConfigurationError(
                f"{settings.webhook_address} cannot be listened on: {error.strerror}; choose "
                "another forge.webhook_address"
            ) from error
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
