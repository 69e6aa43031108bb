from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from moothall.domain.ids import ROLES
from moothall.errors import InvalidRequest
from moothall.stories.notes import Scopes, scopes

TABLE: dict[str, Any] = {
    "phase": "build",
    "worth": {"story": 2, "comments": 1},
    "notes": {"comment": "comments"},
    "roles": {role: ["comments", "story"] for role in ROLES} | {"data": ["story"]},
    "phases": {"build": ["story", "comments"], "coach": ["comments"]},
}


def test_a_context_contains_the_scopes_allowed_by_both_role_and_phase() -> None:
    table = Scopes.model_validate(TABLE)
    assert table.allowed_scopes("dev", "build") == ("story", "comments")
    assert table.allowed_scopes("data", " BUILD ") == ("story",)
    assert table.allowed_scopes("data", "coach") == ()
    assert table.allowed_scopes("dev", "") == ("story", "comments")
    assert table.allowed_scopes("", "") == ("story",), "the scopes of all roles"


@pytest.mark.parametrize(
    "invalid_part",
    [
        {"phase": "x"},
        {"roles": {"dev": ["story"]}},
        {"phases": {"build": ["plan"]}},
        {"phases": {"build": ["secrets"]}},
        {"worth": {"story": 0, "comments": 1}},
        {"notes": {"plan": "plan"}},
        {"more": 1},
    ],
)
def test_an_incomplete_table_is_refused(invalid_part: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Scopes.model_validate(TABLE | invalid_part)


def test_unknown_roles_phases_and_scopes_are_named() -> None:
    for invalid_arguments, message in (
        (("wizard", ""), "unknown role 'wizard'; the roles are dev"),
        (("dev", "nap"), "the phases are design"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            scopes().allowed_scopes(*invalid_arguments)
    with pytest.raises(InvalidRequest, match="unknown scope moon; the scopes are story"):
        scopes().check(("story", "moon"))


def test_every_role_gets_the_story() -> None:
    for phase in scopes().phases:
        assert all("story" in scopes().allowed_scopes(role, phase) for role in ROLES)
