"""Who is signed in at the page. A browser holds a random id and never a token; a restart of the server signs everybody out."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic

from cachetools import TTLCache

from moothall.domain.identity import Principal


def _secret() -> str:
    return secrets.token_urlsafe(32)


@dataclass(frozen=True, slots=True)
class Session:
    """A browser that is signed in. `form` is the secret that its forms carry, which pages of others cannot know."""

    who: Principal
    id: str = field(default_factory=_secret, repr=False)
    form: str = field(default_factory=_secret, repr=False)

    def sent(self, form: str) -> bool:
        """Whether a form of this session was sent."""
        return hmac.compare_digest(self.form.encode(), form.encode("utf-8", "surrogateescape"))


class Sessions:
    """Those of one process: at most `most`, the one used longest ago goes first; each ends after `seconds`, a link after `link_seconds`."""

    def __init__(self, most: int, seconds: float, link_seconds: float, clock: Callable[[], float] = monotonic) -> None:
        self._known: TTLCache[str, Session] = TTLCache(most, seconds, clock)
        self._links: TTLCache[str, Principal] = TTLCache(most, link_seconds, clock)
        self.seconds = seconds

    def open(self, who: Principal) -> Session:
        """Sign somebody in."""
        session = Session(who)
        self._known[session.id] = session
        return session

    def find(self, session_id: str) -> Session | None:
        """Return the session, if there still is one."""
        return self._known.get(session_id)

    def close(self, session: Session) -> None:
        """Sign somebody out."""
        self._known.pop(session.id, None)

    def link(self, who: Principal) -> str:
        """Return a secret that signs in once, in place of a token."""
        secret = _secret()
        self._links[secret] = who
        return secret

    def follow(self, secret: str) -> Session | None:
        """Sign in by a link; None for one that was used, is too old, or was never given."""
        who = self._links.pop(secret, None)
        return None if who is None else self.open(who)
