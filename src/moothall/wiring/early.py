"""What can be refused before a command imports what it works with, which takes longer than to ask.

So this imports no bus, no workspace and no graph at its top, nor does anything that it imports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from moothall.aio import said
from moothall.config import Settings
from moothall.council.front.request import Defaults, plan
from moothall.domain.identity import LOCAL
from moothall.domain.task import DeliberationRequest
from moothall.errors import InvalidRequest
from moothall.wiring import lock

if TYPE_CHECKING:
    from moothall.tools.spec import ToolSpec


@dataclass(frozen=True, slots=True)
class Named:
    """Which repository a caller named: a path, a URL or an id, its ref, a file with its profile; or none, with `text`."""

    repo: str = ""
    ref: str = ""
    text: bool = False
    profile: Path | None = None

    def check(self) -> None:
        """Raise `InvalidRequest` for what contradicts itself."""
        wrong = [name for name, given in (("--repo", self.repo), ("--ref", self.ref), ("--profile", self.profile)) if given]
        if self.text and wrong:
            raise InvalidRequest(f"--text is about no repository; leave it or {wrong[0]} out")


async def check_early(settings: Settings, request: DeliberationRequest, named: Named, tell: Callable[[str], None]) -> bool:
    """Refuse what cannot be right: a request that contradicts itself, a model server that is away or says no.

    Returns whether a model server was asked: one of ours, or the one of a process that serves this data directory, is not.
    Raises `InvalidRequest`, `ConfigurationError`, `ModelUnavailable`.
    """
    named.check()
    check_request(settings, request)
    if all(one.base_url is None for _, one in settings.choice.items()) or lock.find(settings.data_dir) is not None:
        return False
    from moothall.model.reaching import reach_all

    with said(tell, "the model server to answer"):
        await reach_all(settings.choice, tell)
    return True


def check_request(settings: Settings, request: DeliberationRequest) -> None:
    """Raise `InvalidRequest` for what the desk would refuse, whatever the repository."""
    plan(request, LOCAL, defaults(settings), datetime.now(UTC))


def defaults(settings: Settings) -> Defaults:
    """Return what holds for a request that does not say otherwise."""

    def tools() -> Mapping[str, ToolSpec]:
        from moothall.wiring.rules import catalogue_of

        return catalogue_of(settings)

    endpoints = frozenset(settings.agents.endpoints)
    return Defaults(settings.limits, settings.repository, settings.seed, settings.choice, endpoints, tools)
