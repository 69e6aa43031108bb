"""The repository of a command: real git, and the registry of a temporary data directory."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from moothall.app.command_repository import describe_uncommitted, find_repository, line_origin
from moothall.app.preflight import NamedRepository
from moothall.app.repositories import trusted_repositories
from moothall.config import Settings
from moothall.domain.ids import LOCAL
from moothall.errors import ConfigurationError, InvalidRequest, NotFound, RepositoryError
from moothall.settings import load_settings
from support.repos import Repo, make_sample

pytestmark = pytest.mark.e2e  # real processes over and over: run with the end-to-end tests


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(data_dir=tmp_path / "data")


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return make_sample(tmp_path / "sample")


async def test_the_current_repository_is_used_inside_a_repository(
    settings: Settings, repo: Repo
) -> None:
    with contextlib.chdir(repo.path / "src"):
        repository = await find_repository(settings, NamedRepository())
    assert repository is not None
    assert trusted_repositories(settings).registry.get(repository.id, LOCAL.tenant).origin == str(
        repo.path
    )


async def test_no_repository_is_used_outside_one_or_for_text(
    settings: Settings, tmp_path: Path, repo: Repo
) -> None:
    with contextlib.chdir(tmp_path):
        assert await find_repository(settings, NamedRepository()) is None
    with contextlib.chdir(repo.path):
        assert await find_repository(settings, NamedRepository(text=True)) is None


@pytest.mark.parametrize(
    "named",
    [
        NamedRepository("x", text=True),
        NamedRepository(ref="main", text=True),
        NamedRepository(profile=Path("p"), text=True),
    ],
)
async def test_text_and_a_repository_exclude_each_other(
    settings: Settings, named: NamedRepository
) -> None:
    with pytest.raises(InvalidRequest, match="--text works without a repository; leave it or --"):
        await find_repository(settings, named)


async def test_uncommitted_changes_are_reported(settings: Settings, repo: Repo) -> None:
    repository = await find_repository(settings, NamedRepository(str(repo.path)))
    assert repository is not None
    assert await describe_uncommitted(settings, repository) == ""
    repo.write({"new.py": "", "README.md": "other", "x.log": "ignored"})
    message = await describe_uncommitted(settings, repository)
    assert message == (
        f"works on the commit {repo.head[:10]}; uncommitted changes in 2 files are not seen: "
        "README.md, new.py"
    )
    repo.write({".moothall.toml": "setup = []"})
    assert await describe_uncommitted(settings, repository) == message, "it is used as it is"


async def test_a_given_profile_replaces_the_repositorys_own_once(
    settings: Settings, repo: Repo, tmp_path: Path
) -> None:
    repo.commit({".moothall.toml": 'known_failures = ["a"]\n[checks]\ntests = "false"\n'})
    file = tmp_path / "mine.toml"
    file.write_text('[checks]\ntests = "make check"\n', encoding="utf-8")
    repositories = trusted_repositories(settings)
    plain = await find_repository(settings, NamedRepository(str(repo.path)))
    with_profile = await find_repository(settings, NamedRepository(str(repo.path), profile=file))
    found_again = await find_repository(settings, NamedRepository(str(repo.path)))
    assert plain is not None
    assert with_profile is not None
    assert found_again == plain != with_profile
    assert (await repositories.resolve(plain)).profile.checks == {"tests": ("false",)}
    base = await repositories.resolve(with_profile)
    assert (dict(base.profile.checks), base.profile.known_failures) == (
        {"tests": ("make", "check")},
        ("a",),
    )
    assert repositories.clone(with_profile.id).path == repositories.clone(plain.id).path
    assert [entry.id for entry in repositories.registry.list(LOCAL.tenant)] == [plain.id]


async def test_an_invalid_profile_is_named(settings: Settings, repo: Repo, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    with pytest.raises(ConfigurationError, match=r"mine\.toml cannot be read: No such file"):
        await find_repository(settings, NamedRepository(str(repo.path), profile=file))
    file.write_text("setup = 1\n", encoding="utf-8")
    with pytest.raises(RepositoryError, match=r"mine\.toml, line 1: setup"):
        await find_repository(settings, NamedRepository(str(repo.path), profile=file))


async def test_the_tenant_of_a_line_is_read_from_branch_commit_or_record(
    settings: Settings, repo: Repo
) -> None:
    async def owner(location: str, ref: str = "", tenant: str = "") -> str:
        return (await line_origin(settings, location, ref, "src/utils.py", 1, tenant=tenant))[1]

    path = str(repo.path)
    assert await owner(path) == "local"
    repo.git("branch", "feature_x")
    repo.git("commit", "--allow-empty", "--amend", "-qm", "One\n\nChange: some_thing")
    assert await owner(path, "feature_x") == await owner(path) == "local"
    (repo.path / "src/utils.py").write_text("ONE = 1\n", encoding="utf-8")
    repo.git("commit", "-qam", "One\n\nDeliberation: acme_task-1\nWinner: agent-dev-001 (proven)")
    assert await owner(path) == "acme"
    repo.git("branch", "moothall/globex_task-2")
    assert await owner(path, "moothall/globex_task-2") == "globex"
    assert await owner(path, tenant="local") == "local"
    entry = await trusted_repositories(settings).register(path, tenant="initech")
    assert await owner(entry.id) == "initech"
    with pytest.raises(NotFound):
        await owner(entry.id, tenant="local")
