from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from moothall.config import WorkspaceSettings
from moothall.domain.repository import Base, Prepared
from moothall.domain.task import RepositoryRef
from moothall.repositories.checkout import absolute_url, check_out
from moothall.repositories.service import RepositoryService
from moothall.settings import load_settings
from support.repos import Repo, make_repo

pytestmark = pytest.mark.e2e  # real processes over and over: run with the end-to-end tests


class Nobody:
    async def prepare(
        self, base: Base, on_progress: Callable[[str], None] | None = None
    ) -> Prepared:
        raise NotImplementedError


def repositories(tmp_path: Path, **settings: object) -> RepositoryService:
    return RepositoryService(
        tmp_path / "data",
        WorkspaceSettings.model_validate(settings),
        Nobody().prepare,
        roots=[tmp_path],
    )


def with_submodule(tmp_path: Path) -> Repo:
    inner = make_repo(tmp_path / "inner", {"deep.txt": "deep\n"})
    library = make_repo(tmp_path / "library", {"lib.py": "x = 1\n"})
    library.git("submodule", "add", "--quiet", str(inner.path), "nested")
    library.commit()
    superproject = make_repo(tmp_path / "whole", {"a.py": "import lib\n"})
    superproject.git("submodule", "add", "--quiet", str(library.path), "vendor/lib")
    superproject.git("submodule", "update", "--quiet", "--init", "--recursive")
    superproject.commit()
    return superproject


async def checked_out(
    trusted: RepositoryService, base: Base, tmp_path: Path
) -> tuple[Path, list[str]]:
    messages: list[str] = []
    dest = tmp_path / "out"
    settings = load_settings(data_dir=tmp_path / "data")
    await check_out(trusted.clone(base.repository), base, dest, settings, messages.append)
    return dest, messages


async def test_submodules_are_checked_out_at_the_recorded_commit(tmp_path: Path) -> None:
    superproject = with_submodule(tmp_path)
    Repo(tmp_path / "library").commit({"lib.py": "x = 2\n"})
    trusted = repositories(tmp_path)
    base = await trusted.resolve(RepositoryRef(url=str(superproject.path)))
    assert base.profile.notes == ()
    dest, messages = await checked_out(trusted, base, tmp_path)
    assert (dest / "vendor/lib/lib.py").read_text() == "x = 1\n"
    assert (dest / "vendor/lib/nested/deep.txt").read_text() == "deep\n"
    assert "vendor/lib/lib.py" not in await trusted.clone(base.repository).files(base.sha)
    assert "submodule vendor/lib" in messages[0]
    assert not list(dest.rglob(".git"))


async def test_an_unavailable_one_is_reported_and_left_out(tmp_path: Path) -> None:
    superproject = make_repo(tmp_path / "whole", {"a.py": "", "setup.py": ""})
    for name, url in (
        ("git", "git://example.org/x.git"),
        ("file", "/etc"),
        ("up", "../library"),
        ("ext", "ext::sh -c true"),
    ):
        superproject.git("config", "-f", ".gitmodules", f"submodule.{name}.path", f"sub/{name}")
        superproject.git("config", "-f", ".gitmodules", f"submodule.{name}.url", url)
        superproject.git(
            "update-index", "--add", "--cacheinfo", f"160000,{superproject.head},sub/{name}"
        )
    superproject.git(
        "config", "-f", ".gitmodules", "submodule.../../../library/.git.path", "sub/climbs"
    )
    superproject.git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},sub/climbs")
    superproject.git("add", ".gitmodules")
    superproject.git("commit", "--quiet", "-m", "modules")
    trusted = repositories(tmp_path)
    sha = "2" * 40
    for name in ("git", "file", "up", "ext"):
        superproject.git("update-index", "--add", "--cacheinfo", f"160000,{sha},sub/{name}")
    superproject.git("commit", "--quiet", "-m", "elsewhere")
    base = await trusted.resolve(RepositoryRef(url=str(superproject.path)))
    notes = "\n".join(base.profile.notes)
    assert len(base.profile.notes) == 5
    assert "sub/git is left out: repositories may not be fetched over 'git'" in notes
    assert "sub/file is left out" in notes
    dest, messages = await checked_out(trusted, base, tmp_path)
    assert "the submodule sub/git is missing; continuing without it" in messages
    assert (dest / "a.py").exists()


async def test_the_number_of_submodules_is_bounded(tmp_path: Path) -> None:
    superproject = make_repo(tmp_path / "whole", {"a.py": ""})
    for number in range(21):
        link = f"160000,{superproject.head},library{number}"
        superproject.git("update-index", "--add", "--cacheinfo", link)
    superproject.git("commit", "--quiet", "--message", "libraries")
    base = await repositories(tmp_path).resolve(RepositoryRef(url=str(superproject.path)))
    assert sum("there are more than 20" in note for note in base.profile.notes) == 1


@pytest.mark.parametrize(
    ("url", "origin", "expected"),
    [
        ("https://h/x.git", "https://g/a/b.git", "https://h/x.git"),
        ("../x.git", "https://g/a/b.git", "https://g/a/x.git"),
        ("../../c/x.git", "https://g/a/b.git", "https://g/c/x.git"),
        ("./x", "https://g/a/b/", "https://g/a/b/x"),
        ("../x.git", "git@g:a/b.git", "git@g:a/x.git"),
        ("../x", "/srv/b", "/srv/x"),
    ],
)
def test_urls_may_be_relative(url: str, origin: str, expected: str) -> None:
    assert absolute_url(url, origin) == expected
