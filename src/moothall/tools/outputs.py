"""The outputs of successful tools. The models are open: a result may have more fields than its
schema.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Output(BaseModel):
    """Open and frozen."""

    model_config = ConfigDict(extra="allow", frozen=True)


class FileContent(Output):
    """Some lines of a file, unchanged."""

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
    """The number of replacements in a file."""

    path: str
    replaced: int


class Defined(Output):
    """Whether the name existed before, and the lines of its definition."""

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
    """A matching line."""

    path: str
    line: int
    text: str


class Matches(Output):
    """Matching lines."""

    matches: list[Match]
    truncated: bool


class Deleted(Output):
    """The deleted path."""

    path: str
    deleted: bool


class Place(Output):
    """A path."""

    path: str


class PathInfo(Output):
    """The kind of a path (folder, file, symlink or other), and its size, mode and lines if any."""

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
    """The branch and commit of the workspace, and the changes since the commit."""

    branch: str
    head: str
    clean: bool
    changed: list[dict[str, object]]


class GitLogEntries(Output):
    """Commits, newest first."""

    branch: str
    commits: list[dict[str, str]]


class GitAdded(Output):
    """The staged files."""

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


class GitCloned(Output):
    """Files of another repository: their folder, commit and number."""

    path: str
    commit: str
    files: int


class GitPulled(Output):
    """The merge commit, and the files that it changed in the workspace."""

    branch: str
    commit: str
    files: list[str]


class GitPushed(Output):
    """A branch at the remote."""

    branch: str
    commit: str
    to: str


class TestsRun(Output):
    """A test run: its verdict and counts, the tests that did not pass, the end of its output."""

    verdict: str
    passed: int
    failed: int
    errored: int
    skipped: int
    red: list[str]
    exit_code: int
    output: str
