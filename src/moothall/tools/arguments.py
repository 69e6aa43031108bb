"""The arguments of each tool: one closed, bounded model per tool. Strict: JSON types must match.

Every optional argument has a plain default (never null), which keeps the JSON schemas simple enough
for constrained decoding on small models. Rules that are hard to express in a JSON schema (a ref is
not an option, a make target is not an assignment) are validators here and not in the schema.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

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

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True)


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
