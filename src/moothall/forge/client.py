"""A forge over its REST API: GitHub's, or Gitea's and Forgejo's. What both call the same is said
once.

Each call is bounded in time and bytes and follows no redirect, so that the token goes to the forge
alone.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Annotated, Any, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

import aiohttp
from pydantic import (
    AliasPath,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
)

from moothall.api.identity import check_address
from moothall.concurrency import whole_body
from moothall.config import ForgeSettings as Settings
from moothall.domain.codec import wrong
from moothall.errors import CallFailed, ConfigurationError, NotFound, Refused, Temporary

_BYTES, _SAID, _PAGE, _PAGES = 8_000_000, 300, 50, 200
_MAY_WRITE = frozenset({"owner", "admin", "maintain", "write"})
_REFUSED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_BUSY = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.REQUEST_TIMEOUT)
_CHANGES = frozenset({"CHANGES_REQUESTED", "REQUEST_CHANGES"})
M = TypeVar("M", bound="ForgeData")
Text = Annotated[str, BeforeValidator(lambda value: value or "")]
"""Where a forge says null for no text."""


class ForgeData(BaseModel):
    """What a forge says; all else that it says is left."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class ForgeComment(ForgeData):
    """Somebody's words: a comment, or a review."""

    id: int
    body: Text = ""
    author: Text = Field("", validation_alias=AliasPath("user", "login"))
    state: Text = ""
    dismissed: bool = False

    @property
    def requests_changes(self) -> bool:
        """Whether it is a review that stands and wants something else."""
        return self.state.upper() in _CHANGES and not self.dismissed


class ReviewComment(ForgeData):
    """What a review says of a line."""

    path: str
    body: Text = ""
    hunk: Text = Field("", validation_alias="diff_hunk")


class IssueLabel(ForgeData):
    """What an issue carries."""

    name: str


class Issue(ForgeData):
    """An issue; on GitHub also a pull request, which then says so."""

    number: int
    title: Text = ""
    body: Text = ""
    author: Text = Field("", validation_alias=AliasPath("user", "login"))
    labels: tuple[IssueLabel, ...] = ()
    pull_request: Mapping[str, Any] | None = None


class PullRequest(ForgeData):
    """A pull request; `source` is the repository in which its branch lies, empty where that is
    gone.
    """

    number: int
    state: str
    body: Text = ""
    author: Text = Field("", validation_alias=AliasPath("user", "login"))
    branch: Text = Field("", validation_alias=AliasPath("head", "ref"))
    sha: Text = Field("", validation_alias=AliasPath("head", "sha"))
    source: Text = Field("", validation_alias=AliasPath("head", "repo", "full_name"))


class _Repository(ForgeData):
    default_branch: str


class _Access(ForgeData):
    permission: str


class _Account(ForgeData):
    login: str


class _More(NamedTuple):
    """Whether a forge names a next page, and how many there are in all, where it says so."""

    next: bool
    total: int


class ForgeClient:
    """The forge of the settings, as the account of its token. Methods raise `Temporary` where it
    cannot be reached or has too much to do, `Refused` where the token may not, `NotFound`, and
    `CallFailed` for an answer that is none.
    """

    def __init__(self, settings: Settings, session: aiohttp.ClientSession, token: str) -> None:
        self._session = session
        self._root = api_of(settings)
        self._headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}

    async def account(self) -> str:
        """Return whose token it is."""
        return (await self._one(_Account, "/user")).login

    async def default_branch(self, repository: str) -> str:
        """Return the branch that pull requests are for."""
        return (await self._one(_Repository, f"/repos/{repository}")).default_branch

    async def issues(self, repository: str, label: str = "") -> list[Issue]:
        """Return the open issues, those with a label alone where one is named."""
        asked = {"state": "open", "type": "issues", **({"labels": label} if label else {})}
        return [
            issue
            for issue in await self._all(Issue, f"/repos/{repository}/issues", asked)
            if issue.pull_request is None
        ]

    async def comments(self, repository: str, number: int) -> list[ForgeComment]:
        """Return what was said to an issue or pull request, the oldest first."""
        return sorted(
            await self._all(ForgeComment, f"/repos/{repository}/issues/{number}/comments"),
            key=lambda post: post.id,
        )

    async def comment(self, repository: str, number: int, body: str) -> None:
        """Say something to an issue or pull request."""
        await self._ask(
            "POST", f"/repos/{repository}/issues/{number}/comments", body={"body": body}
        )

    async def may_write(self, repository: str, login: str) -> bool:
        """Whether somebody may push to a repository."""
        try:
            said = await self._one(
                _Access, f"/repos/{repository}/collaborators/{quote(login, safe='')}/permission"
            )
        except NotFound:
            return False
        return said.permission in _MAY_WRITE

    async def pull_of(self, repository: str, branch: str, author: str) -> PullRequest | None:
        """Return the newest pull request that `author` opened for a branch of the repository
        itself; nobody else's, and none of a fork.
        """
        asked = {
            "state": "all",
            "head": f"{repository.partition('/')[0]}:{branch}",
            "poster": author,
        }
        found = [
            pull
            for pull in await self._all(PullRequest, f"/repos/{repository}/pulls", asked)
            if pull.branch == branch
            and pull.author == author
            and pull.source.lower() == repository.lower()
        ]
        return max(found, key=lambda pull: pull.number, default=None)

    async def open_pull(
        self, repository: str, title: str, body: str, *, branch: str, onto: str
    ) -> int:
        """Open a pull request and return its number."""
        said = {"title": title, "body": body, "head": branch, "base": onto}
        told, _ = await self._ask("POST", f"/repos/{repository}/pulls", body=said)
        pull: PullRequest = _read(PullRequest, told)
        return pull.number

    async def reviews(self, repository: str, number: int) -> list[ForgeComment]:
        """Return the reviews of a pull request, the oldest first."""
        return sorted(
            await self._all(ForgeComment, f"/repos/{repository}/pulls/{number}/reviews"),
            key=lambda post: post.id,
        )

    async def remarks(self, repository: str, number: int, review: int) -> list[ReviewComment]:
        """Return what a review says of lines."""
        return await self._all(
            ReviewComment, f"/repos/{repository}/pulls/{number}/reviews/{review}/comments"
        )

    async def _one(self, kind: type[M], path: str) -> M:
        one: M = _read(kind, (await self._ask("GET", path))[0])
        return one

    async def _all(
        self, kind: type[M], path: str, asked: Mapping[str, str] | None = None
    ) -> list[M]:
        """Return every page. A forge that gives all at once names no next one."""
        found: list[M] = []
        for page in range(1, _PAGES + 1):
            paged = {
                **(asked or {}),
                "page": str(page),
                "per_page": str(_PAGE),
                "limit": str(_PAGE),
            }
            told, more = await self._ask("GET", path, paged)
            items = _read(TypeAdapter(list[kind]), told)  # type: ignore[valid-type] # known when it runs
            found += items
            if not items or not (more.next or more.total > len(found)):
                return found
        raise CallFailed(f"the forge has more than {_PAGE * _PAGES} of {path}")

    async def _ask(
        self,
        method: str,
        path: str,
        asked: Mapping[str, str] | None = None,
        body: Mapping[str, str] | None = None,
    ) -> tuple[Any, _More]:
        """Return what the forge says, and what it says of further pages."""
        where = f"{method} {path}"
        try:
            async with self._session.request(
                method,
                self._root + path,
                params=asked,
                json=body,
                headers=self._headers,
                allow_redirects=False,
            ) as answer:
                raw = await whole_body(answer.content.readexactly, _BYTES)
                if raw is None:
                    raise CallFailed(f"the forge answers {where} with more than {_BYTES} bytes")
                status, waiting = answer.status, _retry_after(answer.headers)
                total = answer.headers.get("X-Total-Count", "")
                more = _More("next" in answer.links, int(total) if total.isdecimal() else 0)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Temporary(
                f"the forge cannot be reached: {str(error) or type(error).__name__}"[:_SAID]
            ) from error
        told = _document(raw)
        if status in {HTTPStatus.OK, HTTPStatus.CREATED}:
            return told, more
        reason = str(told.get("message", "")) if isinstance(told, dict) else ""
        said = f"the forge answers {where} with {status}: {reason}"[:_SAID]
        if (
            status >= HTTPStatus.INTERNAL_SERVER_ERROR
            or status in _BUSY
            or (status == HTTPStatus.FORBIDDEN and waiting)
        ):
            raise Temporary(said, float(waiting) if waiting.isdecimal() else None)
        raise (
            Refused(said)
            if status in _REFUSED
            else NotFound(said)
            if status == HTTPStatus.NOT_FOUND
            else CallFailed(said)
        )


def _document(raw: bytes) -> Any:
    try:
        return json.loads(raw) if raw else None
    except (ValueError, RecursionError):
        return None


def _retry_after(headers: Mapping[str, str]) -> str:
    """Return for how many seconds the forge wants not to be asked, '' where it says nothing of
    that.
    """
    reset = headers.get("X-RateLimit-Reset", "")
    if headers.get("X-RateLimit-Remaining") == "0" and reset.isdecimal():
        return str(max(int(reset) - int(time.time()), 1))
    return headers.get("Retry-After", "")


def _read(kind: type[M] | TypeAdapter[Any], told: Any) -> Any:
    try:
        return (
            kind.validate_python(told)
            if isinstance(kind, TypeAdapter)
            else kind.model_validate(told)
        )
    except ValidationError as error:
        raise CallFailed(
            f"what the forge says is not what its API says: {wrong(error)}"[:_SAID]
        ) from None


def api_of(settings: Settings) -> str:
    """Return the root of the forge's API. Raises `ConfigurationError` for an address over which
    others could read along.
    """
    url = settings.url.rstrip("/")
    check_address("forge.url", url)
    if settings.kind == "gitea":
        return f"{url}/api/v1"
    return "https://api.github.com" if urlsplit(url).hostname == "github.com" else f"{url}/api/v3"


@asynccontextmanager
async def forge_client(settings: Settings) -> AsyncIterator[ForgeClient]:
    """Connect to the forge of the settings. Raises `ConfigurationError`."""
    if settings.token is None:
        raise ConfigurationError(
            "forge.token is missing: set forge.token_file, or MOOTHALL_FORGE__TOKEN"
        )
    limit = aiohttp.ClientTimeout(total=settings.call_seconds)
    async with aiohttp.ClientSession(timeout=limit, cookie_jar=aiohttp.DummyCookieJar()) as session:
        yield ForgeClient(settings, session, settings.token.get_secret_value())
