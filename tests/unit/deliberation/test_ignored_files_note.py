"""The ignored files that a seat is informed about: those that it wrote itself."""

from __future__ import annotations

import pytest

from moothall.deliberation.attempt import find_ignored_writes
from moothall.domain.repository import Patch
from moothall.domain.tool import ToolResult, ToolStatus

RULE = "line 1 of .gitignore, /target/"


def result(tool: str, path: str) -> ToolResult:
    return ToolResult("r", tool, ToolStatus.SUCCESS, {"path": path})


@pytest.mark.parametrize(
    "ignored",
    [{"target/": RULE}, {"target/gen/a.rs": RULE, "target/gen/b.rs": RULE, "target/old.rs": RULE}],
    ids=["folder", "files"],
)
def test_a_seats_new_file_is_reported_in_listed_and_unlisted_folders(
    ignored: dict[str, str],
) -> None:
    patch = Patch("0" * 40, "1" * 40, "", ignored=ignored)
    results = [
        result("files.write", "target/gen/a.rs"),
        result("files.write", "target/gen/b.rs"),
        result("files.delete", "target/gen/b.rs"),
        result("files.read", "target/old.rs"),
        result("files.write", "src/target.rs"),
    ]
    assert find_ignored_writes(results, None, patch) == {"target/gen/a.rs": RULE}


def test_only_tools_that_write_a_file_are_reported() -> None:
    patch = Patch("0" * 40, "1" * 40, "", ignored={"target/": RULE})
    names = ("read", "write", "append", "edit", "define", "store", "mkdir", "delete")
    reported = [
        name
        for name in names
        if find_ignored_writes([result(f"files.{name}", "target/gen/a.rs")], None, patch)
    ]
    assert reported == ["write", "append", "edit", "define", "store"]
