"""A survey of the base: a sandbox parses the code. Its answer is hostile, and bounded and typed
here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from cachetools import LRUCache

from moothall import telemetry
from moothall.domain.codec import list_of
from moothall.domain.ids import digest
from moothall.domain.repository import Prepared
from moothall.domain.tool import ToolCall, ToolStatus
from moothall.errors import MoothallError
from moothall.ports import Workspaces
from moothall.sandbox_runtime.syntax import language_of

_MAP_FILES = 1000
"""Source files that are parsed for the repository map."""
_MAP_BYTES = 4_000_000
"""The size of these files together."""
_MAP_SECONDS = 15.0
"""A council continues without a map after this time."""

_SPANS, _TEXT_CHARS, _NAME_CHARS, _HOMES = 60, 8000, 300, 10
_KEPT = 32
_KNOWN_CHARS = 400_000
_log = telemetry.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RepoMapRequest:
    """What a survey should prefer.

    frames: lines (path, number). tests: (path, name). Their code is returned. paths, words: further
    files and words. names: their defining files are returned. map_chars: the length of the map.
    """

    frames: tuple[tuple[str, int], ...] = ()
    tests: tuple[tuple[str, str], ...] = ()
    paths: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    map_chars: int = 0


@dataclass(frozen=True, slots=True)
class CodePassage:
    """A piece of a file from a line on, usually a function with its qualified name."""

    path: str
    name: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class RepoMap:
    """The code around the requested lines, files that define the names, a map of files and
    signatures, and a function as an example.
    """

    spans: tuple[CodePassage, ...] = ()
    homes: tuple[str, ...] = ()
    map: str = ""
    example: CodePassage | None = None


class RepoMapper:
    """Surveys bases, and caches the last results. A base without code in a known language is not
    surveyed.
    """

    def __init__(self, workspaces: Workspaces) -> None:
        self._workspaces = workspaces
        self._kept: LRUCache[str, RepoMap] = LRUCache(_KEPT)

    async def survey(self, prepared: Prepared, order: RepoMapRequest) -> RepoMap:
        """Return the survey. If it fails, return an empty one and log a warning, since a council
        can work without it.
        """
        if not any(language_of(path) for path in prepared.files):
            return RepoMap()
        key = digest(prepared.base.repository, prepared.key, prepared.base.sha, repr(order))
        if key in self._kept:
            return self._kept[key]
        try:
            found = await self._ask(prepared, order, key)
        except MoothallError as error:
            _log.warning(
                "no survey of the repository",
                repository=prepared.base.repository,
                reason=error.message,
            )
            return RepoMap()
        self._kept[key] = found
        return found

    async def _ask(self, prepared: Prepared, order: RepoMapRequest, key: str) -> RepoMap:
        arguments = asdict(order) | {
            "files": _MAP_FILES,
            "bytes": _MAP_BYTES,
            "known": _code_files(prepared),
        }
        deadline = datetime.now(UTC) + timedelta(seconds=_MAP_SECONDS)
        async with self._workspaces.open(prepared, f"survey-{key[:12]}") as workspace:
            result = await workspace.call(
                ToolCall(f"survey-{key[:12]}", "files.survey", arguments, deadline)
            )
        if result.status is not ToolStatus.SUCCESS:
            _log.warning(
                "no survey of the repository",
                repository=prepared.base.repository,
                reason=f"{result.status}: {result.error[:300]}",
            )
            return RepoMap()
        return read_survey(result.output, set(prepared.files), order.map_chars)


def _code_files(prepared: Prepared) -> list[str]:
    """Return the base's code files, so that files from its set-up are left out; () if they are too
    many to send.
    """
    found = [path for path in prepared.files if language_of(path)]
    return found if sum(map(len, found)) <= _KNOWN_CHARS else []


def read_survey(output: Mapping[str, Any], known: set[str], map_chars: int) -> RepoMap:
    """Return the answer of a sandbox as a survey, without malformed parts."""
    spans, homes, example = output.get("spans"), output.get("homes"), output.get("example")
    drawn = output.get("map")
    return RepoMap(
        spans=tuple(
            span for item in list_of(spans)[:_SPANS] if (span := _span(item, known)) is not None
        ),
        homes=tuple(
            path for path in list_of(homes)[:_HOMES] if isinstance(path, str) and path in known
        ),
        map=drawn[:map_chars] if isinstance(drawn, str) else "",
        example=_span(example, known),
    )


def _span(item: Any, known: set[str]) -> CodePassage | None:
    if not isinstance(item, dict):
        return None
    path, name, line, text = (item.get(field) for field in ("path", "name", "line", "text"))
    if not (
        isinstance(path, str)
        and path in known
        and isinstance(name, str)
        and isinstance(line, int)
        and isinstance(text, str)
    ):
        return None
    return CodePassage(path, name[:_NAME_CHARS], line, text[:_TEXT_CHARS])
