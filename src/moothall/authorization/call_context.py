"""The caller of a tool, the exception that stops a call in the gateway, and checks of paths as
text.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase

from moothall.domain.budget import Ledger
from moothall.domain.identity import Principal
from moothall.domain.ids import TaskKey
from moothall.domain.tool import Grant, ToolStatus
from moothall.ports import Workspace
from moothall.sandbox_runtime.confinement import ROOT

# The caller of a tool, and the exception that stops a call in the gateway.


@dataclass(slots=True)
class Meter:
    """What one seat has used of its tool limits. Belongs to one event loop. Nothing here awaits."""

    calls: int = 0
    in_flight: int = 0
    seconds: float = 0.0
    held_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class CallContext:
    """A seat as the gateway knows it. The trusted side builds it from credentials and the
    deliberation, never from model output. `task_id` is the key of the task; in a tool session, the
    name of its workspace. `ledger` is the deliberation's, or None without a budget.
    `deadline` is in UTC. `meter` counts this seat's calls. `token` is its capability token
    (`ToolGateway.with_token` sets one).
    """

    principal: Principal
    task_id: TaskKey
    seat: str
    role: str
    grant: Grant
    workspace: Workspace
    workspace_id: str
    deadline: datetime
    ledger: Ledger | None = None
    meter: Meter = field(default_factory=Meter)
    persona: str = ""
    token: str = ""

    @property
    def tenant(self) -> str:
        """The tenant of the principal."""
        return self.principal.tenant


class Stopped(Exception):
    """A call that the gateway refuses. It becomes a tool result and never leaves the gateway.
    `may_be_allowed`: an operator can allow the call. `escape`: the call is unlikely to be a
    mistake, such as a path outside the workspace or the identity of another seat.
    """

    def __init__(
        self, status: ToolStatus, reason: str, *, may_be_allowed: bool = False, escape: bool = False
    ) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.may_be_allowed = may_be_allowed
        self.escape = escape


# Textual checks of paths. The executor resolves links itself.


def relative_path(path: str) -> str:
    """Return an absolute path below the workspace's root (as `pwd` and tracebacks in the sandbox
    print it) as a relative one.

    Other paths are returned unchanged. Only the text is checked, so the result has to pass
    `refuse_path`.
    """
    file, separator, case = path.partition("::")
    if not file.startswith("/"):
        return path
    parts = [part for part in file.split("/") if part not in {"", "."}]
    if parts[:1] != [ROOT.strip("/")]:
        return path
    return ("/".join(parts[1:]) or ".") + separator + case


def refuse_path(path: str) -> str:
    """Return why a path may not be used, or an empty string. `tests/a.py::test_b` is read as
    tests/a.py.
    """
    shown = repr(path[:80])
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in path):  # noqa: PLR2004  # ASCII control characters
        return f"path {shown} holds a control character"
    file = path.partition("::")[0]
    if file.startswith(("/", "~", "\\")) or file[1:2] == ":":
        return f"path {shown} is absolute; paths are relative to the workspace, as in src/utils.py"
    if file.startswith("-"):
        return f"path {shown} looks like an option; write ./{file[:80]}"
    parts = path.replace("\\", "/").split("/")  # "::" has no meaning to the file system
    if ".." in parts:
        return (
            f"path {shown} leaves the workspace by '..'; paths are relative to it, as in "
            "src/utils.py"
        )
    if any(part.rstrip(". ").casefold() == ".git" for part in parts):
        return f"path {shown} is inside .git; use git.status, git.diff or git.log"
    return ""


def covers(pattern: str, path: str) -> bool:
    """Return whether a gitignore-style pattern (no negation) matches a path or one of its parent
    folders.

    A pattern without an inner slash matches at any depth. `**` matches any number of folders.
    """
    pattern_parts = [part for part in pattern.split("/") if part not in {"", "."}]
    path_parts = [part for part in path.split("/") if part not in {"", "."}]
    if not pattern_parts:
        return False
    if "/" not in pattern.rstrip("/"):
        pattern_parts = ["**", *pattern_parts]
    return _match_parts(pattern_parts, path_parts)


def first_covered(patterns: Iterable[str], paths: Iterable[str]) -> str:
    """Return the first path that a pattern covers, or an empty string."""
    all_patterns = tuple(patterns)
    return next(
        (path for path in paths if any(covers(pattern, path) for pattern in all_patterns)), ""
    )


def _match_parts(pattern_parts: list[str], path_parts: list[str]) -> bool:
    contents_only = pattern_parts[-1] == "**"  # `docs/**` matches what is in docs, not docs itself
    # The positions in the path where the pattern so far can end. Linear in both for any pattern.
    ends = {0}
    for part in pattern_parts[:-1] if contents_only else pattern_parts:
        if part == "**":
            ends = set(range(min(ends), len(path_parts) + 1))
        else:
            ends = {
                end + 1
                for end in ends
                if end < len(path_parts) and fnmatchcase(path_parts[end], part)
            }
        if not ends:
            return False
    return not contents_only or min(ends) < len(path_parts)
