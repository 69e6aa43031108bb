"""Sessions: successive queries of one caller. Their context is stored on the bus; each has a
workspace while it is in use.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from moothall.agents.queries import Query, SessionContext
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
_MAX_TRIES = 20
_ANSWER_CHARS = 4_000
_SESSION_SECONDS = 1800
"""The lifetime of a session's workspace since it was opened; then a new one is opened."""
_HISTORY = 20
"""The newest queries and answers of a session that are stored and sent with the next query."""
"""The part of each answer that a session stores."""

Blank = Callable[[str], Awaitable[RepositoryRef]]
"""Returns an empty repository of a tenant."""


class AgentSessions:
    """The sessions that this process serves. Belongs to one event loop."""

    def __init__(self, bucket: Bucket, tool_sessions: ToolSessions, blank: Blank) -> None:
        self._bucket = bucket
        self._tool_sessions = tool_sessions
        self.blank = blank
        self._open: dict[tuple[str, ...], OpenedSession] = {}
        self._opening: defaultdict[tuple[str, ...], asyncio.Lock] = defaultdict(asyncio.Lock)

    async def with_session(self, query: Query, who: Principal) -> Query:
        """Return the query with the stored context of its session. Fields that the query sets take
        precedence.
        """
        session = query.session
        if not session.session_id:
            return query
        stored = (
            load(SessionContext, document)
            if (document := await self._bucket.get(self._key(who, session.session_id)))
            else SessionContext()
        )
        merged = SessionContext(
            session_id=session.session_id,
            history=session.history or stored.history,
            persistent_context={**stored.persistent_context, **session.persistent_context},
            files_created=tuple(dict.fromkeys((*stored.files_created, *session.files_created))),
            tools_used=tuple(dict.fromkeys((*stored.tools_used, *session.tools_used))),
            total_tokens_used=max(stored.total_tokens_used, session.total_tokens_used),
            total_cost_usd=max(stored.total_cost_usd, session.total_cost_usd),
        )
        return replace(query, session=merged)

    async def keep(
        self, query: Query, who: Principal, turn: Sequence[str], used: SessionContext
    ) -> None:
        """Add a question and its answer to a session, and the changes in `used`. Raises `Temporary`
        if other writers keep interfering.
        """
        if not query.session.session_id:
            return
        key = self._key(who, query.session.session_id)
        lines = tuple(line[:_ANSWER_CHARS] for line in turn if line)
        for _ in range(_MAX_TRIES):
            document, revision = await self._bucket.get_with_revision(key)
            stored = (
                load(SessionContext, document)
                if document
                else replace(query.session, total_tokens_used=0, total_cost_usd=0.0)
            )
            updated = replace(
                stored,
                history=(*stored.history, *lines)[-_HISTORY:],
                persistent_context={
                    **stored.persistent_context,
                    **query.session.persistent_context,
                },
                files_created=tuple(dict.fromkeys((*stored.files_created, *used.files_created))),
                tools_used=tuple(dict.fromkeys((*stored.tools_used, *used.tools_used))),
                total_tokens_used=stored.total_tokens_used + used.total_tokens_used,
                total_cost_usd=stored.total_cost_usd + used.total_cost_usd,
            )
            with suppress(AlreadyExists):
                await self._bucket.replace(key, dump(updated), revision)
                return
        raise Temporary(f"session {query.session.session_id} is written by too many at once")

    @asynccontextmanager
    async def workspace(self, query: Query, who: Principal) -> AsyncIterator[OpenedSession]:
        """Yield a workspace on the query's repository, or on an empty one. A session's workspace
        stays open; without a session, it is closed at the end of the block.
        """
        repository = query.repository()
        if not query.session.session_id:
            opened = await self._open_workspace(query, who, repository)
            try:
                yield opened
            finally:
                with suppress(NotFound):  # its time was over
                    await self._tool_sessions.close(who, opened.workspace)
            return
        key = (who.tenant, who.name, query.session.session_id, query.role, repr(repository))
        async with self._opening[key]:
            opened_session = self._open.get(key)
            if opened_session is None or not self._tool_sessions.is_open(opened_session.workspace):
                self._drop_closed()
                self._open[key] = opened_session = await self._open_workspace(
                    query, who, repository
                )
        yield opened_session

    async def _open_workspace(
        self, query: Query, who: Principal, repository: RepositoryRef | None
    ) -> OpenedSession:
        repository_or_blank = repository or await self.blank(who.tenant)
        return await self._tool_sessions.open(
            who, repository_or_blank, query.role, _SESSION_SECONDS
        )

    def _drop_closed(self) -> None:
        """Drop the workspaces that are closed."""
        for key, opened in tuple(self._open.items()):
            if not self._tool_sessions.is_open(opened.workspace):
                del self._open[key]
                if not self._opening[key].locked():
                    del self._opening[key]

    def _key(self, who: Principal, session_id: str) -> str:
        return f"{who.tenant}.{digest(who.name, session_id)[:40]}"


def written_paths(specs: Mapping[str, ToolSpec], calls: Sequence[Action]) -> tuple[str, ...]:
    """Return the paths that calls have written, by the arguments that the catalogue marks as
    written.
    """
    paths = []
    for call in calls:
        spec = specs.get(call.tool)
        paths += [
            value
            for name in (spec.writes if spec else ())
            if isinstance(value := call.arguments.get(name), str)
        ]
    return tuple(dict.fromkeys(paths))
