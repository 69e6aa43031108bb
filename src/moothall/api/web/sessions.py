"""The sessions of the web page. Sessions and forms of the web page, and errors as HTML pages."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from http import HTTPStatus
from time import monotonic
from urllib.parse import parse_qs, quote, urlsplit

from cachetools import TTLCache
from starlette.requests import Request
from starlette.responses import Response

from moothall import telemetry
from moothall.api.accounts import UserAccounts, form_secret
from moothall.api.http.documents import HttpRefusal, ServerSentEvents
from moothall.api.identity import Caller, call_as
from moothall.api.protobuf import http_status_of
from moothall.api.web.rendering import page, prepare, redirect
from moothall.domain.ids import Principal, is_id
from moothall.errors import InvalidRequest, MoothallError, Refused

# The sessions of the web page. A browser holds a random id, never a token or a password.
#
# Sessions from tokens, links and providers end when the server restarts; sessions from passwords do
# not.


_MAX_PARALLEL_CHECKS = 2
"""Passwords that are checked at once; each check takes 64 MiB and all cores."""


def _secret() -> str:
    return secrets.token_urlsafe(32)


@dataclass(frozen=True, slots=True)
class Session:
    """A signed-in browser. `form` is the secret in its forms, which foreign pages cannot know
    (CSRF). `sign_out_url` is the URL to also sign out at the provider. The session ends when
    `is_valid` returns False for the credentials that opened it.
    """

    principal: Principal
    id: str = field(default_factory=_secret, repr=False)
    form: str = field(default_factory=_secret, repr=False)
    sign_out_url: str = ""
    is_valid: Callable[[], bool] = field(default=lambda: True, repr=False)

    def owns_form(self, form: str) -> bool:
        """Return whether a form was sent by this session."""
        return hmac.compare_digest(self.form.encode(), form.encode("utf-8", "surrogateescape"))


class Sessions:
    """All sessions. Those from tokens, links and a provider (named `provider_name`) are in
    memory: at most `max_sessions`, of which the least recently used is dropped first. Each ends
    after `seconds`, a link after `link_seconds`. Sessions of `accounts` have the same limits and
    are stored in the accounts file.
    """

    def __init__(
        self,
        max_sessions: int,
        seconds: float,
        link_seconds: float,
        clock: Callable[[], float] = monotonic,
        *,
        accounts: UserAccounts | None = None,
        provider_name: str = "",
    ) -> None:
        self._sessions: TTLCache[str, Session] = TTLCache(max_sessions, seconds, clock)
        self._links: TTLCache[str, Caller] = TTLCache(max_sessions, link_seconds, clock)
        self._accounts = accounts
        self._password_checks = asyncio.Semaphore(_MAX_PARALLEL_CHECKS)
        self._max_sessions = max_sessions
        self.seconds = seconds
        self.provider_name = provider_name

    @property
    def has_accounts(self) -> bool:
        """Whether there is an account."""
        return self._accounts is not None and bool(self._accounts.list())

    async def sign_in(self, name: str, password: str) -> Session | None:
        """Sign in with name and password; None if they are wrong."""
        if self._accounts is None:
            return None
        async with self._password_checks:
            session_id = await asyncio.to_thread(
                self._accounts.sign_in, name, password, self.seconds, self._max_sessions
            )
        return None if session_id is None else self.find(session_id)

    def open(self, caller: Caller, sign_out_url: str = "") -> Session:
        """Create a session."""
        session = Session(caller.principal, sign_out_url=sign_out_url, is_valid=caller.is_valid)
        self._sessions[session.id] = session
        return session

    def find(self, session_id: str) -> Session | None:
        """Return a session; None if it is unknown or has ended."""
        if (session := self._sessions.get(session_id)) is not None:
            return session if session.is_valid() else None
        if self._accounts is None:
            return None
        principal = self._accounts.find(session_id)
        return (
            None if principal is None else Session(principal, session_id, form_secret(session_id))
        )

    def close(self, session: Session) -> None:
        """End a session."""
        if self._sessions.pop(session.id, None) is None and self._accounts is not None:
            self._accounts.sign_out(session.id)

    def link(self, caller: Caller) -> str:
        """Create a secret for one sign-in without a token."""
        secret = _secret()
        self._links[secret] = caller
        return secret

    def follow(self, secret: str) -> Session | None:
        """Sign in by a link; None if it is unknown, used or expired."""
        caller = self._links.pop(secret, None)
        return None if caller is None or not caller.is_valid() else self.open(caller)


# Sessions and forms of the web page, and errors as HTML pages.


COOKIE, _MAX_FIELDS = "moothall-session", 20
_MAX_QUERY_CHARS = 200
_FORM_TYPE = "application/x-www-form-urlencoded"

_RETRYABLE_STATUSES = frozenset({408, 429, 500, 502, 503, 504})
_GO_BACK = "Nothing was changed. Go back: your input is still there."
_NEXT_STEPS = {
    403: (
        "Nothing was changed. This needs another role; the operator of this server assigns roles."
    ),
    404: "It does not exist, or belongs to another tenant.",
    409: "It was changed in the meantime. Go back and reload the page to see the current state.",
    429: "There are too many requests at the moment. Wait a moment and try again.",
    500: (
        "Recorded data is safe. Try again; if the error persists, tell the operator of this server."
    ),
    503: (
        "A part of the server does not answer at the moment. Recorded data is safe; try again in "
        "a moment."
    ),
}

_STREAMS = ("/changes", "/text", "/cards", "/lines")
"""Endings of the paths of streams and fragments, which are no page to return to after sign-in."""

log = telemetry.get_logger(__name__)

Answer = Callable[[Request, Session], Awaitable[Response]]


async def read_session_form(
    request: Request, session: Session, max_fields: int = _MAX_FIELDS
) -> Mapping[str, str]:
    """Return the fields of a form of this session. Raises `Refused` for a form of another session,
    and what `read_form` raises.
    """
    fields = await read_form(request, max_fields)
    if not session.owns_form(fields.get("form", "")):
        raise Refused(
            "this form belongs to another session; go back, reload the page and send it again"
        )
    return fields


async def read_form(request: Request, max_fields: int = _MAX_FIELDS) -> Mapping[str, str]:
    """Return the fields of a form. Raises `HttpRefusal` if it is not a form, too large or too slow,
    `InvalidRequest` for more than `max_fields` fields.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM_TYPE:
        raise HttpRefusal(415, "NOT_A_FORM", f"send a form ({_FORM_TYPE})")
    limits, raw = request.app.state.limits, bytearray()
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for chunk in request.stream():
                raw += chunk
                if len(raw) > limits.body_bytes:
                    raise HttpRefusal(
                        413,
                        "BODY_TOO_LARGE",
                        f"the form is larger than {limits.body_bytes} bytes",
                    )
        fields = parse_qs(raw.decode(), keep_blank_values=True, max_num_fields=max_fields)
    except TimeoutError as error:
        raise HttpRefusal(
            408, "BODY_TOO_SLOW", f"the form did not arrive in {limits.body_seconds:g} seconds"
        ) from error
    except ValueError as error:
        raise InvalidRequest(
            "the form cannot be read: it has too many fields or is not text"
        ) from error
    return {name: values[-1] for name, values in fields.items()}


def read_query(request: Request, name: str = "q") -> str:
    """Return a parameter of the URL that people type, without spaces around it."""
    return request.query_params.get(name, "").strip()[:_MAX_QUERY_CHARS]


def sign_in_form(
    sessions: Sessions,
    status: int = 200,
    problem: str = "",
    detail: str = "",
    *,
    next_page: str = "/",
) -> Response:
    """Return the sign-in page. `problem` selects the error to show, `detail` adds a detail, and
    `next_page` is the path to show after sign-in.
    """
    return page(
        "sign_in.html",
        status,
        problem=problem,
        detail=detail,
        has_accounts=sessions.has_accounts,
        provider=sessions.provider_name,
        next_page=next_page,
    )


def require_session(answer: Answer, sessions: Sessions) -> Callable[[Request], Awaitable[Response]]:
    """Wrap a handler: browsers without a session are sent to the sign-in page."""

    async def check_session(request: Request) -> Response:
        session = sessions.find(request.cookies.get(COOKIE, ""))
        if session is None:
            if request.method == "GET":
                path = f"{request.url.path}?{request.url.query}".removesuffix("?")
                has_no_page = path == "/" or request.url.path.endswith(_STREAMS)
                return redirect("/sign-in" if has_no_page else f"/sign-in?next={quote(path, '')}")
            # The page of the form: the script puts what was typed back into it.
            came_from = urlsplit(request.headers.get("referer", ""))
            path = f"{came_from.path}?{came_from.query}".removesuffix("?")
            return sign_in_form(sessions, 403, "session_ended", next_page=safe_path(path))
        call_as(session.principal)
        response = await with_error_page(lambda request: answer(request, session), session)(request)
        if isinstance(response, ServerSentEvents):
            response.lines = _while_signed_in(response.lines, session, sessions)
        return _unless_unchanged(request, response)

    return check_session


def _unless_unchanged(request: Request, response: Response) -> Response:
    """Add an ETag to a page. Return 304 instead if the browser has that page already."""
    if request.method != "GET" or response.status_code != HTTPStatus.OK or not response.body:
        return response
    # Weak, because the same page is sent with and without compression.
    etag = f'W/"{hashlib.blake2b(response.body, digest_size=12).hexdigest()}"'
    response.headers["ETag"] = etag
    response.headers["Cache-Control"] = "private, no-cache"  # stored, but checked before each use
    if etag not in re.split(r",\s*", request.headers.get("if-none-match", "")):
        return response
    headers = {
        name: value for name, value in response.headers.items() if not name.startswith("content-")
    }
    return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)


def target_after_sign_in(request: Request) -> str:
    """Return the path to show after sign-in: the requested page or story, or the board."""
    story_id = request.query_params.get("story", "")
    if is_id(story_id):
        return f"/stories/{story_id}"
    return safe_path(request.query_params.get("next", ""))


def safe_path(path: str) -> str:
    """Return a path of this server that came from a URL or a form, or "/" for anything else, such
    as the URL of another server.
    """
    is_own = re.fullmatch(r"/(?![/\\])[!-~]{0,2000}", path) and not path.startswith("/sign-")
    return path if is_own else "/"


def set_session(answer: Response, request: Request, session: Session, seconds: float) -> None:
    """Set the session cookie."""
    secure = request.url.scheme == "https"
    answer.set_cookie(
        COOKIE, session.id, round(seconds), httponly=True, samesite="strict", secure=secure
    )


async def _while_signed_in(
    lines: AsyncGenerator[str, None], session: Session, sessions: Sessions
) -> AsyncGenerator[str, None]:
    """Yield lines until the session ends, for example because the account was removed."""
    async with aclosing(lines):
        async for line in lines:
            if sessions.find(session.id) is None:
                return
            yield line


def with_error_page(
    answer: Callable[[Request], Awaitable[Response]], session: Session | None = None
) -> Callable[[Request], Awaitable[Response]]:
    """Wrap a handler: its errors are answered with an HTML page."""

    async def respond(request: Request) -> Response:
        try:
            return await prepare(await answer(request))
        except HttpRefusal as error:
            status, message = error.status, error.message
        except MoothallError as error:
            status, message = http_status_of(error), error.message
        except Exception:  # the outermost handler of the page
            log.exception("a page failed because of a bug", path=request.url.path)
            status, message = 500, "This page failed because of a bug; see the server's log."
        return error_page(status, message, session, can_retry=request.method == "GET")

    return respond


def error_page(
    status: int, message: str, session: Session | None = None, *, can_retry: bool = False
) -> Response:
    """Return a page with an error and the next step. `can_retry`: the request can be repeated."""
    is_retryable = status in _RETRYABLE_STATUSES
    return page(
        "error.html",
        status,
        session=session,
        title=HTTPStatus(status).phrase,
        message=message,
        next_step=_NEXT_STEPS.get(status, _GO_BACK),
        can_retry=can_retry and is_retryable,
    )
