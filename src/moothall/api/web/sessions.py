"""The sessions of the web page. A browser holds a random id, never a token or a password.

Sessions from tokens, links and providers end when the server restarts; sessions from passwords do
not.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic

from cachetools import TTLCache

from moothall.api.identity import Caller
from moothall.api.web.user_accounts import UserAccounts, form_secret
from moothall.domain.identity import Principal

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

    who: Principal
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
        who = self._accounts.find(session_id)
        return None if who is None else Session(who, session_id, form_secret(session_id))

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
