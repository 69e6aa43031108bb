"""What a family of tools declares: its tools, its settings, what runs it, what it lacks, and how
one sees that it works.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar, cast

from moothall.config import Section, Settings

if TYPE_CHECKING:  # `moothall config` needs the settings alone
    from moothall.domain.status import Finding
    from moothall.ports import Toolkit
    from moothall.tools.spec import ToolSpec

S = TypeVar("S", bound=Section)


@dataclass(frozen=True, slots=True)
class OpenedFamily:
    """What runs a family's tools. `close_workspace` is called with the id of each one that ends,
    where tools leave something elsewhere.
    """

    toolkit: Toolkit
    close_workspace: Callable[[str], Awaitable[None]] | None = None


class Family(ABC, Generic[S]):
    """A family of tools that no workspace runs itself: a folder of its own here, and its line in
    `families.FAMILIES`.

    `section` is the name of its settings, `kind` their class, whose defaults hold where nothing is
    said. Every method is given all settings, as a family may go by another's too, and imports what
    only it needs: `moothall config` needs the settings alone.
    """

    section: ClassVar[str]
    kind: type[S]

    def own(self, settings: Settings) -> S:
        """Return the family's own section of the settings."""
        return cast("S", getattr(settings, self.section))

    @abstractmethod
    def specs(self, settings: Settings) -> Sequence[ToolSpec]:
        """Return what the catalogue says of the tools: always the same ones, in the order of
        prompts.
        """

    def missing_settings(self, settings: Settings, tenant: str) -> Mapping[str, str]:
        """Return, by the name of each tool that a tenant cannot use yet, what is not set."""
        del settings, tenant
        return {}

    @abstractmethod
    def open(self, settings: Settings) -> AbstractAsyncContextManager[OpenedFamily]:
        """Run what the tools need for as long as the context lasts. Raises `ConfigurationError`."""

    async def examine(self, settings: Settings) -> AsyncIterator[Finding]:
        """Try what is set, for `moothall doctor`. None of it is needed; what is set must work."""
        del settings
        nothing: tuple[Finding, ...] = ()
        for finding in nothing:
            yield finding
