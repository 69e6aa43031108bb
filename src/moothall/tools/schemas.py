"""The arguments and the outputs of each tool, as data models. Arguments are closed, bounded and
strict: JSON types must match. Outputs are open: a result may have more fields than its schema.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

# The arguments of each tool: one closed, bounded model per tool.


MAX_PATH = 500
MAX_CONTENT = 500_000


def must_match(pattern: str, description: str) -> AfterValidator:
    """Return a validator that checks a text unless it is empty; `description` completes the error
    "… is not …". It is not part of the JSON schema, since decoders support few patterns.
    """
    compiled = re.compile(pattern)

    def check(value: str) -> str:
        if value and not compiled.fullmatch(value):
            raise ValueError(f"{value[:60]!r} is not {description}")
        return value

    return AfterValidator(check)


_REF = must_match(
    r"[A-Za-z0-9](?:[A-Za-z0-9_@^~{}/-]|\.(?!\.)){0,199}",
    "a git ref such as HEAD~1, a branch or a commit id",
)
_BRANCH = must_match(
    r"(?:[A-Za-z0-9_](?:[A-Za-z0-9_-]|[./](?![./])){0,199})(?<![./])(?<!\.lock)",
    "a branch name such as fix-login",
)
_TARGET = must_match(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,99}", "the name of a make target")
_URL = must_match(
    r"(?:https|ssh)://[^\s\x00-\x1f-][^\s\x00-\x1f]{0,999}", "an https:// or ssh:// URL"
)

Path = Annotated[str, Field(min_length=1, max_length=MAX_PATH)]
Glob = Annotated[str, Field(min_length=1, max_length=200)]
Text = Annotated[str, Field(max_length=MAX_CONTENT)]
Paths = Annotated[list[Path], Field(max_length=100)]


class Arguments(BaseModel):
    """Closed, strict and frozen."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        hide_input_in_errors=True,
        defer_build=True,  # most processes never validate most tools
    )


class NoArguments(Arguments):
    """No arguments."""


class FilesRead(Arguments):
    """`start` counts lines from 1; `lines` is the number of lines."""

    path: Path
    start: int = Field(1, ge=1, le=10_000_000)
    lines: int = Field(2000, ge=1, le=20_000)


class FilesWrite(Arguments):
    """The complete new content, or for `files.append` the text to add."""

    path: Path
    content: Text


class FilesEdit(Arguments):
    """`old` must occur exactly `count` times. 0 means at least once; all are replaced."""

    path: Path
    old: Annotated[str, Field(min_length=1, max_length=MAX_CONTENT)]
    new: Text
    count: int = Field(1, ge=0, le=1000)


class FilesDefine(Arguments):
    """`name` may be qualified; `content` is the complete definition."""

    path: Path
    name: Annotated[str, Field(min_length=1, max_length=200)]
    content: Annotated[str, Field(min_length=1, max_length=MAX_CONTENT)]


class FilesList(Arguments):
    """A folder, and a filter for the names in it."""

    path: Path = "."
    glob: Glob = "**"


class FilesSearch(Arguments):
    """A regular expression, matched line by line."""

    pattern: Annotated[str, Field(min_length=1, max_length=500)]
    path: Path = "."
    glob: Glob = "**"


class FilesPath(Arguments):
    """One path."""

    path: Path


class FilesDiff(Arguments):
    """Two files."""

    path: Path
    other: Path


class GitDiff(Arguments):
    """A comparison with `ref`; empty: the uncommitted changes."""

    ref: Annotated[str, Field(max_length=200), _REF] = ""


class GitLog(Arguments):
    """The newest `limit` commits."""

    limit: int = Field(10, ge=1, le=200)


class GitAdd(Arguments):
    """The files to stage."""

    paths: Annotated[list[Path], Field(min_length=1, max_length=100)]


class GitCommit(Arguments):
    """The commit message."""

    message: Annotated[str, Field(min_length=1, max_length=5000)]


class GitBranch(Arguments):
    """The name of a new branch."""

    name: Annotated[str, Field(min_length=1, max_length=200), _BRANCH]


class GitCheckout(Arguments):
    """The branch or commit to check out."""

    ref: Annotated[str, Field(min_length=1, max_length=200), _REF]


class GitClone(Arguments):
    """The repository's URL and a ref in it; empty: the default branch."""

    url: Annotated[str, Field(min_length=1, max_length=1000), _URL]
    ref: Annotated[str, Field(max_length=200), _REF] = ""


class GitPush(Arguments):
    """The branch to push."""

    branch: Annotated[str, Field(min_length=1, max_length=200), _BRANCH]


class RunPytest(Arguments):
    """The test files (empty: all), and a filter for the names in them."""

    paths: Paths = Field(default_factory=list)
    keyword: Annotated[str, Field(max_length=200)] = ""


class RunMake(Arguments):
    """The make target; empty: `test`."""

    target: Annotated[str, Field(max_length=100), _TARGET] = "test"


def canonical(arguments: Mapping[str, Any]) -> bytes:
    """Return arguments as JSON bytes: sorted keys, no spaces, ASCII. Raises `ValueError` if they
    have no JSON form.
    """
    try:
        return json.dumps(
            arguments, sort_keys=True, separators=(",", ":"), default=_refuse_object
        ).encode("ascii")
    except (TypeError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error


def _refuse_object(value: object) -> object:
    raise TypeError(f"{type(value).__name__} is not a JSON type")


def arguments_digest(arguments: Mapping[str, Any]) -> str:
    """Return the sha256 of the canonical arguments, or of a fixed text if they are not JSON."""
    try:
        raw = canonical(arguments)
    except ValueError:
        raw = b"unreadable"
    return hashlib.sha256(raw).hexdigest()


# The outputs of successful tools.


class Output(BaseModel):
    """Open and frozen."""

    model_config = ConfigDict(extra="allow", frozen=True, defer_build=True)


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
