from __future__ import annotations

from pathlib import Path

import pytest

from moothall.app import preflight
from moothall.app.command_repository import commands_from_options, register
from moothall.app.data_dir import clean_up, unregister
from moothall.app.repositories import trusted_repositories
from moothall.config import Settings
from moothall.domain.task import RepositoryRef
from moothall.errors import InvalidRequest, NotFound
from moothall.settings import load_settings
from support.repos import Repo, make_sample


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(data_dir=tmp_path / "data")


@pytest.fixture
async def registered(settings: Settings, tmp_path: Path) -> tuple[Repo, RepositoryRef]:
    repo = make_sample(tmp_path / "sample")
    return repo, await register(settings, str(repo.path), "")


async def test_unregistering_a_repository_removes_its_clone_and_keeps_the_repository(
    settings: Settings, registered: tuple[Repo, RepositoryRef], tmp_path: Path
) -> None:
    repo, ref = registered
    file = tmp_path / "mine.toml"
    file.write_text("setup = []\n", encoding="utf-8")
    variant = await register(settings, str(repo.path), "", file)
    unregistered = await unregister(settings, ref.id)
    assert (unregistered.origin, unregistered.clone_left) == (str(repo.path), "")
    registry = trusted_repositories(settings).registry
    for repository_id in (ref.id, variant.id):
        with pytest.raises(NotFound):
            registry.find(repository_id)
    assert not list((settings.data_dir / "repos").glob("*.git"))
    assert repo.head
    with pytest.raises(NotFound):
        await unregister(settings, ref.id)


async def test_nothing_is_removed_while_a_process_serves(
    settings: Settings, registered: tuple[Repo, RepositoryRef]
) -> None:
    _, ref = registered
    with preflight.hold(settings.data_dir):
        preflight.announce(settings.data_dir, preflight.Address(4711, "nats://x", 0, {}))
        cleaned = await clean_up(
            settings,
            older_than=None,
            everything=True,
            dry_run=False,
            report_removed=lambda item: pytest.fail(str(item)),
        )
        assert "process 4711 serves" in cleaned.refusal
        assert [item.kind for item in cleaned.removed] == ["clone"]
        assert "process 4711" in (await unregister(settings, ref.id)).clone_left
    assert list((settings.data_dir / "repos").glob("*.git"))
    cleaned = await clean_up(
        settings, older_than=None, everything=False, dry_run=False, report_removed=lambda _: None
    )
    assert [item.kind for item in cleaned.removed] == ["clone"], (
        "its repository is no longer registered"
    )
    assert not list((settings.data_dir / "repos").glob("*.git"))


async def test_a_dry_run_changes_nothing(
    settings: Settings, registered: tuple[Repo, RepositoryRef]
) -> None:
    cleaned = await clean_up(
        settings,
        older_than=0,
        everything=True,
        dry_run=True,
        report_removed=lambda item: pytest.fail(str(item)),
    )
    assert [item.kind for item in cleaned.removed] == ["clone"]
    assert list((settings.data_dir / "repos").glob("*.git"))


def test_commands_on_the_command_line_override_a_file(tmp_path: Path) -> None:
    assert commands_from_options((), ()) is None
    file = tmp_path / "p.toml"
    file.write_text('setup = ["a"]\nknown_failures = ["x"]\n', encoding="utf-8")
    commands = commands_from_options(
        ("pip install .",), ("tests=pytest -q", "lint=ruff check ."), file
    )
    assert commands is not None
    assert commands.setup == (("pip", "install", "."),)
    assert commands.checks == {"tests": ("pytest", "-q"), "lint": ("ruff", "check", ".")}
    assert commands.known_failures == ("x",)


@pytest.mark.parametrize(
    ("setup", "check", "message"),
    [
        ((), "tests", "--check 'tests' names no command"),
        ((), "=x", "names no command"),
        (("'",), "a=b", "setup"),
        ((), "Big=x", "name is 1 to"),
    ],
)
def test_an_invalid_command_is_named(setup: tuple[str, ...], check: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        commands_from_options(setup, (check,))
