"""The sessions of `moothall acp` on disk, so that they survive its process.

`<data_dir>/acp/<session>.json` contains the state for the next prompt of a session, and the
conversation, which an editor shows again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from acp.helpers import SessionUpdate, update_agent_message_text, update_user_message_text

from moothall.app.repository import Diff
from moothall.domain.codec import dump, load
from moothall.domain.ids import check_id
from moothall.errors import InvalidRequest, NotFound
from moothall.file_locks import write_private

_MAX_AGE_SECONDS = 90 * 86400.0
_NO_ANSWER = "This prompt has no answer: it was cancelled, failed, or the agent was stopped."


@dataclass(slots=True)
class Turn:
    """A prompt, and its answer or ''."""

    prompt: str
    answer: str = ""


@dataclass(slots=True)
class SessionState:
    """The stored part of a session.

    top: the root of the repository's files.
    follows: the id of the previous task.
    head: the checked-out commit on which the conversation is based.
    changes: the applied diffs of the conversation, which are not committed.
    """

    top: str
    mode: str
    follows: str = ""
    head: str = ""
    changes: list[Diff] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)

    def history(self) -> Iterator[SessionUpdate]:
        """Yield the conversation as an editor shows it."""
        for turn in self.turns:
            yield update_user_message_text(turn.prompt)
            yield update_agent_message_text(turn.answer or _NO_ANSWER)


class SessionStore:
    """Reads and writes sessions below a data directory."""

    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir / "acp"

    def save(self, session_id: str, state: SessionState) -> None:
        """Store the current state of a session."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(self._path(session_id), json.dumps(dump(state)))

    def load(self, session_id: str) -> SessionState:
        """Return a session. Raises `NotFound`, also if its file cannot be read."""
        try:
            text = self._path(session_id).read_text(encoding="utf-8")
            return load(SessionState, json.loads(text))
        except (OSError, ValueError, InvalidRequest) as error:
            raise NotFound(
                f"no session {session_id[:80]!r} is stored in {self._folder}; begin one with "
                "session/new"
            ) from error

    def remove_old(self) -> None:
        """Remove the sessions that were not used for 90 days."""
        oldest = time.time() - _MAX_AGE_SECONDS
        for path in self._folder.glob("*.json"):
            if path.stat().st_mtime < oldest:
                path.unlink(missing_ok=True)

    def _path(self, session_id: str) -> Path:
        return self._folder / f"{check_id(session_id, 'session')}.json"
