from __future__ import annotations

from pathlib import Path

import pytest

from moothall.errors import AlreadyExists, InvalidRequest, NotFound, RepositoryError
from moothall.repositories.profile import Commands
from moothall.repositories.registry import Registry, make_registered, repository_id


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "repositories")


def test_records_survive_and_are_listed_by_tenant(registry: Registry, tmp_path: Path) -> None:
    commands = Commands.model_validate({"checks": {"tests": "make test"}})
    app_entry = make_registered(
        "https://host/team/app.git",
        id="app",
        credential="env:APP_TOKEN",
        push="push",
        commands=commands,
    )
    project_entry = make_registered("/srv/my project", tenant="b")
    unlisted_entry = make_registered("/srv/once", listed=False)
    for entry in (app_entry, project_entry, unlisted_entry):
        registry.add(entry)
    reopened = Registry(tmp_path / "repositories")
    assert reopened.list("local") == (app_entry,)
    assert reopened.get(project_entry.id, "b") == project_entry
    assert reopened.get(unlisted_entry.id, "local") == unlisted_entry
    assert reopened.of_origin("/srv/my project", "b") == project_entry
    assert reopened.of_origin("/srv/my project", "local") is None
    assert reopened.get("app", "local").commands.checks == {"tests": ("make", "test")}
    assert project_entry.push == "local-branch"
    assert not list((tmp_path / "repositories").glob(".*"))


def test_another_tenants_record_is_not_found(registry: Registry) -> None:
    registry.add(make_registered("/srv/x", id="x", tenant="a"))
    with pytest.raises(NotFound):
        registry.get("x", "b")
    with pytest.raises(NotFound):
        registry.get("never", "a")
    with pytest.raises(InvalidRequest):
        registry.get("../x", "a")


def test_an_id_belongs_to_one_repository(registry: Registry) -> None:
    registry.add(make_registered("/srv/x", id="x"))
    registry.add(make_registered("/srv/x", id="x", push="none"))
    assert registry.get("x", "local").push == "none"
    for origin, tenant in (("/srv/y", "local"), ("/srv/x", "b")):
        with pytest.raises(AlreadyExists, match="'x' is taken"):
            registry.add(make_registered(origin, id="x", tenant=tenant))


def test_ids_are_readable_and_differ_by_tenant_and_origin() -> None:
    ids = {
        repository_id(origin, tenant)
        for origin in ("/srv/My App", "/opt/My App", "https://h/My App.git")
        for tenant in "ab"
    }
    assert len(ids) == 6
    assert all(repository_id.startswith("my-app-") for repository_id in ids)
    assert repository_id("git@host:x/ü", "a").startswith("repository-")


@pytest.mark.parametrize(
    "credential", ["ghp_thesecretitself", "env:", "env:A B", "file:relative", "http://x"]
)
def test_a_credential_is_referenced_by_name_and_never_stored(credential: str) -> None:
    with pytest.raises(InvalidRequest, match=r"credential: .*named") as caught:
        make_registered("https://h/x", credential=credential)
    assert "ghp" not in caught.value.message


@pytest.mark.parametrize(("field", "value"), [("id", "Not An Id"), ("tenant", "../x")])
def test_ids_are_validated(field: str, value: str) -> None:
    with pytest.raises(InvalidRequest, match="is not an id"):
        make_registered("/srv/x", **{field: value})


def test_a_broken_record_is_named(registry: Registry, tmp_path: Path) -> None:
    registry.add(make_registered("/srv/x", id="x"))
    (tmp_path / "repositories" / "x.json").write_text("{")
    with pytest.raises(RepositoryError, match=r"x\.json"):
        registry.list("local")
