"""A git process of the trusted side that somebody else kills costs time, but neither a seat nor a
delivery.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from moothall.config import WorkspaceSettings
from moothall.domain.repository import Base, Prepared
from moothall.domain.task import RepositoryRef
from moothall.errors import WorkspaceFailed
from moothall.repositories.git_objects import Change
from moothall.repositories.gitcmd import GitRunner
from moothall.repositories.service import RepositoryService
from support.repos import SAMPLE, SOLUTION, Repo, make_sample

pytestmark = pytest.mark.e2e  # real processes over and over: run with the end-to-end tests

# Runs in place of the real git: the first process of each command dies, before its work with its
# locks taken, or after it.
KILLED = """#!/bin/sh
for word; do case "$word" in {words}) command=$word; break;; esac; done
if [ -n "$command" ] && mkdir "{marks}/$command" 2>/dev/null; then
    if [ {when} = after ]; then "{git}" "$@" >/dev/null; kill -9 $$; fi
    [ -z "$GIT_INDEX_FILE" ] || touch "$GIT_INDEX_FILE.lock"
    for word; do case "$word" in refs/*) mkdir -p "$(dirname "$word")" && touch "$word.lock";; esac; done
    kill -9 $$
fi
exec "{git}" "$@"
"""  # noqa: E501 - a line of embedded text
COMMANDS = (
    "init",
    "fetch",
    "rev-parse",
    "update-ref",
    "ls-tree",
    "cat-file",
    "check-ignore",
    "hash-object",
    "read-tree",
    "update-index",
    "write-tree",
    "log",
    "commit-tree",
    "diff",
    "apply",
    "pack-objects",
    "unpack-objects",
    "for-each-ref",
)


class Unprepared:
    """A preparer that does nothing."""

    async def prepare(self, base: Base, on_progress: object = None) -> Prepared:
        del on_progress
        return Prepared(base, base.sha, ())


def stand_in(folder: Path, text: str) -> str:
    """Put a git of ours before the real one and return the PATH."""
    folder.mkdir()
    (folder / "git").write_text(text)
    (folder / "git").chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def real_git() -> str:
    path = shutil.which("git")
    assert path
    return path


@pytest.mark.e2e  # some hundred git processes
@pytest.mark.parametrize("when", ["before", "after"])
async def test_every_git_command_may_be_killed_once_without_changing_the_delivery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    sample, marks = make_sample(tmp_path / "sample"), tmp_path / "marks"
    marks.mkdir()
    text = KILLED.format(words="|".join(COMMANDS), marks=marks, when=when, git=real_git())
    expected = await deliver_change(tmp_path / "plain", sample, "moothall/plain")
    monkeypatch.setenv("PATH", stand_in(tmp_path / "bin", text))
    assert await deliver_change(tmp_path / "killed", sample, "moothall/killed") == expected
    assert len(list(marks.iterdir())) >= len(COMMANDS) - 1, "for-each-ref is used for missing refs"
    assert sample.git("rev-parse", "moothall/killed") == expected
    assert list((tmp_path / "killed").rglob("*.lock")) == []


async def deliver_change(data: Path, sample: Repo, branch: str) -> str:
    trusted = RepositoryService(
        data, WorkspaceSettings(), Unprepared().prepare, roots=(sample.path,)
    )
    entry = await trusted.register(str(sample.path))
    base = await trusted.resolve(RepositoryRef(id=entry.id))
    clone = trusted.clone(entry.id)
    await clone.checkout(base.sha, data / "tree")
    assert (data / "tree" / "src" / "utils.py").read_text() == SAMPLE["src/utils.py"]
    changes = [
        Change("src/utils.py", "100644", (SAMPLE["src/utils.py"] + SOLUTION).encode()),
        Change("build.log", "100644", b"ignored"),
    ]
    patch = await clone.commit_changes(base.sha, changes, "solve")
    assert patch.paths == ("src/utils.py",)
    return await trusted.deliver(base, patch.diff, branch, "solve")


async def test_a_repeatedly_killed_command_is_a_workspace_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = make_sample(tmp_path / "sample")
    monkeypatch.setenv("PATH", stand_in(tmp_path / "bin", "#!/bin/sh\nkill -9 $$\n"))
    runner = GitRunner(tmp_path / "home")
    with pytest.raises(WorkspaceFailed, match="git rev-parse was killed"):
        await runner.call("rev-parse", "HEAD", cwd=sample.path)
    with (
        pytest.raises(WorkspaceFailed, match="git cat-file was killed"),
        runner.stream("cat-file", cwd=sample.path) as out,
    ):
        out.read()


async def test_a_killed_child_process_of_git_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        f'#!/bin/sh\nif mkdir "{tmp_path}/once" 2>/dev/null; then echo "error: index-pack died of '
        'signal 9" >&2; exit 128; fi\n'
    )
    monkeypatch.setenv("PATH", stand_in(tmp_path / "bin", f'{text}exec "{real_git()}" "$@"\n'))
    sample = make_sample(tmp_path / "sample")
    assert (
        await GitRunner(tmp_path / "home").run("rev-parse", "HEAD", cwd=sample.path)
    ).decode().strip() == sample.head
