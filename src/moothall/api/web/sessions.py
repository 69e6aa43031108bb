"""Who is signed in at the page. A browser holds a random id, never a token or a password.

Who came with a token, by a link or from a provider is signed out by a restart of the server; who
came with a password is not.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic

from cachetools import TTLCache

from moothall.api.web.user_accounts import UserAccounts, form_of
from moothall.domain.identity import Principal

_AT_ONCE = 2
"""Passwords that are checked at a time: each takes 64 MiB and all cores."""


def _secret() -> str:
    return secrets.token_urlsafe(32)


@dataclass(frozen=True, slots=True)
class Session:
    """A browser that is signed in. `form` is the secret that its forms carry, which pages of others
    cannot know; `leave` is where it may sign out at its provider, too.
    """

    who: Principal
    id: str = field(default_factory=_secret, repr=False)
    form: str = field(default_factory=_secret, repr=False)
    leave: str = ""

    def owns_form(self, form: str) -> bool:
        """Whether a form of this session was sent."""
        return hmac.compare_digest(self.form.encode(), form.encode("utf-8", "surrogateescape"))


class Sessions:
    """Those of tokens, links and a provider (`elsewhere` names one): at most `most`, the one used
    longest ago goes first; each ends after `seconds`, a link after `link_seconds`. Those of
    `people` are as many, and lie in their file.
    """

    def __init__(
        self,
        most: int,
        seconds: float,
        link_seconds: float,
        clock: Callable[[], float] = monotonic,
        *,
        people: UserAccounts | None = None,
        elsewhere: str = "",
    ) -> None:
        self._known: TTLCache[str, Session] = TTLCache(most, seconds, clock)
        self._links: TTLCache[str, Principal] = TTLCache(most, link_seconds, clock)
        self._people = people
        self._checking = asyncio.Semaphore(_AT_ONCE)
        self._most = most
        self.seconds = seconds
        self.elsewhere = elsewhere

    @property
    def has_people(self) -> bool:
        """Whether anybody has an account."""
        return self._people is not None and bool(self._people.list())

    async def sign_in(self, name: str, password: str) -> Session | None:
        """Sign somebody in by name and password; None where nobody has both."""
        if self._people is None:
            return None
        async with self._checking:
            made = await asyncio.to_thread(
                self._people.sign_in, name, password, self.seconds, self._most
            )
        return None if made is None else self.find(made)

    def open(self, who: Principal, leave: str = "") -> Session:
        """Sign somebody in."""
        session = Session(who, leave=leave)
        self._known[session.id] = session
        return session

    def find(self, session_id: str) -> Session | None:
        """Return the session, if there still is one."""
        if (known := self._known.get(session_id)) is not None or self._people is None:
            return known
        who = self._people.find(session_id)
        return None if who is None else Session(who, session_id, form_of(session_id))

    def close(self, session: Session) -> None:
        """Sign somebody out."""
        if self._known.pop(session.id, None) is None and self._people is not None:
            self._people.sign_out(session.id)

    def link(self, who: Principal) -> str:
        """Return a secret that signs in once, in place of a token."""
        secret = _secret()
        self._links[secret] = who
        return secret

    def follow(self, secret: str) -> Session | None:
        """Sign in by a link; None for one that was used, is too old, or was never given."""
        who = self._links.pop(secret, None)
        return None if who is None else self.open(who)
