"""Webhooks, outgoing and incoming. An operator's server receives each decision and each move of a
story, in the order of the log and at least once. Issue trackers send issues: an issue of Linear or
Jira with a label becomes a story on the board.
"""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Any

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, SecretStr, ValidationError
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moothall.api.dependencies import ApiDependencies
from moothall.api.http.documents import HttpRefusal, body
from moothall.api.identity import check_address
from moothall.config import TrackerSettings
from moothall.config import WebhookSettings as Settings
from moothall.domain.codec import describe_errors
from moothall.domain.event import Channel, EventType, Recorded
from moothall.domain.ids import LOCAL, Principal, digest
from moothall.errors import AlreadyExists, InvalidRequest, Temporary
from moothall.ports import Bus
from moothall.stories import coach
from moothall.telemetry import get_logger

if TYPE_CHECKING:  # it reads all certificates of the system when it is imported
    import aiohttp

# Outgoing webhooks. The payload has only names and ids, no text of models or callers; receivers
# request the result if they need more. It is signed as forges sign theirs.


log = get_logger(__name__)

BUCKET = "webhooks"
VERSION = 1
_FIELDS = {
    EventType.DELIBERATION_DECIDED: (
        "task_id",
        "status",
        "final_state",
        "winner_id",
        "proven",
        "evidence_level",
        "branch",
        "commit_sha",
    ),
    EventType.STORY_TRANSITIONED: (
        "story_id",
        "to_state",
    ),  # the previous state may be text of a caller
}
"""The events that are sent, with the fields of their data."""
_RETRY_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 1.0, 60.0
_ATTEMPT_SECONDS = 10.0
_MAX_ATTEMPTS = 8
_SUCCESS_STATUSES = range(200, 300)


class Webhooks:
    """The sender of webhooks. Its position is stored on the bus, one document for each URL; without
    one it begins with the next event.
    """

    def __init__(
        self,
        bus: Bus,
        settings: Settings,
        session: aiohttp.ClientSession,
        *,
        max_attempts: int = _MAX_ATTEMPTS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._bus = bus
        self._url = settings.url or ""
        self._secret = settings.secret.get_secret_value().encode() if settings.secret else b""
        self._max_attempts = max_attempts
        self._session = session
        self._sleep = sleep

    async def deliver_events(self, last_seq: int) -> None:
        """Send all events after the stored position until cancelled. `last_seq` is the current end
        of the log, where delivery begins if no position is stored.
        """
        bucket, key = self._bus.bucket(BUCKET), digest("webhook", self._url)[:32]
        while True:
            try:
                position = await bucket.get(key)
                if position is None:
                    position = {"seq": last_seq}
                    await bucket.put(key, position)
                async with aclosing(
                    self._bus.follow(
                        [Channel.RESPONSES.all, Channel.STORIES.all], int(position["seq"])
                    )
                ) as records:
                    async for recorded in records:
                        if recorded.event.type in _FIELDS:
                            await self._deliver(recorded)
                            await bucket.put(key, {"seq": recorded.seq})
            except Temporary as error:
                log.warning("webhooks are waiting for the bus", reason=error.message)
                await self._sleep(_RETRY_PAUSE_SECONDS)

    async def _deliver(self, recorded: Recorded) -> None:
        """Send an event, and again after growing pauses if that fails. After the last try, skip and
        log it.
        """
        body = orjson.dumps(payload(recorded), option=orjson.OPT_SORT_KEYS)
        signature = hmac.new(self._secret, body, sha256).hexdigest()
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "moothall",
            "X-Moothall-Event": recorded.event.type.value,
            "X-Moothall-Delivery": recorded.event.id,
            "X-Moothall-Signature-256": f"sha256={signature}",
        }
        for attempt in range(self._max_attempts):
            if attempt:
                await self._sleep(
                    min(_RETRY_PAUSE_SECONDS * 2 ** (attempt - 1), _MAX_PAUSE_SECONDS)
                )
            failure = await self._send_event(body, headers)
            if not failure:
                return
            log.info(
                "a webhook was not accepted",
                delivery=recorded.event.id,
                tried=attempt + 1,
                reason=failure,
            )
        subject = recorded.event.data.get("task_id") or recorded.event.data.get("story_id")
        log.warning(
            "a webhook is skipped",
            delivery=recorded.event.id,
            about=subject,
            tried=self._max_attempts,
        )

    async def _send_event(self, body: bytes, headers: Mapping[str, str]) -> str:
        """Return why the receiver did not accept the event, '' if it did."""
        import aiohttp

        try:
            # A redirect would send the payload to another server.
            async with self._session.post(
                self._url, data=body, headers=headers, allow_redirects=False
            ) as response:
                return "" if response.status in _SUCCESS_STATUSES else f"HTTP {response.status}"
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return str(error) or type(error).__name__


def payload(recorded: Recorded) -> dict[str, Any]:
    """Return the payload for an event of `_FIELDS`."""
    event = recorded.event
    event_fields = {name: event.data[name] for name in _FIELDS[event.type] if name in event.data}
    return {
        "version": VERSION,
        "event": event.type.value,
        "id": event.id,
        "seq": recorded.seq,
        "time": event.time,
        "tenant": event.tenant,
    } | event_fields


@asynccontextmanager
async def open_webhooks(
    bus: Bus, settings: Settings, max_attempts: int = _MAX_ATTEMPTS
) -> AsyncIterator[Webhooks]:
    """Open the HTTP session. Raises `ConfigurationError` for a URL without encryption."""
    import aiohttp

    check_address("webhook.url", settings.url or "")
    limit = aiohttp.ClientTimeout(total=_ATTEMPT_SECONDS)
    async with aiohttp.ClientSession(timeout=limit, cookie_jar=aiohttp.DummyCookieJar()) as session:
        yield Webhooks(bus, settings, session, max_attempts=max_attempts)


# Webhooks of issue trackers. They carry a signature instead of a token. Anyone who can write in the
# tracker controls their content, so people with roles decide what happens to the story.


LINEAR_PATH, JIRA_PATH = "/hooks/linear", "/hooks/jira"
_CRITERION = re.compile(r"^[-*+] \[[ xX]\] +(.+)$", re.MULTILINE)
_CUT_NOTE = "\n\n[cut: the issue is longer]"
Text = Annotated[str, BeforeValidator(lambda value: value if isinstance(value, str) else "")]
"""A text that a tracker may leave out, or send in another form."""


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
        Route(path, _handler(dependencies, settings, secret, header, read_issue), methods=["POST"])
        for path, secret, header, read_issue in trackers
        if secret is not None and "api" in dependencies.serving.roles
    ]


def _handler(
    dependencies: ApiDependencies,
    settings: TrackerSettings,
    secret: SecretStr,
    header: str,
    read_issue: Callable[[bytes], TrackedIssue | None],
) -> Callable[[Request], Any]:
    async def handle(request: Request) -> Response:
        """Answer 204 also for ignored events, because trackers retry after other answers."""
        content = await body(request)
        if not _is_signed(request.headers, header, content, secret):
            raise HttpRefusal(401, "UNAUTHENTICATED", f"{header} is not the signature of the body")
        try:
            issue = read_issue(content)
        except (ValidationError, ValueError, RecursionError) as error:
            reason = (
                describe_errors(error, "body") if isinstance(error, ValidationError) else str(error)
            )
            raise InvalidRequest(f"invalid webhook: {reason[:300]}") from None
        if issue is not None and (not settings.label or settings.label in issue.labels):
            tracker = request.url.path.rpartition("/")[2]
            await _put_on_board(dependencies, settings, issue, tracker)
        return Response(status_code=204)

    return handle


def _is_signed(headers: Headers, header: str, content: bytes, secret: SecretStr) -> bool:
    expected = hmac.new(secret.get_secret_value().encode(), content, sha256).hexdigest()
    signature = headers.get(header, "").removeprefix("sha256=")
    return hmac.compare_digest(expected.encode(), signature.encode("utf-8", "surrogateescape"))


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
        text = text[: remaining - len(_CUT_NOTE)] + _CUT_NOTE
    return coach.StoryDraft(title, text, criteria)
