"""Tests that `.moothall.toml` hides: the base of the seats and its history lack them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from moothall.config import WorkspaceSettings
from moothall.domain.repository import Base, Prepared
from moothall.domain.task import RepositoryRef
from moothall.errors import RepositoryError
from moothall.repositories.profile import parse_config_file, to_toml
from moothall.repositories.service import RepositoryService
from support.repos import make_repo

_OWN = '[checks]\ntests = "pytest"\n[hidden]\ntests = ["tests/hidden/**"]\n'


async def test_hidden_tests_are_absent_from_the_seats_base_and_its_history(tmp_path: Path) -> None:
    repo = make_repo(
        tmp_path / "repo",
        {
            "a.py": "x = 1\n",
            ".moothall.toml": _OWN,
            "tests/test_a.py": "",
            "tests/hidden/test_b.py": "secret\n",
        },
    )

    async def prepare(base: Base, _: Callable[[str], None] | None) -> Prepared:
        return Prepared(base, "key", await repositories.clone(base.repository).files(base.sha))

    repositories = RepositoryService(
        tmp_path / "data", WorkspaceSettings(), prepare, roots=[tmp_path]
    )
    base = await repositories.resolve(RepositoryRef(url=str(repo.path)))
    prepared = await repositories.prepare(base)
    clone = repositories.clone(base.repository)
    assert prepared.hidden == {"tests/hidden/test_b.py": "secret\n"}
    assert prepared.files == (".moothall.toml", "a.py", "tests/test_a.py")
    assert prepared.base.sha != base.sha
    assert [commit.sha for commit in await clone.history(prepared.base.sha, 10)] == [
        prepared.base.sha
    ]
    assert (await repositories.prepare(base)).base.sha == prepared.base.sha

    diff = "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n"
    patch = await clone.apply(prepared.base.sha, diff)
    assert patch.diff.splitlines()[-2:] == ["-x = 1", "+x = 2"]
    # It does not remove the hidden file.
    assert await repositories.diff(base, patch.commit_sha) == patch.diff
    delivered = await clone.apply(base.sha, patch.diff)
    assert "tests/hidden/test_b.py" in await clone.files(delivered.commit_sha)

    merged = await repositories.merge(base, [delivered.commit_sha])
    assert merged.diff == patch.diff
    assert await repositories.diff(base, merged.commit_sha) == patch.diff
    with pytest.raises(RepositoryError, match="unrelated histories"):
        await repositories.merge(prepared.base, [delivered.commit_sha])


def test_a_profile_with_hidden_tests_round_trips() -> None:
    commands = parse_config_file(_OWN)
    assert commands.hidden.tests == ("tests/hidden/**",)
    assert parse_config_file(to_toml(commands)).hidden == commands.hidden
    assert parse_config_file('[hidden]\ntests = "a/** b/**"\n').hidden.tests == ("a/**", "b/**")
    assert "hidden" not in to_toml(parse_config_file('[checks]\ntests = "pytest"\n'))
