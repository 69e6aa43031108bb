"""Applying a diff to a person's files: real git."""

from __future__ import annotations

from pathlib import Path

import pytest

from moothall.domain.text import scrub
from moothall.errors import RepositoryError
from moothall.repositories import sources
from moothall.repositories.gitcmd import GitRunner
from moothall.repositories.worktree import apply_to_files
from support.repos import SAMPLE, SOLUTION, Repo, make_repo

pytestmark = pytest.mark.e2e  # real processes over and over: run with the end-to-end tests

NEW = "src/new file.py"


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return make_repo(tmp_path / "repo", dict(SAMPLE))


@pytest.fixture
def diff(tmp_path: Path, repo: Repo) -> str:
    """Return a diff that changes one file, creates one and removes one."""
    repo.git("clone", "--quiet", str(repo.path), str(tmp_path / "other"))
    changed_repo = Repo(tmp_path / "other")
    changed_repo.write(
        {
            "src/utils.py": (changed_repo.path / "src/utils.py").read_text() + SOLUTION,
            NEW: "N = 1\n",
        }
    )
    (changed_repo.path / "README.md").unlink()
    changed_repo.git("add", "--all")
    return changed_repo.git("diff", "--cached", "--binary") + "\n"


async def apply(repo: Repo, diff: str, tmp_path: Path) -> tuple[str, ...]:
    git = GitRunner(tmp_path / "git")
    return await apply_to_files(git, await sources.find_local(git, repo.path), diff)


async def test_the_whole_diff_and_nothing_else_is_applied(
    repo: Repo, diff: str, tmp_path: Path
) -> None:
    repo.write({"notes.txt": "mine\n"})
    assert set(await apply(repo, diff, tmp_path)) == {"src/utils.py", NEW, "README.md"}
    assert "hello_world" in (repo.path / "src/utils.py").read_text()
    assert (repo.path / NEW).read_text() == "N = 1\n"
    assert not (repo.path / "README.md").exists()
    assert repo.git("diff", "--cached", "--name-only") == ""
    assert (repo.path / "notes.txt").read_text() == "mine\n"


async def test_a_diff_with_a_masked_secret_is_refused(
    repo: Repo, diff: str, tmp_path: Path
) -> None:
    masked = scrub(diff.replace("+N = 1", "+N = 'https://ann:pass@example.org/'"))
    with pytest.raises(RepositoryError, match="git merge moothall/TASK"):
        await apply(repo, masked, tmp_path)
    assert (repo.path / "README.md").exists()  # nothing of it


async def test_a_diff_is_applied_from_a_subfolder_too(
    repo: Repo, diff: str, tmp_path: Path
) -> None:
    assert len(await apply(Repo(repo.path / "src"), diff, tmp_path)) == 3
    assert not (repo.path / "README.md").exists()


@pytest.mark.parametrize(
    ("uncommitted", "message"),
    [
        ({"src/utils.py": "# my unfinished work\n"}, "uncommitted changes in src/utils.py"),
        ({NEW: "mine\n"}, "uncommitted changes in src/new file.py"),
    ],
)
async def test_uncommitted_changes_are_never_overwritten(
    repo: Repo, diff: str, tmp_path: Path, uncommitted: dict[str, str], message: str
) -> None:
    repo.write(uncommitted)
    with pytest.raises(RepositoryError, match=message):
        await apply(repo, diff, tmp_path)
    assert (repo.path / "README.md").exists()  # nothing of it
    for path, text in uncommitted.items():
        assert (repo.path / path).read_text() == text


async def test_staged_and_ignored_files_are_not_overwritten_either(
    repo: Repo, diff: str, tmp_path: Path
) -> None:
    repo.write({"src/utils.py": "# staged\n"})
    repo.git("add", "--all")
    with pytest.raises(RepositoryError, match="uncommitted changes"):
        await apply(repo, diff, tmp_path)
    repo.git("reset", "--hard", "--quiet")
    repo.write({".git/info/exclude": "src/new*\n", NEW: "mine\n"})
    with pytest.raises(RepositoryError, match="uncommitted changes in src/new"):
        await apply(repo, diff, tmp_path)
    assert (repo.path / NEW).read_text() == "mine\n"
    assert (repo.path / "README.md").exists()


async def test_a_diff_that_does_not_apply_changes_nothing(
    repo: Repo, diff: str, tmp_path: Path
) -> None:
    repo.commit({"src/utils.py": "# all else\n"})
    with pytest.raises(RepositoryError, match="does not fit the files"):
        await apply(repo, diff, tmp_path)
    assert (repo.path / "README.md").exists()
    for broken in ("no diff\n", "diff --git a/x b/x\n"):
        with pytest.raises(RepositoryError, match="not a diff that git can apply"):
            await apply(repo, broken, tmp_path)


@pytest.mark.parametrize("path", ["../outside.py", ".git/hooks/post-checkout", "link/inside.py"])
async def test_nothing_outside_the_work_tree_is_written(
    repo: Repo, tmp_path: Path, path: str
) -> None:
    (tmp_path / "away").mkdir()
    (repo.path / "link").symlink_to(tmp_path / "away")
    hostile = (
        f"diff --git a/{path} b/{path}\nnew file mode 100755\n--- /dev/null\n+++ b/{path}\n@@ "
        "-0,0 +1 @@\n+echo out\n"
    )
    with pytest.raises(RepositoryError):
        await apply(repo, hostile, tmp_path)
    assert not (tmp_path / "outside.py").exists()
    assert not (repo.path / ".git/hooks/post-checkout").exists()
    assert not any((tmp_path / "away").iterdir())


async def test_no_hook_and_no_filter_is_run(repo: Repo, diff: str, tmp_path: Path) -> None:
    touched = tmp_path / "ran"
    repo.commit({".gitattributes": "*.py filter=evil\n"})
    for key in ("clean", "smudge"):
        repo.git("config", f"filter.evil.{key}", f"sh -c 'touch {touched}; cat'")
    hook = repo.path / ".git" / "hooks" / "post-applypatch"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {touched}\n")
    hook.chmod(0o755)
    touched.unlink(missing_ok=True)
    (repo.path / "src/utils.py").touch()  # git has to read its content
    await apply(repo, diff, tmp_path)
    assert not touched.exists()


async def test_a_bare_repository_is_refused(repo: Repo, diff: str, tmp_path: Path) -> None:
    repo.git("clone", "--quiet", "--bare", str(repo.path), str(tmp_path / "bare"))
    with pytest.raises(RepositoryError, match="bare"):
        await apply(Repo(tmp_path / "bare"), diff, tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("similarity index 100%\nrename from .env\nrename to public.txt\n", "renames or copies"),
        ("similarity index 100%\ncopy from .env\ncopy to public.txt\n", "renames or copies"),
        (
            "deleted file mode 100644\n--- a/.env\n+++ /dev/null\n@@ -1 +0,0 @@\n-KEY=1\n",
            "uncommitted changes in .env",
        ),
        ("--- a/.env\n+++ b/.env\n@@ -1 +1 @@\n-KEY=1\n+KEY=2\n", "uncommitted changes in .env"),
    ],
)
async def test_ignored_files_are_never_overwritten(
    repo: Repo, tmp_path: Path, change: str, message: str
) -> None:
    repo.write({".git/info/exclude": ".env\n", ".env": "KEY=1\n"})
    target = "public.txt" if "public" in change else ".env"
    with pytest.raises(RepositoryError, match=message):
        await apply(repo, f"diff --git a/.env b/{target}\n{change}", tmp_path)
    assert (repo.path / ".env").read_text() == "KEY=1\n"
    assert not (repo.path / "public.txt").exists()


async def test_a_file_matching_the_base_of_the_diff_is_not_an_uncommitted_change(
    repo: Repo, diff: str, tmp_path: Path
) -> None:
    repo.git("clone", "--quiet", str(repo.path), str(tmp_path / "next"))
    later_repo = Repo(tmp_path / "next")
    await apply(later_repo, diff, tmp_path)
    base = later_repo.commit({})
    later_repo.write({NEW: "N = 1\nM = 2\n"})
    second = later_repo.git("diff", "--binary") + "\n"
    repo.git("fetch", "--quiet", str(later_repo.path), "HEAD")
    combined_diff = diff + second
    assert set(await apply(repo, diff, tmp_path)) == {"src/utils.py", NEW, "README.md"}
    git, local = (
        GitRunner(tmp_path / "git"),
        await sources.find_local(GitRunner(tmp_path / "git"), repo.path),
    )
    with pytest.raises(RepositoryError, match="uncommitted changes"):
        await apply(repo, second, tmp_path)
    assert await apply_to_files(git, local, second, base) == (NEW,)
    assert (repo.path / NEW).read_text() == "N = 1\nM = 2\n"
    repo.write({NEW: "N = 1\n# mine\n"})
    with pytest.raises(RepositoryError, match="uncommitted changes"):
        await apply_to_files(git, local, second, base)
    repo.git("reset", "--hard", "--quiet")
    (repo.path / NEW).unlink()
    assert set(await apply(repo, combined_diff, tmp_path)) == {"src/utils.py", NEW, "README.md"}
    assert (repo.path / NEW).read_text() == "N = 1\nM = 2\n"


@pytest.mark.parametrize(
    ("settings", "attributes", "end"),
    [
        ({"core.autocrlf": "true"}, "", "\r\n"),
        ({"core.autocrlf": "input"}, "", "\n"),
        ({"core.eol": "crlf"}, "* text=auto\n", "\r\n"),
        ({"core.eol": "crlf"}, "", "\n"),
        ({}, "*.py text eol=crlf\n*.md text eol=crlf\n", "\r\n"),
        ({"core.autocrlf": "true"}, "* -text\n", "\n"),
        ({"core.autocrlf": "true"}, "* eol=lf\n", "\n"),
    ],
)
async def test_line_endings_are_those_that_git_would_write(
    repo: Repo, diff: str, tmp_path: Path, *, settings: dict[str, str], attributes: str, end: str
) -> None:
    for key, value in settings.items():
        repo.git("config", key, value)
    if attributes:
        repo.write({".git/info/attributes": attributes})
    (repo.path / ".git/index").unlink()
    repo.git("checkout", "--force", "main", "--", ".")  # like a fresh clone with these settings
    assert repo.git("status", "--porcelain") == ""
    assert (repo.path / "src/utils.py").read_bytes().count(b"\r\n") == (0 if end == "\n" else 6)
    await apply(repo, diff, tmp_path)
    text = (repo.path / "src/utils.py").read_bytes().decode()
    assert "hello_world" in text
    assert text.count(end) == text.count("\n")
    assert (repo.path / NEW).read_bytes() == f"N = 1{end}".encode()
    changed = repo.git("diff", "--numstat").split("\n")
    # No line changed only by its line ending.
    assert [line.split("\t")[1] for line in changed] == ["3", "0"]


async def test_uncommitted_changes_are_found_whatever_the_line_endings(
    repo: Repo, diff: str, tmp_path: Path
) -> None:
    repo.git("config", "core.autocrlf", "true")
    repo.write({"src/utils.py": "# my unfinished work\r\n"})
    with pytest.raises(RepositoryError, match=r"uncommitted changes in src/utils.py: nothing"):
        await apply(repo, diff, tmp_path)


async def test_a_diff_applies_to_a_file_in_another_encoding(repo: Repo, tmp_path: Path) -> None:
    base = repo.commit(
        {
            ".gitattributes": "*.txt working-tree-encoding=UTF-16\n",
            "a.txt": "größer\n".encode("utf-16"),
        }
    )
    blob_before = repo.git("rev-parse", f"{base}:a.txt")
    blob_after = repo.blob("größer\nnew\n")
    await apply(
        repo,
        repo.git("diff", blob_before, blob_after)
        .replace(blob_before, "a.txt")
        .replace(blob_after, "a.txt")
        + "\n",
        tmp_path,
    )
    assert (repo.path / "a.txt").read_bytes() == "größer\nnew\n".encode("utf-16")


async def test_a_file_can_replace_a_folder_and_a_folder_a_file(repo: Repo, tmp_path: Path) -> None:
    repo.commit({"one": "1\n", "two/x": "2\n"})
    repo.git("clone", "--quiet", str(repo.path), str(tmp_path / "other"))
    changed_repo = Repo(tmp_path / "other")
    changed_repo.git("rm", "--quiet", "one", "two/x")
    changed_repo.write({"one/y": "1\n", "two": "2\n"})
    (changed_repo.path / "two").chmod(0o755)
    (changed_repo.path / "link").symlink_to("one/y")
    changed_repo.git("add", "--all")
    parts = [
        changed_repo.git("diff", "--cached", "--no-renames", f"--diff-filter={status_filter}")
        for status_filter in ("D", "d")
    ]
    await apply(repo, "\n".join((*parts, "")), tmp_path)
    assert (repo.path / "one/y").read_text() == "1\n"
    assert (repo.path / "two").read_text() == "2\n"
    assert (repo.path / "two").stat().st_mode & 0o111
    assert (repo.path / "link").readlink() == Path("one/y")
    assert not list(repo.path.rglob("*.moothall"))
