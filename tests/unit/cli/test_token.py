from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from moothall.api.accounts import AccessTokens
from moothall.cli import main
from moothall.domain.ids import Principal
from moothall.errors import Unauthenticated


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MOOTHALL_DATA_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def token(*args: str) -> Result:
    return CliRunner().invoke(main, ["token", *args])


async def test_a_token_is_created_listed_and_revoked(folder: Path) -> None:
    created = token("create", "ci", "--tenant", "team-a", "--role", "po", "--expires", "12h")
    assert created.exit_code == 0, created.output
    secret = created.stdout.strip()
    assert secret not in created.stderr
    assert "of ci (team-a), valid until 20" in created.stderr
    found_token = await AccessTokens(folder).find(secret)
    assert found_token is not None
    assert found_token.principal == Principal("ci", "team-a", roles=frozenset({"po"}))
    [item] = json.loads(token("list", "--json").stdout)
    assert (item["name"], item["tenant"], item["roles"]) == ("ci", "team-a", ["po"])
    assert (item["state"], item["expires"] - item["created"]) == ("valid", 12 * 3600)
    assert secret not in token("list", "--json").output
    assert f"{item['id']}  ci  (team-a)  po  valid until " in token("list").stdout
    assert token("revoke", "ci").exit_code == 0
    assert f"{item['id']}  ci  (team-a)  po  revoked at " in token("list").stdout
    with pytest.raises(Unauthenticated):
        await AccessTokens(folder).find(secret)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("create", "ci", "--expires", "soon"), "'soon' is not a duration such as 30m, 12h or 90d"),
        (("create", "ci", "--expires", "0d"), "'0d' is not a duration"),
        (("create", "ci", "--expires", "367d"), "at most 366 days"),
        (("create", "Ci!"), "NAME"),
        (("revoke", "nobody"), "no valid token has the id or name 'nobody'"),
    ],
)
def test_invalid_arguments_are_named(folder: Path, args: tuple[str, ...], message: str) -> None:
    result = token(*args)
    assert result.exit_code == 2
    assert message in result.stderr
    assert AccessTokens(folder).list() == []
