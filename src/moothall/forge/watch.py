"""Looking after the issues of a forge: each that asks for it becomes a task, a proven winner a pull
request, and a review that requests changes a further commit.

Nothing is kept here. What was done is read from the forge: pull requests of ours for the branch
`moothall/TASK`, and comments of ours, whose first line names their task. Ids of tasks follow from
the forge, the repository and the number of the issue or comment, so a task that was begun is found
again in the log. Each step looks first whether it was taken: whoever is killed at any point goes on
from there, and does nothing twice.
"""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from moothall.config import ForgeSettings as Settings
from moothall.domain.identity import LOCAL
from moothall.domain.ids import digest
from moothall.domain.outcome import Outcome
from moothall.domain.task import FORGE, DeliberationRequest, RepositoryRef
from moothall.errors import AlreadyExists, MoothallError, NotFound, Temporary
from moothall.forge import texts
from moothall.forge.client import ForgeClient, ForgeComment, Issue, PullRequest
from moothall.ports import Deliberations

_LEAST_SECONDS, _LONGEST_SECONDS = 1.0, 3600.0


Offer = Callable[[str, str, str], Awaitable[None]]
"""Pushes a commit of a repository as a new branch of ours, or onto one that is at its parent:
repository, sha, branch. Raises `AlreadyExists`.
"""


@dataclass(frozen=True, slots=True)
class Ask:
    """What somebody who may wants of a repository: the task that it becomes, and the pull request
    that it is about, once there is one.
    """

    issue: Issue
    request: DeliberationRequest
    pull: PullRequest | None = None


class Watch:
    """`repositories`: the registered id of each owner/name. `report_progress` hears a line for
    people.
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
    ) -> None:
        self._settings = settings
        self._client = client
        self._deliberations = deliberations
        self._offer = offer
        self._repositories = repositories
        self._chars = task_chars
        self._report_progress = report_progress
        self._me = ""
        self._called = _calls(settings.mention)
        self._working: set[str] = set()
        self._answered: set[str] = (
            set()
        )  # a forge of many servers may not show at once what it was told
        self._room = asyncio.Semaphore(settings.at_once)
        self._wake = asyncio.Event()
        self._failed = False
        self._writers: dict[tuple[str, str], bool] = {}
        self._pause = 0.0

    async def run(self, *, once: bool = False) -> bool:
        """Look again and again; or `once`, until what there is to do is done, and return whether
        all went well. Raises what the forge says where the token is no account's.
        """
        self._me = await self._client.account()
        async with asyncio.TaskGroup() as group:
            while True:
                self._wake.clear()
                self._writers.clear()
                self._pause = 0.0
                for repository in self._repositories:
                    with self._failing(repository):
                        for issue in await self._client.issues(
                            repository, "" if self._settings.mention else self._settings.label
                        ):
                            if (place := f"{repository}#{issue.number}") not in self._working:
                                self._working.add(place)
                                group.create_task(self._work(repository, issue, place), name=place)
                if once:
                    break
                # However often it is woken, and as long as the forge asks for: its patience is not
                # without end.
                await asyncio.sleep(
                    max(self._pause, min(_LEAST_SECONDS, self._settings.poll_seconds))
                )
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), self._settings.poll_seconds)
        return not self._failed

    def wake(self) -> None:
        """Let it look at once."""
        self._wake.set()

    async def _work(self, repository: str, issue: Issue, place: str) -> None:
        """Do what is to be done about an issue, one thing after the other."""
        try:
            async with self._room:
                with self._failing(place):
                    while (
                        ask := await self._next(repository, issue)
                    ) and ask.request.task_id not in self._answered:
                        await self._answer(repository, ask)
                        self._answered.add(ask.request.task_id)
        finally:
            self._working.discard(place)

    @contextmanager
    def _failing(self, where: str) -> Iterator[None]:
        """Say what goes wrong, and leave it to the next look."""
        try:
            yield
        except MoothallError as error:
            self._failed = True
            if isinstance(error, Temporary) and error.retry_after:
                self._pause = min(max(self._pause, error.retry_after), _LONGEST_SECONDS)
            self._say(where, f"{error.message} [{error.code}]")

    def _say(self, where: str, words: str) -> None:
        self._report_progress(f"{where}: {words}")

    async def _next(self, repository: str, issue: Issue) -> Ask | None:
        """Return what is to be done about an issue now, if anything."""
        first = task_of(self._settings.url, repository, issue.number)
        pull = await self._client.pull_of(repository, f"moothall/{first}", self._me)
        said = await self._client.comments(repository, issue.number)
        done = self._answered_tasks(said)
        if pull is None:
            return await self._find_ask(repository, issue, first, said, done)
        if pull.state != "open":
            return None
        done = (
            *done,
            texts.task_marked(pull.body) or first,
            *self._answered_tasks(await self._client.comments(repository, pull.number)),
        )
        for post in await self._client.reviews(repository, pull.number):
            task_id = f"{first}-r{post.id}"
            if post.requests_changes and task_id not in done and await self._may(repository, post):
                remarks = await self._client.remarks(repository, pull.number, post.id)
                words = texts.review_task(repository, issue, post, remarks, self._chars)
                return Ask(
                    issue, await self._request(repository, task_id, words, done, pull.sha), pull
                )
        return None

    async def _find_ask(
        self,
        repository: str,
        issue: Issue,
        first: str,
        said: Sequence[ForgeComment],
        done: Sequence[str],
    ) -> Ask | None:
        """Return the task of an issue that has no pull request: for its label or its own words
        once, and for every comment after our last answer.
        """
        label, told = (
            self._settings.label,
            functools.partial(texts.issue_task, repository, issue, limit=self._chars),
        )
        labelled = bool(label) and label in {one.name for one in issue.labels}
        own = ForgeComment(id=0, body=f"{issue.title}\n{issue.body}", author=issue.author)
        if first not in done and (labelled or await self._calls_us(repository, own)):
            return Ask(issue, await self._request(repository, first, told(comment=None), ()))
        last = max(
            (post.id for post in said if post.author == self._me and texts.task_marked(post.body)),
            default=0,
        )
        for post in said:
            if post.id > last and await self._calls_us(repository, post):
                return Ask(
                    issue,
                    await self._request(
                        repository, f"{first}-c{post.id}", told(comment=post), done
                    ),
                )
        return None

    def _answered_tasks(self, said: Sequence[ForgeComment]) -> tuple[str, ...]:
        """Return the tasks that were answered, in order: only what we wrote ourselves says so."""
        return tuple(
            task
            for post in said
            if post.author == self._me and (task := texts.task_marked(post.body))
        )

    async def _calls_us(self, repository: str, post: ForgeComment) -> bool:
        return self._called(post.body) and await self._may(repository, post)

    async def _may(self, repository: str, post: ForgeComment) -> bool:
        """Whether words count: those of somebody who may write to the repository, and who is not
        we.
        """
        if not post.author or post.author == self._me:
            return False
        asked = (repository, post.author)
        if (
            asked not in self._writers
        ):  # once a look: whoever writes many comments costs one question
            self._writers[asked] = await self._client.may_write(repository, post.author)
        return self._writers[asked]

    async def _request(
        self, repository: str, task_id: str, words: str, done: Sequence[str], base: str = ""
    ) -> DeliberationRequest:
        """Return what a council is asked: on the newest commit, or on `base`, and after the last
        answered task that the log still knows.
        """
        on = RepositoryRef(id=self._repositories[repository], ref=base)
        request = DeliberationRequest(words, "DEV", task_id, repository=on, origin=FORGE)
        for before in reversed(done):
            try:
                known = await self._deliberations.result(before, LOCAL)
            except NotFound:
                continue
            if known.status.ended:
                return replace(request, follows=before)
        return request

    async def _answer(self, repository: str, ask: Ask) -> None:
        """Let a council work, and tell the forge what came of it."""
        place, pull = f"{repository}#{ask.issue.number}", ask.pull
        outcome = await self._hold(place, ask.request)
        first = task_of(self._settings.url, repository, ask.issue.number)
        registered, branch = self._repositories[repository], f"moothall/{first}"
        if pull is not None:
            why = ""
            if outcome.commit_sha:
                try:
                    await self._offer(registered, outcome.commit_sha, branch)
                except AlreadyExists:
                    why = "somebody else moved it on meanwhile; request the changes again"
            await self._client.comment(repository, pull.number, texts.further(outcome, why))
            self._say(place, f"{ask.request.task_id} is told to pull request {pull.number}")
        elif outcome.level.independent and outcome.commit_sha:
            await self._offer(registered, outcome.commit_sha, branch)
            onto = await self._client.default_branch(repository)
            title, body = texts.pull_title(ask.issue), texts.pull_body(outcome, ask.issue)
            number = await self._client.open_pull(repository, title, body, branch=branch, onto=onto)
            self._say(place, f"pull request {number}")
        else:
            await self._client.comment(repository, ask.issue.number, texts.no_pull(outcome))
            self._say(place, "no pull request; the issue says why")

    async def _hold(self, place: str, request: DeliberationRequest) -> Outcome:
        """Return the end of a task, which is begun if it is not yet. One under this id is this one,
        though the issue's words may have changed since.
        """
        try:
            await self._deliberations.submit(request, LOCAL)
            self._say(place, f"{request.task_id} is at work")
        except AlreadyExists:
            self._say(place, f"{request.task_id} was begun before")
        return await self._deliberations.wait(request.task_id, LOCAL)


def task_of(url: str, repository: str, number: int) -> str:
    """Return the id of an issue's task: the same each time, and another one for every other
    issue.
    """
    return f"issue-{number}-{digest(url.rstrip('/').lower(), repository.lower(), str(number))[:12]}"


def _calls(mention: str) -> Callable[[str], bool]:
    """Return whether words call us; what they quote does not."""
    word = re.compile(rf"(?<![\w@./-]){re.escape(mention.strip())}(?![\w-])", re.IGNORECASE)

    def calls(words: str) -> bool:
        return bool(mention.strip()) and any(
            word.search(line) for line in words.splitlines() if not line.lstrip().startswith(">")
        )

    return calls
