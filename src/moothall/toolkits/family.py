"""The declaration of a family of tools: its tools, its settings, what runs it, what is missing, and
how it is tested.
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
    """A running family. `close_workspace` is called with the id of each workspace that ends, for
    tools that leave something elsewhere.
    """

    toolkit: Toolkit
    close_workspace: Callable[[str], Awaitable[None]] | None = None


class Family(ABC, Generic[S]):
    """A family of tools that no workspace runs itself. It has its own package here and a line in
    `families.FAMILIES`.

    section: the name of its settings.
    kind: the class of its settings.

    Methods get all settings, because a family may depend on those of another. They import their
    dependencies themselves, because `moothall config` needs only the settings.
    """

    section: ClassVar[str]
    kind: type[S]

    def own_settings(self, settings: Settings) -> S:
        """Return the family's section of the settings."""
        return cast("S", getattr(settings, self.section))

    @abstractmethod
    def specs(self, settings: Settings) -> Sequence[ToolSpec]:
        """Return the entries of the catalogue: always the same tools, in the order of prompts."""

    def missing_settings(self, settings: Settings, tenant: str) -> Mapping[str, str]:
        """Return the tools that a tenant cannot use yet: name → missing setting."""
        del settings, tenant
        return {}

    @abstractmethod
    def open(self, settings: Settings) -> AbstractAsyncContextManager[OpenedFamily]:
        """Run what the tools need while the context is open. Raises `ConfigurationError`."""

    async def examine(self, settings: Settings) -> AsyncIterator[Finding]:
        """Test what is configured, for `moothall doctor`. Nothing has to be configured."""
        del settings
        nothing: tuple[Finding, ...] = ()
        for finding in nothing:
            yield finding
