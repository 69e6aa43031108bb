"""A client of GitLab's REST API, version 4. Merge requests are pull requests here, and notes are
comments.

GitLab numbers merge requests apart from issues, and keeps no reviews: only the state of each
reviewer, and notes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from urllib.parse import quote

from pydantic import AliasPath, Field

from moothall.errors import NotFound
from moothall.forge.client import (
    CheckRun,
    CommitStatus,
    ForgeClient,
    ForgeComment,
    ForgeData,
    Issue,
    IssueLabel,
    PullRequest,
    ReviewComment,
    Text,
)

_DEVELOPER_LEVEL = 30  # the lowest access level that may push
_REVIEW_GAP = timedelta(minutes=1)
"""Notes of a reviewer with smaller gaps are one review: GitLab publishes them together."""
_REQUESTED_CHANGES, _CHANGES_REQUESTED = "requested_changes", "CHANGES_REQUESTED"
_SET_STATES = {"failure": "failed", "error": "failed"}
_READ_STATES = {
    "failed": "failure",
    **dict.fromkeys(
        ("created", "pending", "preparing", "running", "waiting_for_resource"), "pending"
    ),
}


class _User(ForgeData):
    username: str


class _Project(ForgeData):
    default_branch: str


class _Issue(ForgeData):
    iid: int
    title: Text = ""
    description: Text = ""
    author: Text = Field("", validation_alias=AliasPath("author", "username"))
    labels: tuple[str, ...] = ()

    def convert(self) -> Issue:
        return Issue.model_construct(
            number=self.iid,
            title=self.title,
            body=self.description,
            author=self.author,
            labels=tuple(IssueLabel(name=name) for name in self.labels),
        )


class _MergeRequest(ForgeData):
    iid: int
    state: str
    title: Text = ""
    description: Text = ""
    author: Text = Field("", validation_alias=AliasPath("author", "username"))
    source_branch: Text = ""
    target_branch: Text = ""
    sha: Text = ""
    base_sha: Text = Field("", validation_alias=AliasPath("diff_refs", "base_sha"))
    source_project_id: int | None = None
    target_project_id: int | None = None

    def convert(self, repository: str) -> PullRequest:
        is_own = self.source_project_id == self.target_project_id
        return PullRequest.model_construct(
            number=self.iid,
            state="open" if self.state == "opened" else self.state,
            title=self.title,
            body=self.description,
            author=self.author,
            onto=self.target_branch,
            base_sha=self.base_sha,
            branch=self.source_branch,
            sha=self.sha,
            source=repository if is_own else "",
        )


class _Note(ForgeData):
    """A comment. `system`: GitLab wrote it. `path`: the file, for a comment on a line."""

    id: int
    body: Text = ""
    author: Text = Field("", validation_alias=AliasPath("author", "username"))
    created_at: datetime
    system: bool = False
    path: Text = Field("", validation_alias=AliasPath("position", "new_path"))
    line: int | None = Field(None, validation_alias=AliasPath("position", "new_line"))


class _Reviewer(ForgeData):
    username: Text = Field("", validation_alias=AliasPath("user", "username"))
    state: Text = ""


class _Member(ForgeData):
    username: str
    access_level: int
    state: Text = "active"


class _Status(ForgeData):
    """A status or a job of a commit. `allow_failure`: its failure does not fail the pipeline."""

    name: Text = ""
    status: Text = ""
    description: Text = ""
    target_url: Text = ""
    allow_failure: bool = False
    created_at: datetime | None = None


class _Job(ForgeData):
    sha: Text = Field("", validation_alias=AliasPath("commit", "id"))


class GitLabClient(ForgeClient):
    """A client of a GitLab server. A repository is named by its path, such as group/name."""

    async def account(self) -> str:
        """Return the login of the token's account."""
        return (await self._get_one(_User, "/user")).username

    async def default_branch(self, repository: str) -> str:
        """Return the repository's default branch."""
        return (await self._get_one(_Project, _project_path(repository))).default_branch

    async def issues(self, repository: str, label: str = "") -> list[Issue]:
        """Return the open issues, with `label` only those that have it."""
        filters = {"state": "opened", **({"labels": label} if label else {})}
        issues = await self._get_all(_Issue, f"{_project_path(repository)}/issues", filters)
        return [issue.convert() for issue in issues]

    async def issue(self, repository: str, number: int) -> Issue:
        """Return an issue."""
        return (
            await self._get_one(_Issue, f"{_project_path(repository)}/issues/{number}")
        ).convert()

    async def pull(self, repository: str, number: int) -> PullRequest:
        """Return a merge request."""
        merge_request = await self._get_one(_MergeRequest, _merge_request(repository, number))
        return merge_request.convert(repository)

    def pull_ref(self, number: int) -> str:
        """Return the ref at which the forge offers the head of a merge request."""
        return f"refs/merge-requests/{number}/head"

    async def set_status(
        self, repository: str, sha: str, state: str, context: str, description: str
    ) -> None:
        """Set a status of a commit: `state` is success, failure or error."""
        body = {
            "state": _SET_STATES.get(state, state),
            "name": context,
            "description": description,
        }
        await self._send_request("POST", f"{_project_path(repository)}/statuses/{sha}", body=body)

    async def statuses(self, repository: str, sha: str) -> list[CommitStatus]:
        """Return the newest status of each context of a commit, the jobs of its pipelines too."""
        path = f"{_project_path(repository)}/repository/commits/{sha}/statuses"
        return [
            CommitStatus.model_construct(
                context=status.name,
                state="success"
                if status.allow_failure
                else _READ_STATES.get(status.status, "success"),
                description=status.description,
                target_url=status.target_url,
                updated_at=status.created_at,
            )
            for status in await self._get_all(_Status, path)
        ]

    async def check_runs(self, repository: str, sha: str) -> list[CheckRun]:
        """Return no check runs: GitLab has none."""
        del repository, sha
        return []

    async def commit_of_job(self, repository: str, job_id: str) -> str:
        """Return the commit that a job of a pipeline ran on."""
        return (await self._get_one(_Job, f"{_project_path(repository)}/jobs/{job_id}")).sha

    async def job_log(self, repository: str, job_id: str, max_bytes: int) -> str:
        """Return the last `max_bytes` bytes of the log of a job."""
        return await self._read_log(f"{_project_path(repository)}/jobs/{job_id}/trace", max_bytes)

    async def comments(self, repository: str, number: int) -> list[ForgeComment]:
        """Return the comments of an issue, oldest first."""
        return _convert_notes(
            await self._list_notes(f"{_project_path(repository)}/issues/{number}")
        )

    async def comment(self, repository: str, number: int, body: str) -> None:
        """Comment on an issue."""
        path = f"{_project_path(repository)}/issues/{number}/notes"
        await self._send_request("POST", path, body={"body": body})

    async def pull_comments(self, repository: str, number: int) -> list[ForgeComment]:
        """Return the comments of a merge request, oldest first."""
        return _convert_notes(await self._list_notes(_merge_request(repository, number)))

    async def comment_on_pull(self, repository: str, number: int, body: str) -> None:
        """Comment on a merge request."""
        path = f"{_merge_request(repository, number)}/notes"
        await self._send_request("POST", path, body={"body": body})

    async def may_write(self, repository: str, login: str) -> bool:
        """Return whether an account may push to a repository."""
        try:
            members = await self._get_all(
                _Member, f"{_project_path(repository)}/members/all", {"query": login}
            )
        except NotFound:
            return False
        return any(
            member.username == login
            and member.state == "active"
            and member.access_level >= _DEVELOPER_LEVEL
            for member in members
        )

    async def find_pull(self, repository: str, branch: str, author: str) -> PullRequest | None:
        """Return the newest merge request that `author` opened for a branch of the repository
        itself, ignoring forks.
        """
        filters = {"state": "all", "source_branch": branch, "author_username": author}
        pulls = [
            merge_request.convert(repository)
            for merge_request in await self._get_all(
                _MergeRequest, f"{_project_path(repository)}/merge_requests", filters
            )
            if merge_request.source_branch == branch and merge_request.author == author
        ]
        own_numbers = [pull.number for pull in pulls if pull.source]
        # The list lacks the commit of the base.
        return await self.pull(repository, max(own_numbers)) if own_numbers else None

    async def create_pull(
        self, repository: str, title: str, body: str, *, branch: str, onto: str
    ) -> int:
        """Open a merge request and return its number."""
        fields = {
            "title": title,
            "description": body,
            "source_branch": branch,
            "target_branch": onto,
        }
        document, _ = await self._send_request(
            "POST", f"{_project_path(repository)}/merge_requests", body=fields
        )
        return self._parse_one(_MergeRequest, document).iid

    async def reviews(self, repository: str, number: int) -> list[ForgeComment]:
        """Return the reviews of a merge request, oldest first: the last remarks of each reviewer
        who requests changes. Its id is that of the first remark.
        """
        path = _merge_request(repository, number)
        reviewers = [
            reviewer.username
            for reviewer in await self._get_all(_Reviewer, f"{path}/reviewers")
            if reviewer.state == _REQUESTED_CHANGES
        ]
        notes = await self._list_notes(path) if reviewers else []
        reviews = []
        for reviewer in reviewers:
            if remarks := _last_remarks(note for note in notes if note.author == reviewer):
                body = "\n\n".join(note.body for note in remarks if not note.path)
                review = ForgeComment.model_construct(
                    id=remarks[0].id, body=body, author=reviewer, state=_CHANGES_REQUESTED
                )
                reviews.append(review)
        return sorted(reviews, key=lambda review: review.id)

    async def review_comments(
        self, repository: str, number: int, review: int
    ) -> list[ReviewComment]:
        """Return the comments of a review on lines."""
        notes = await self._list_notes(_merge_request(repository, number))
        author = next((note.author for note in notes if note.id == review), "")
        remarks = _last_remarks(note for note in notes if note.author == author)
        return [
            ReviewComment.model_construct(
                path=note.path, body=note.body, hunk=f"line {note.line}" if note.line else ""
            )
            for note in remarks
            if note.path
        ]

    async def _list_notes(self, path: str) -> list[_Note]:
        """Return the notes of an issue or merge request that people wrote, oldest first."""
        filters = {"sort": "asc", "order_by": "created_at"}
        notes = await self._get_all(_Note, f"{path}/notes", filters)
        return sorted((note for note in notes if not note.system), key=lambda note: note.id)


def _project_path(repository: str) -> str:
    return f"/projects/{quote(repository, safe='')}"


def _merge_request(repository: str, number: int) -> str:
    return f"{_project_path(repository)}/merge_requests/{number}"


def _convert_notes(notes: Sequence[_Note]) -> list[ForgeComment]:
    return [
        ForgeComment.model_construct(id=note.id, body=note.body, author=note.author)
        for note in notes
    ]


def _last_remarks(notes: Iterable[_Note]) -> list[_Note]:
    """Return the last group of notes that were written within a minute of each other."""
    remarks: list[_Note] = []
    for note in notes:
        if remarks and note.created_at - remarks[-1].created_at > _REVIEW_GAP:
            remarks = []
        remarks.append(note)
    return remarks
