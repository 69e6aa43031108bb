"""Webhooks of issue trackers: an issue of Linear or Jira with a label becomes a story on the board.

The webhooks carry a signature instead of a token. Anyone who can write in the tracker controls
their content, so people with roles decide what happens to the story.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, SecretStr, ValidationError
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moothall.api.dependencies import ApiDependencies
from moothall.api.http.documents import HttpRefusal, body
from moothall.config import TrackerSettings
from moothall.domain.codec import wrong
from moothall.domain.identity import LOCAL, Principal
from moothall.errors import AlreadyExists, InvalidRequest
from moothall.stories import coach
from moothall.telemetry import get_logger

LINEAR_PATH, JIRA_PATH = "/hooks/linear", "/hooks/jira"
_CRITERION = re.compile(r"^[-*+] \[[ xX]\] +(.+)$", re.MULTILINE)
_CUT = "\n\n[cut: the issue is longer]"
Text = Annotated[str, BeforeValidator(lambda value: value if isinstance(value, str) else "")]
"""A text that a tracker may leave out, or send in another form."""
log = get_logger(__name__)


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _Named(_Data):
    name: Text = ""


class _Keyed(_Data):
    key: Text = ""


class _LinearIssue(_Data):
    id: str
    identifier: Text = ""
    title: Text = ""
    description: Text = ""
    url: Text = ""
    team: _Keyed = _Keyed()
    labels: tuple[_Named, ...] = ()


class _LinearEvent(_Data):
    type: Text = ""
    action: Text = ""
    data: Any = None


class _JiraFields(_Data):
    summary: Text = ""
    description: Text = ""
    project: _Keyed = _Keyed()
    labels: tuple[str, ...] = ()


class _JiraIssue(_Data):
    id: str
    key: Text = ""
    fields: _JiraFields


class _JiraEvent(_Data):
    webhookEvent: Text = ""  # noqa: N815 - the name that Jira gives it
    issue: _JiraIssue | None = None


@dataclass(frozen=True, slots=True)
class TrackedIssue:
    """An issue of a tracker. `key` names it for people, `project` the team or project."""

    id: str
    key: str
    project: str
    title: str
    text: str
    labels: tuple[str, ...]


def tracker_routes(dependencies: ApiDependencies, settings: TrackerSettings) -> Sequence[Route]:
    """Return a route for each tracker whose secret is set; none without the role `api`."""
    trackers: tuple[tuple[str, SecretStr | None, str, Callable[[bytes], TrackedIssue | None]], ...]
    trackers = (
        (LINEAR_PATH, settings.linear_secret, "Linear-Signature", _read_linear),
        (JIRA_PATH, settings.jira_secret, "X-Hub-Signature", _read_jira),
    )
    return [
        Route(path, _handler(dependencies, settings, secret, header, read), methods=["POST"])
        for path, secret, header, read in trackers
        if secret is not None and "api" in dependencies.serving.roles
    ]


def _handler(
    dependencies: ApiDependencies,
    settings: TrackerSettings,
    secret: SecretStr,
    header: str,
    read: Callable[[bytes], TrackedIssue | None],
) -> Callable[[Request], Any]:
    async def handle(request: Request) -> Response:
        """Answer 204 also for ignored events, because trackers retry after other answers."""
        content = await body(request)
        if not _is_signed(request.headers, header, content, secret):
            raise HttpRefusal(401, "UNAUTHENTICATED", f"{header} is not the signature of the body")
        try:
            issue = read(content)
        except (ValidationError, ValueError, RecursionError) as error:
            reason = wrong(error, "body") if isinstance(error, ValidationError) else str(error)
            raise InvalidRequest(f"invalid webhook: {reason[:300]}") from None
        if issue is not None and (not settings.label or settings.label in issue.labels):
            tracker = request.url.path.rpartition("/")[2]
            await _put_on_board(dependencies, settings, issue, tracker)
        return Response(status_code=204)

    return handle


def _is_signed(headers: Headers, header: str, content: bytes, secret: SecretStr) -> bool:
    expected = hmac.new(secret.get_secret_value().encode(), content, sha256).hexdigest()
    given = headers.get(header, "").removeprefix("sha256=")
    return hmac.compare_digest(expected.encode(), given.encode("utf-8", "surrogateescape"))


def _read_linear(content: bytes) -> TrackedIssue | None:
    """Return the issue of an event; None for events that put nothing on the board."""
    event = _LinearEvent.model_validate_json(content)
    if event.type != "Issue" or event.action not in {"create", "update"}:
        return None
    issue = _LinearIssue.model_validate(event.data)
    return TrackedIssue(
        issue.id,
        issue.identifier,
        issue.team.key,
        issue.title,
        "\n\n".join(part for part in (issue.description, issue.url) if part),
        tuple(label.name for label in issue.labels),
    )


def _read_jira(content: bytes) -> TrackedIssue | None:
    """Return the issue of an event; None for events that put nothing on the board."""
    event = _JiraEvent.model_validate_json(content)
    if event.webhookEvent not in {"jira:issue_created", "jira:issue_updated"}:
        return None
    if event.issue is None:
        raise ValueError("the event has no issue")
    issue = event.issue
    fields = issue.fields
    return TrackedIssue(
        issue.id, issue.key, fields.project.key, fields.summary, fields.description, fields.labels
    )


async def _put_on_board(
    dependencies: ApiDependencies, settings: TrackerSettings, issue: TrackedIssue, tracker: str
) -> None:
    """Put an issue on the board, once. Later changes in the tracker do not change the story."""
    principal = Principal(tracker, LOCAL.tenant)
    repository = settings.repositories.get(issue.project, "")
    await dependencies.stories.plans.check_repository(repository, principal)
    try:
        card = await dependencies.stories.board.create(
            draft_of(issue), principal, key=f"{tracker}:{issue.id}", repository=repository
        )
        log.info("an issue is on the board", tracker=tracker, issue=issue.key, story=card.story.id)
    except AlreadyExists:
        log.info("an issue is on the board already", tracker=tracker, issue=issue.key)


def draft_of(issue: TrackedIssue) -> coach.StoryDraft:
    """Return a story for an issue, cut to the limits of one. Check boxes of its text become the
    criteria.
    """
    title = " ".join(f"{issue.key} {issue.title}".split())[: coach.TITLE_CHARS]
    criteria = tuple(_CRITERION.findall(issue.text))[: coach.CRITERIA]
    text = _CRITERION.sub("", issue.text).strip()
    remaining = coach.CHARS - len(title)
    if sum(map(len, criteria)) > remaining // 2:
        criteria, text = (), issue.text.strip()
    remaining -= sum(map(len, criteria))
    if len(text) > remaining:
        text = text[: remaining - len(_CUT)] + _CUT
    return coach.StoryDraft(title, text, criteria)
