"""What each tool answers with when it succeeds. Open: a result may hold more than its schema
names.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Output(BaseModel):
    """Open and frozen."""

    model_config = ConfigDict(extra="allow", frozen=True)


class FileContent(Output):
    """Some lines of a file, as they are in it."""

    path: str
    content: str
    start: int
    total_lines: int
    truncated: bool


class Written(Output):
    """A file after the change, and its size."""

    path: str
    bytes: int


class Replaced(Output):
    """How many places of a file were changed."""

    path: str
    replaced: int


class Defined(Output):
    """Whether the name was there before, and the lines that define it now."""

    path: str
    name: str
    replaced: bool
    start: int
    end: int


class Entries(Output):
    """Paths; a folder ends with a slash."""

    path: str
    entries: list[str]
    truncated: bool


class Match(Output):
    """A line that matches."""

    path: str
    line: int
    text: str


class Matches(Output):
    """Lines that match."""

    matches: list[Match]
    truncated: bool


class Deleted(Output):
    """What is gone."""

    path: str
    deleted: bool


class Place(Output):
    """A path."""

    path: str


class PathInfo(Output):
    """What a path is: folder, file, symlink or other. Size, mode and lines where it has them."""

    path: str
    type: str
    bytes: int = 0
    executable: bool = False
    lines: int | None = None
    target: str = ""


class Difference(Output):
    """A unified diff."""

    diff: str
    truncated: bool


class GitStatus(Output):
    """Where the workspace stands, and what differs from its last commit."""

    branch: str
    head: str
    clean: bool
    changed: list[dict[str, object]]


class GitLogEntries(Output):
    """Commits, the newest first."""

    branch: str
    commits: list[dict[str, str]]


class GitAdded(Output):
    """What the next commit takes."""

    added: list[str]


class GitCommitted(Output):
    """The new commit."""

    commit: str
    branch: str
    files: list[str]


class GitPlace(Output):
    """A branch and its commit."""

    branch: str
    commit: str


class GitTaken(Output):
    """Another repository's files: the folder that they are in, their commit, how many they are."""

    path: str
    commit: str
    files: int


class GitPulled(Output):
    """The commit that has both sides, and the files that it changed here."""

    branch: str
    commit: str
    files: list[str]


class GitPushed(Output):
    """A branch at the remote."""

    branch: str
    commit: str
    to: str


class TestsRun(Output):
    """A run of tests: its verdict, counts, the tests that are not green, the end of what it
    printed.
    """

    verdict: str
    passed: int
    failed: int
    errored: int
    skipped: int
    red: list[str]
    exit_code: int
    output: str
