"""Sessions: what one caller asked one after the other. What is known of them is kept on the bus;
each has a workspace while it is used.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from moothall.agents.queries import Query, SessionContext
from moothall.config import AgentSettings
from moothall.domain.codec import dump, load
from moothall.domain.identity import Principal
from moothall.domain.ids import digest
from moothall.domain.task import RepositoryRef
from moothall.domain.tool import Action
from moothall.errors import AlreadyExists, NotFound, Temporary
from moothall.ports import Bucket
from moothall.tool_sessions.manager import OpenedSession, ToolSessions
from moothall.tools.spec import ToolSpec

BUCKET = "sessions"
_TRIES = 20

Blank = Callable[[str], Awaitable[RepositoryRef]]
"""Returns a repository of a tenant that has nothing in it."""


class AgentSessions:
    """All sessions that this process serves. Belongs to one event loop."""

    def __init__(
        self, bucket: Bucket, visits: ToolSessions, blank: Blank, settings: AgentSettings
    ) -> None:
        self._bucket = bucket
        self._visits = visits
        self.blank = blank
        self._settings = settings
        self._open: dict[tuple[str, ...], OpenedSession] = {}
        self._opening: defaultdict[tuple[str, ...], asyncio.Lock] = defaultdict(asyncio.Lock)

    async def with_session(self, query: Query, who: Principal) -> Query:
        """Return the query with what is kept of its session where it says nothing itself."""
        given = query.session
        if not given.session_id:
            return query
        kept = (
            load(SessionContext, document)
            if (document := await self._bucket.get(self._key(who, given.session_id)))
            else SessionContext()
        )
        known = SessionContext(
            session_id=given.session_id,
            history=given.history or kept.history,
            persistent_context={**kept.persistent_context, **given.persistent_context},
            files_created=tuple(dict.fromkeys((*kept.files_created, *given.files_created))),
            tools_used=tuple(dict.fromkeys((*kept.tools_used, *given.tools_used))),
            total_tokens_used=max(kept.total_tokens_used, given.total_tokens_used),
            total_cost_usd=max(kept.total_cost_usd, given.total_cost_usd),
        )
        return replace(query, session=known)

    async def keep(
        self, query: Query, who: Principal, said: Sequence[str], used: SessionContext
    ) -> None:
        """Add to a session what was asked and answered, and what `used` says on top. Raises
        `Temporary` where others write all the time.
        """
        if not query.session.session_id:
            return
        key = self._key(who, query.session.session_id)
        lines = tuple(line[: self._settings.answer_chars] for line in said if line)
        for _ in range(_TRIES):
            document, revision = await self._bucket.get_with_revision(key)
            kept = (
                load(SessionContext, document)
                if document
                else replace(query.session, total_tokens_used=0, total_cost_usd=0.0)
            )
            after = replace(
                kept,
                history=(*kept.history, *lines)[-self._settings.history :]
                if self._settings.history
                else (),
                persistent_context={**kept.persistent_context, **query.session.persistent_context},
                files_created=tuple(dict.fromkeys((*kept.files_created, *used.files_created))),
                tools_used=tuple(dict.fromkeys((*kept.tools_used, *used.tools_used))),
                total_tokens_used=kept.total_tokens_used + used.total_tokens_used,
                total_cost_usd=kept.total_cost_usd + used.total_cost_usd,
            )
            with suppress(AlreadyExists):
                await self._bucket.replace(key, dump(after), revision)
                return
        raise Temporary(f"session {query.session.session_id} is written by too many at once")

    @asynccontextmanager
    async def workspace(self, query: Query, who: Principal) -> AsyncIterator[OpenedSession]:
        """Yield a workspace on the query's repository, or on an empty one: the session's, or one
        that ends with the block.
        """
        repository = query.repository()
        if not query.session.session_id:
            opened = await self._open_workspace(query, who, repository)
            try:
                yield opened
            finally:
                with suppress(NotFound):  # its time was over
                    await self._visits.close(who, opened.workspace)
            return
        key = (who.tenant, who.name, query.session.session_id, query.role, repr(repository))
        async with self._opening[key]:
            known = self._open.get(key)
            if known is None or not self._visits.is_open(known.workspace):
                self._forget()
                self._open[key] = known = await self._open_workspace(query, who, repository)
        yield known

    async def _open_workspace(
        self, query: Query, who: Principal, repository: RepositoryRef | None
    ) -> OpenedSession:
        named = repository or await self.blank(who.tenant)
        return await self._visits.open(who, named, query.role, self._settings.session_seconds)

    def _forget(self) -> None:
        """Let go of those that are closed."""
        for key, opened in tuple(self._open.items()):
            if not self._visits.is_open(opened.workspace):
                del self._open[key]
                if not self._opening[key].locked():
                    del self._opening[key]

    def _key(self, who: Principal, session_id: str) -> str:
        return f"{who.tenant}.{digest(who.name, session_id)[:40]}"


def written_paths(specs: Mapping[str, ToolSpec], calls: Sequence[Action]) -> tuple[str, ...]:
    """Return the paths that calls have written, by what the catalogue says of their arguments."""
    found = []
    for call in calls:
        spec = specs.get(call.tool)
        found += [
            value
            for name in (spec.writes if spec else ())
            if isinstance(value := call.arguments.get(name), str)
        ]
    return tuple(dict.fromkeys(found))
