from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from moothall.api.accounts import UserAccounts
from moothall.cli import main

GOOD, OTHER = "correct horse battery", "another horse battery"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MOOTHALL_DATA_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def account(*args: str, typed_input: str = "") -> Result:
    return CliRunner().invoke(main, ["account", *args], input=typed_input)


def test_an_account_is_added_listed_changed_and_removed(folder: Path) -> None:
    added = account("add", "alice", "--role", "po", "--role", "operator", typed_input=f"{GOOD}\n")
    assert added.exit_code == 0, added.output
    assert GOOD not in added.output
    assert json.loads(account("list", "--json").stdout) == [
        {"name": "alice", "tenant": "local", "roles": ["po", "operator"]}
    ]
    assert account("list").stdout == "alice  (local)  po, operator\n"
    people = UserAccounts(folder)
    session = people.sign_in("alice", GOOD, 60, 9)
    assert session
    assert account("password", "alice", typed_input=f"{OTHER}\n").exit_code == 0
    assert people.find(session) is None
    assert people.sign_in("alice", OTHER, 60, 9)
    assert account("remove", "alice").exit_code == 0
    assert json.loads(account("list", "--json").stdout) == []


@pytest.mark.parametrize(
    ("args", "typed", "message"),
    [
        (("add", "alice"), "short\n", "the password has 5 characters; allowed are 12 to 200"),
        (("add", "alice"), "", "the password has 0 characters"),
        (("add", "Alice!"), f"{GOOD}\n", "NAME"),
        (("remove", "bob"), "", "no account 'bob'"),
        (("password", "bob"), f"{GOOD}\n", "no account 'bob'"),
    ],
)
def test_errors_are_reported(folder: Path, args: tuple[str, ...], typed: str, message: str) -> None:
    result = account(*args, typed_input=typed)
    assert result.exit_code == 2
    assert message in result.stderr
    assert UserAccounts(folder).list() == []
