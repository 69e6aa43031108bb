"""A REST client for a forge: GitHub, or Gitea and Forgejo. GitLab's is in `gitlab.py`;
`forge_client` chooses one of them.

Each call is limited in time and bytes. Only the forge receives the token: no call follows a
redirect, except for a log, whose redirect is followed without the token.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, NamedTuple, TypeVar
from urllib.parse import quote, urljoin, urlsplit

import aiohttp
from pydantic import (
    AliasChoices,
    AliasPath,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
)

from moothall.api.identity import check_address
from moothall.concurrency import read_body
from moothall.config import ForgeSettings as Settings
from moothall.domain.codec import describe_errors
from moothall.errors import CallFailed, ConfigurationError, NotFound, Refused, Temporary

_MAX_RESPONSE_BYTES, _MESSAGE_CHARS, _PAGE_SIZE, _MAX_PAGES = 8_000_000, 300, 50, 200
_WRITE_PERMISSIONS = frozenset({"owner", "admin", "maintain", "write"})
_REFUSED_STATUSES = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_REDIRECT_STATUSES = (
    HTTPStatus.FOUND,
    HTTPStatus.SEE_OTHER,
    HTTPStatus.TEMPORARY_REDIRECT,
)
_CHUNK_BYTES = 65_536
_BUSY_STATUSES = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.REQUEST_TIMEOUT)
_CHANGE_REQUEST_STATES = frozenset({"CHANGES_REQUESTED", "REQUEST_CHANGES"})
M = TypeVar("M", bound="ForgeData")
Text = Annotated[str, BeforeValidator(lambda value: value or "")]
"""A text for which a forge may send null."""


class ForgeData(BaseModel):
    """Data of a forge; unknown fields are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class ForgeComment(ForgeData):
    """A comment or a review."""

    id: int
    body: Text = ""
    author: Text = Field("", validation_alias=AliasPath("user", "login"))
    state: Text = ""
    dismissed: bool = False

    @property
    def requests_changes(self) -> bool:
        """Whether it is an active review that requests changes."""
        return self.state.upper() in _CHANGE_REQUEST_STATES and not self.dismissed


class ReviewComment(ForgeData):
    """A review's comment on a line."""

    path: str
    body: Text = ""
    hunk: Text = Field("", validation_alias="diff_hunk")


class IssueLabel(ForgeData):
    """A label of an issue."""

    name: str


class Issue(ForgeData):
    """An issue. GitHub's list of issues includes pull requests, which have `pull_request`."""

    number: int
    title: Text = ""
    body: Text = ""
    author: Text = Field("", validation_alias=AliasPath("user", "login"))
    labels: tuple[IssueLabel, ...] = ()
    pull_request: Mapping[str, Any] | None = None


class PullRequest(ForgeData):
    """A pull request. `source` is the repository of its branch, empty if that was deleted."""

    number: int
    state: str
    title: Text = ""
    body: Text = ""
    author: Text = Field("", validation_alias=AliasPath("user", "login"))
    onto: Text = Field("", validation_alias=AliasPath("base", "ref"))
    base_sha: Text = Field("", validation_alias=AliasPath("base", "sha"))
    branch: Text = Field("", validation_alias=AliasPath("head", "ref"))
    sha: Text = Field("", validation_alias=AliasPath("head", "sha"))
    source: Text = Field("", validation_alias=AliasPath("head", "repo", "full_name"))


class CommitStatus(ForgeData):
    """The newest status of a commit in a context."""

    context: Text = ""
    state: Text = Field("", validation_alias=AliasChoices("state", "status"))
    description: Text = ""
    target_url: Text = ""
    updated_at: datetime | None = None


class CheckRunOutput(ForgeData):
    """What a CI system reports about a check run, in Markdown."""

    title: Text = ""
    summary: Text = ""
    text: Text = ""


class CheckRun(ForgeData):
    """The newest run of a check on GitHub. `conclusion` is empty until `status` is completed."""

    name: Text = ""
    status: Text = ""
    conclusion: Text = ""
    details_url: Text = ""
    started_at: datetime | None = None
    output: CheckRunOutput = CheckRunOutput()


class _Job(ForgeData):
    head_sha: Text = ""


class _Repository(ForgeData):
    default_branch: str


class _Access(ForgeData):
    permission: str


class _Account(ForgeData):
    login: str


class _Pagination(NamedTuple):
    """Whether there is a next page, and the total number of items, 0 if the forge does not report
    it.
    """

    next: bool
    total: int


class ForgeClient:
    """A client of the configured forge. Methods raise `Temporary` if the forge is unreachable or
    overloaded, `Refused` if the token lacks a permission, `NotFound`, and `CallFailed` for an
    invalid response.
    """

    def __init__(self, settings: Settings, session: aiohttp.ClientSession, token: str) -> None:
        self._session = session
        self._root = api_of(settings)
        self._has_check_runs = settings.kind == "github"
        self._headers = {"Accept": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    async def account(self) -> str:
        """Return the login of the token's account."""
        return (await self._get_one(_Account, "/user")).login

    async def default_branch(self, repository: str) -> str:
        """Return the repository's default branch."""
        return (await self._get_one(_Repository, f"/repos/{repository}")).default_branch

    async def issues(self, repository: str, label: str = "") -> list[Issue]:
        """Return the open issues, with `label` only those that have it."""
        filters = {"state": "open", "type": "issues", **({"labels": label} if label else {})}
        return [
            issue
            for issue in await self._get_all(Issue, f"/repos/{repository}/issues", filters)
            if issue.pull_request is None
        ]

    async def issue(self, repository: str, number: int) -> Issue:
        """Return an issue."""
        return await self._get_one(Issue, f"/repos/{repository}/issues/{number}")

    async def pull(self, repository: str, number: int) -> PullRequest:
        """Return a pull request."""
        return await self._get_one(PullRequest, f"/repos/{repository}/pulls/{number}")

    def pull_ref(self, number: int) -> str:
        """Return the ref at which the forge offers the head of a pull request."""
        return f"refs/pull/{number}/head"

    async def set_status(
        self, repository: str, sha: str, state: str, context: str, description: str
    ) -> None:
        """Set a status of a commit: `state` is success, failure or error."""
        body = {"state": state, "context": context, "description": description}
        await self._send_request("POST", f"/repos/{repository}/statuses/{sha}", body=body)

    async def statuses(self, repository: str, sha: str) -> list[CommitStatus]:
        """Return the newest status of each context of a commit."""
        path = f"/repos/{repository}/commits/{sha}/status"
        return await self._get_all(CommitStatus, path, member="statuses")

    async def check_runs(self, repository: str, sha: str) -> list[CheckRun]:
        """Return the newest run of each check of a commit; none on a forge without check runs."""
        if not self._has_check_runs:
            return []
        path = f"/repos/{repository}/commits/{sha}/check-runs"
        return await self._get_all(CheckRun, path, member="check_runs")

    async def create_check_run(
        self, repository: str, sha: str, *, name: str, conclusion: str, output: Mapping[str, Any]
    ) -> None:
        """Create a completed check run of a commit, which only the token of a GitHub App may.

        conclusion: success, failure or neutral. output: title, summary (Markdown) and annotations.
        """
        body = {"name": name, "head_sha": sha, "status": "completed", "conclusion": conclusion}
        await self._send_request(
            "POST", f"/repos/{repository}/check-runs", body={**body, "output": output}
        )

    async def commit_of_job(self, repository: str, job_id: str) -> str:
        """Return the commit that a job of the forge's Actions ran on."""
        return (await self._get_one(_Job, f"/repos/{repository}/actions/jobs/{job_id}")).head_sha

    async def job_log(self, repository: str, job_id: str, max_bytes: int) -> str:
        """Return the last `max_bytes` bytes of the log of a job of the forge's Actions.

        The forge may redirect to a storage, which does not receive the token.
        """
        return await self._read_log(f"/repos/{repository}/actions/jobs/{job_id}/logs", max_bytes)

    async def _read_log(self, call: str, max_bytes: int) -> str:
        url, headers = self._root + call, self._headers
        try:
            for _ in range(2):
                async with self._session.get(
                    url, headers=headers, allow_redirects=False
                ) as response:
                    if response.status == HTTPStatus.OK:
                        return await _read_tail(response.content, max_bytes)
                    url = self._storage_url(url, response)
                    headers = {}
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Temporary(_connection_message(error)) from error
        raise NotFound(f"the forge has no log at {call}"[:_MESSAGE_CHARS])

    def _storage_url(self, url: str, response: aiohttp.ClientResponse) -> str:
        """Return the URL that a response redirects to: encrypted, or on the forge itself. Raises
        `NotFound`.
        """
        target = urljoin(url, response.headers.get("Location", ""))
        is_allowed = target.startswith(("https://", f"{self._root}/"))
        if response.status not in _REDIRECT_STATUSES or not is_allowed:
            raise NotFound(f"the forge answers GET {url} with {response.status}"[:_MESSAGE_CHARS])
        return target

    async def comments(self, repository: str, number: int) -> list[ForgeComment]:
        """Return the comments of an issue, oldest first."""
        return sorted(
            await self._get_all(ForgeComment, f"/repos/{repository}/issues/{number}/comments"),
            key=lambda comment: comment.id,
        )

    async def comment(self, repository: str, number: int, body: str) -> None:
        """Comment on an issue."""
        await self._send_request(
            "POST", f"/repos/{repository}/issues/{number}/comments", body={"body": body}
        )

    async def pull_comments(self, repository: str, number: int) -> list[ForgeComment]:
        """Return the comments of a pull request, oldest first."""
        return await self.comments(repository, number)

    async def comment_on_pull(self, repository: str, number: int, body: str) -> None:
        """Comment on a pull request."""
        await self.comment(repository, number, body)

    async def may_write(self, repository: str, login: str) -> bool:
        """Return whether an account may push to a repository."""
        try:
            access = await self._get_one(
                _Access, f"/repos/{repository}/collaborators/{quote(login, safe='')}/permission"
            )
        except NotFound:
            return False
        return access.permission in _WRITE_PERMISSIONS

    async def find_pull(self, repository: str, branch: str, author: str) -> PullRequest | None:
        """Return the newest pull request that `author` opened for a branch of the repository
        itself, ignoring forks.
        """
        filters = {
            "state": "all",
            "head": f"{repository.partition('/')[0]}:{branch}",
            "poster": author,
        }
        pulls = [
            pull
            for pull in await self._get_all(PullRequest, f"/repos/{repository}/pulls", filters)
            if pull.branch == branch
            and pull.author == author
            and pull.source.lower() == repository.lower()
        ]
        return max(pulls, key=lambda pull: pull.number, default=None)

    async def create_pull(
        self, repository: str, title: str, body: str, *, branch: str, onto: str
    ) -> int:
        """Open a pull request and return its number."""
        body_fields = {"title": title, "body": body, "head": branch, "base": onto}
        document, _ = await self._send_request(
            "POST", f"/repos/{repository}/pulls", body=body_fields
        )
        return self._parse_one(PullRequest, document).number

    async def reviews(self, repository: str, number: int) -> list[ForgeComment]:
        """Return the reviews of a pull request, oldest first."""
        return sorted(
            await self._get_all(ForgeComment, f"/repos/{repository}/pulls/{number}/reviews"),
            key=lambda review: review.id,
        )

    async def review_comments(
        self, repository: str, number: int, review: int
    ) -> list[ReviewComment]:
        """Return the comments of a review on lines."""
        return await self._get_all(
            ReviewComment, f"/repos/{repository}/pulls/{number}/reviews/{review}/comments"
        )

    async def _get_one(self, type_: type[M], path: str) -> M:
        return self._parse_one(type_, (await self._send_request("GET", path))[0])

    @staticmethod
    def _parse_one(type_: type[M], document: Any) -> M:
        parsed: M = _parse_document(type_, document)
        return parsed

    async def _get_all(
        self,
        type_: type[M],
        path: str,
        filters: Mapping[str, str] | None = None,
        *,
        member: str = "",
    ) -> list[M]:
        """Return the items of all pages. A forge that returns everything at once names no next
        page.

        member: the member of the response that has the items; '' if the response is the list.
        """
        all_items: list[M] = []
        for page in range(1, _MAX_PAGES + 1):
            parameters = {
                **(filters or {}),
                "page": str(page),
                "per_page": str(_PAGE_SIZE),
                "limit": str(_PAGE_SIZE),
            }
            document, pagination = await self._send_request("GET", path, parameters)
            if member:
                document = (document.get(member) if isinstance(document, dict) else None) or []
            items = _parse_document(TypeAdapter(list[type_]), document)  # type: ignore[valid-type] # known when it runs
            all_items += items
            if not items or not (pagination.next or pagination.total > len(all_items)):
                return all_items
        raise CallFailed(f"the forge has more than {_PAGE_SIZE * _MAX_PAGES} of {path}")

    async def _send_request(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> tuple[Any, _Pagination]:
        """Return the response's document and pagination."""
        call = f"{method} {path}"
        try:
            async with self._session.request(
                method,
                self._root + path,
                params=parameters,
                json=body,
                headers=self._headers,
                allow_redirects=False,
            ) as response:
                content = await read_body(response.content.readexactly, _MAX_RESPONSE_BYTES)
                if content is None:
                    raise CallFailed(
                        f"the forge answers {call} with more than {_MAX_RESPONSE_BYTES} bytes"
                    )
                status, retry_after = response.status, _retry_after(response.headers)
                total = response.headers.get("X-Total-Count", "")
                pagination = _Pagination(
                    "next" in response.links, int(total) if total.isdecimal() else 0
                )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Temporary(_connection_message(error)) from error
        document = _parse_json(content)
        if status in {HTTPStatus.OK, HTTPStatus.CREATED}:
            return document, pagination
        reason = (
            str(document.get("message") or document.get("error") or "")
            if isinstance(document, dict)
            else ""
        )
        message = f"the forge answers {call} with {status}: {reason}"[:_MESSAGE_CHARS]
        if (
            status >= HTTPStatus.INTERNAL_SERVER_ERROR
            or status in _BUSY_STATUSES
            or (status == HTTPStatus.FORBIDDEN and retry_after)
        ):
            raise Temporary(message, float(retry_after) if retry_after.isdecimal() else None)
        raise (
            Refused(message)
            if status in _REFUSED_STATUSES
            else NotFound(message)
            if status == HTTPStatus.NOT_FOUND
            else CallFailed(message)
        )


def _connection_message(error: Exception) -> str:
    return f"the forge cannot be reached: {str(error) or type(error).__name__}"[:_MESSAGE_CHARS]


async def _read_tail(content: aiohttp.StreamReader, max_bytes: int) -> str:
    """Return the end of a text, of which at most `_MAX_RESPONSE_BYTES` are read."""
    tail, size = b"", 0
    async for chunk in content.iter_chunked(_CHUNK_BYTES):
        tail, size = (tail + chunk)[-max_bytes:], size + len(chunk)
        if size > _MAX_RESPONSE_BYTES:
            break
    return tail.decode(errors="replace")


def _parse_json(raw: bytes) -> Any:
    try:
        return json.loads(raw) if raw else None
    except (ValueError, RecursionError):
        return None


def _retry_after(headers: Mapping[str, str]) -> str:
    """Return the seconds to wait that the forge asks for, '' if it asks for none."""
    reset = headers.get("X-RateLimit-Reset", "")
    if headers.get("X-RateLimit-Remaining") == "0" and reset.isdecimal():
        return str(max(int(reset) - int(time.time()), 1))
    return headers.get("Retry-After", "")


def _parse_document(type_: type[M] | TypeAdapter[Any], document: Any) -> Any:
    try:
        return (
            type_.validate_python(document)
            if isinstance(type_, TypeAdapter)
            else type_.model_validate(document)
        )
    except ValidationError as error:
        raise CallFailed(
            f"the answer of the forge does not match its API: {describe_errors(error)}"[
                :_MESSAGE_CHARS
            ]
        ) from None


def api_of(settings: Settings) -> str:
    """Return the root URL of the forge's API. Raises `ConfigurationError` for a URL without
    encryption.
    """
    url = settings.url.rstrip("/")
    check_address("forge.url", url)
    if settings.kind == "gitea":
        return f"{url}/api/v1"
    if settings.kind == "gitlab":
        return f"{url}/api/v4"
    return "https://api.github.com" if urlsplit(url).hostname == "github.com" else f"{url}/api/v3"


_CALL_SECONDS = 30.0


@asynccontextmanager
async def forge_client(
    settings: Settings, *, anonymous: bool = False
) -> AsyncIterator[ForgeClient]:
    """Connect to a forge. Raises `ConfigurationError`.

    anonymous: a token may be missing, because only public data is read.
    """
    from moothall.forge.gitlab import GitLabClient

    if settings.token is None and not anonymous:
        raise ConfigurationError(
            "forge.token is missing: set forge.token_file, or MOOTHALL_FORGE__TOKEN"
        )
    limit = aiohttp.ClientTimeout(total=_CALL_SECONDS)
    async with aiohttp.ClientSession(timeout=limit, cookie_jar=aiohttp.DummyCookieJar()) as session:
        token = settings.token.get_secret_value() if settings.token is not None else ""
        kind = GitLabClient if settings.kind == "gitlab" else ForgeClient
        yield kind(settings, session, token)
