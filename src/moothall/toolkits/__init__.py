"""Families of tools that need a client library and run on the trusted side, for a workspace without
a network. Each family is a package here. This module has their base class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar, cast

from moothall.config import Section, Settings

if TYPE_CHECKING:  # `moothall config` needs only the settings
    from moothall.domain.status import Finding
    from moothall.ports import Toolkit
    from moothall.tools.spec import ToolSpec

S = TypeVar("S", bound=Section)


@dataclass(frozen=True, slots=True)
class OpenedFamily:
    """A running family. `close_workspace` is called with the id of each workspace that ends, so
    that the family can remove resources outside the workspace.
    """

    toolkit: Toolkit
    close_workspace: Callable[[str], Awaitable[None]] | None = None


class Family(ABC, Generic[S]):
    """A family of tools that run outside workspaces. Each family has its own package here and an
    entry in `settings.FAMILIES`.

    section: the name of its settings.
    kind: the class of its settings.

    Methods receive all settings, because a family may depend on the settings of another. Methods
    import their dependencies, because `moothall config` needs only the settings.
    """

    section: ClassVar[str]
    kind: type[S]

    def own_settings(self, settings: Settings) -> S:
        """Return the family's section of the settings."""
        return cast("S", getattr(settings, self.section))

    @abstractmethod
    def specs(self, settings: Settings) -> Sequence[ToolSpec]:
        """Return the catalogue entries in the order of prompts. The tools are always the same."""

    def missing_settings(self, settings: Settings, tenant: str) -> Mapping[str, str]:
        """Return the tools that a tenant cannot use yet: name → missing setting."""
        del settings, tenant
        return {}

    @abstractmethod
    def open(self, settings: Settings) -> AbstractAsyncContextManager[OpenedFamily]:
        """Run the services of the tools while the context is open. Raises `ConfigurationError`."""

    async def examine(self, settings: Settings) -> AsyncIterator[Finding]:
        """Test the configured services for `moothall doctor`; yield nothing without any."""
        del settings
        nothing: tuple[Finding, ...] = ()
        for finding in nothing:
            yield finding
