"""Turn commits of a repository into tasks: choose commits, run their tests, write the tasks.
Walk the history of a repository, and make repositories that end with a commit.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from moothall.domain.ids import LOCAL, digest
from moothall.domain.repository import Prepared
from moothall.domain.task import RepositoryRef
from moothall.errors import PatchRefused, RepositoryError
from moothall.evaluate import commit_rules
from moothall.evaluate.commit_rules import Commit
from moothall.evaluate.tasks import Judge, Lines, Task, count_cases, explain, read_tasks, write_task
from moothall.ranking import diagnose
from moothall.repositories.clone import TrustedClone
from moothall.repositories.gitcmd import GitRunner
from moothall.repositories.patch_rules import is_test
from moothall.repositories.profile import CONFIG_FILE, Commands, parse_config_file, read_text
from moothall.repositories.registry import Registered
from moothall.repositories.service import RepositoryService

# Walk the history of a repository, and make repositories that end with a commit.


_MAX_TAGS = 200


async def list_commits(clone: TrustedClone, sha: str, max_commits: int) -> AsyncIterator[Commit]:
    """Yield the newest commits of a history, at most `max_commits`, without merges and with the
    changed paths.
    """
    log_output = await clone.call(
        "log",
        "-z",
        "--no-merges",
        f"--max-count={max_commits}",
        "--format=%H%x01%P%x01%B",
        "--no-show-signature",
        sha,
    )
    if log_output.status:
        raise RepositoryError(f"the history cannot be read: {log_output.reason}")
    for entry in log_output.out.decode(errors="replace").split("\0"):
        commit, parents, message = (*entry.split("\x01", 2), "", "")[:3]
        if not commit:
            continue
        changed = await clone.call(
            "diff-tree",
            "-r",
            "-z",
            "--root",
            "--no-commit-id",
            "--name-only",
            "--no-renames",
            commit,
        )
        paths = tuple(path for path in os.fsdecode(changed.out).split("\0") if path)
        yield Commit(commit, tuple(parents.split()), message, paths)


async def seal(git: GitRunner, clone: TrustedClone, sha: str, folder: Path) -> None:
    """Make a bare repository with the history of a commit, the tags in it, and no other object."""
    if (folder / "HEAD").exists():
        return
    making = folder.with_name(f".{folder.name}.part")
    await asyncio.to_thread(shutil.rmtree, making, ignore_errors=True)
    making.parent.mkdir(parents=True, exist_ok=True)
    await git.run(
        "init",
        "--quiet",
        "--bare",
        "--template=",
        "--initial-branch=main",
        "--",
        str(making),
        cwd=making.parent,
    )
    # Build tools read versions from tags.
    tag_output = await clone.call(
        "for-each-ref",
        f"--count={_MAX_TAGS}",
        "--sort=-creatordate",
        "--format=%(refname)",
        f"--merged={sha}",
        "refs/tags",
    )
    tags = tag_output.out.decode(errors="surrogateescape").splitlines()
    fetched = await git.call(
        "fetch",
        "--quiet",
        "--no-tags",
        "--no-write-fetch-head",
        "--no-recurse-submodules",
        "--update-shallow",
        "--",
        f"file://{clone.path.resolve()}",
        f"{sha}:refs/heads/main",
        *(f"{tag}:{tag}" for tag in tags),
        cwd=making,
        env={"GIT_ALLOW_PROTOCOL": "file"},
    )
    if fetched.status:
        raise RepositoryError(f"the history up to {sha[:12]} cannot be copied: {fetched.reason}")
    making.rename(folder)


# Turn commits of a repository into tasks: choose commits, run their tests, write the tasks.


ReportProgress = Callable[[str], None]
Rewrite = Callable[[str], Awaitable[str]]
"""Returns a task's text in other words."""
COMMITS = "commits.jsonl"
UNUSABLE = "its parent cannot be set up or checked"
REFUSED = "its change cannot be applied as a patch"
_MAX_SUBJECT_CHARS = 60


@dataclass(frozen=True, slots=True)
class Miner:
    """Mines the history of one repository. Commits in `examined` are skipped."""

    repositories: RepositoryService
    judge: Judge
    folder: Path
    examined: Lines
    report_progress: ReportProgress
    rewrite: Rewrite | None = None

    async def mine_tasks(self, ref: RepositoryRef, tasks: int, commits: int) -> list[Task]:
        """Examine up to `commits` commits until the folder has `tasks` tasks of this repository.

        Return those, the oldest first.
        """
        entry = self.repositories.registry.get(ref.id, LOCAL.tenant)
        base = await self.repositories.resolve(ref)
        clone, commands = self.repositories.clone(base.repository), _commands_of(entry)
        examined_shas = {str(row["commit"]) for row in self.examined.of(repository=entry.origin)}
        stored = await asyncio.to_thread(read_tasks, self.folder)
        repository_tasks = [
            task
            for task in stored
            if task.repository == entry.origin and task.commit in examined_shas
        ]
        async for commit in list_commits(clone, base.sha, commits):
            if len(repository_tasks) >= tasks:
                break
            if commit.sha in examined_shas:
                continue
            row, task = await self._examine_commit(commit, clone, ref, entry.origin, commands)
            if task is not None:
                await asyncio.to_thread(write_task, self.folder, task)
                repository_tasks.append(task)
            self.examined.add(
                {
                    "repository": entry.origin,
                    "commit": commit.sha,
                    "subject": commit.subject[:200],
                    **row,
                }
            )
            words = (
                row["why"]
                or f"task {len(repository_tasks)}: "
                f"{count_cases(task.cases) if task else 0} hidden tests"
            )
            self.report_progress(
                f"{commit.sha[:10]} {commit.subject[:_MAX_SUBJECT_CHARS]}: {words}"
            )
        return repository_tasks[:tasks]

    async def _examine_commit(
        self,
        commit: Commit,
        clone: TrustedClone,
        ref: RepositoryRef,
        origin: str,
        commands: Commands,
    ) -> tuple[Mapping[str, str], Task | None]:
        reason = commit_rules.reject_commit(commit)
        diff = ""
        if reason == commit_rules.NO_TESTS and any(path.endswith(".rs") for path in commit.paths):
            diff = await clone.diff(commit.parents[0], commit.sha)
            reason = commit_rules.reject_commit(commit, diff)
        if reason:
            return {"why": reason}, None
        self.report_progress(
            f"{commit.sha[:10]} {commit.subject[:_MAX_SUBJECT_CHARS]}: "
            "running its tests before and after"
        )
        try:
            task = await self._create_task(commit, clone, ref, origin, commands)
        except PatchRefused as error:
            return {"why": f"{REFUSED}: {explain(error)}"}, None
        except RepositoryError as error:
            return {"why": f"{UNUSABLE}: {explain(error)}"}, None
        return (
            ({"why": task}, None) if isinstance(task, str) else ({"why": "", "task": task.id}, task)
        )

    async def _create_task(
        self,
        commit: Commit,
        clone: TrustedClone,
        ref: RepositoryRef,
        origin: str,
        commands: Commands,
    ) -> Task | str:
        """Return the task of a commit, or why it has none."""
        parent = commit.parents[0]
        whole_diff = await clone.diff(parent, commit.sha)
        hidden_paths = commit_rules.hidden_paths(commit.paths, whole_diff)
        changes = await clone.changes(parent, commit.sha)
        tests = (
            await clone.commit_changes(
                parent, [item for item in changes if item.path in hidden_paths], "hidden tests"
            )
        ).diff
        fix = (
            await clone.commit_changes(
                parent, [item for item in changes if not is_test(item.path)], "fix"
            )
        ).diff
        if not tests or not fix:
            return commit_rules.NO_TESTS if fix else commit_rules.NO_SOURCE
        prepared = await self._prepare_base(clone, ref, parent)
        if useless := "; ".join(f"{row.check}: {row.fault}" for row in diagnose(prepared).faults):
            return f"{UNUSABLE}: {useless[:200]}"
        text = commit_rules.task_text(commit.message)
        hidden_cases = await self.judge.examine(prepared, tests, whole_diff, text)
        if hidden_cases.reason:
            return hidden_cases.reason
        if self.rewrite is not None:
            text = await self.rewrite(text) or text
        return Task(
            id=f"{ref.id[:40].rstrip('-')}-{commit.sha[:10]}",
            repository=origin,
            parent=parent,
            commit=commit.sha,
            text=text,
            cases=hidden_cases.cases,
            kept=hidden_cases.kept,
            paths=hidden_cases.paths,
            tests=tests,
            fix=fix,
            commands=commands.model_dump(mode="json", exclude_defaults=True),
        )

    async def _prepare_base(self, clone: TrustedClone, ref: RepositoryRef, sha: str) -> Prepared:
        await pin(clone, sha)
        base = await self.repositories.resolve(RepositoryRef(id=ref.id, ref=sha))
        return await self.repositories.prepare(base)


async def pin(clone: TrustedClone, sha: str) -> None:
    """Make a commit of a clone resolvable by its id, wherever the branches of the origin are
    now.
    """
    if not await clone.has(sha):
        await clone.fetch(f"file://{clone.path.resolve()}", sha)


def _commands_of(entry: Registered) -> Commands:
    """Return the configured set-up and checks: those of the registry, then of the work tree's own
    file.
    """
    text = read_text(Path(entry.origin, CONFIG_FILE)) if entry.local else None
    return entry.commands.over(parse_config_file(text)) if text is not None else entry.commands


def repository_name(origin: str) -> str:
    """Return a readable, unique name for the folder of an evaluation."""
    name = "".join(
        letter if letter.isalnum() else "-"
        for letter in origin.rstrip("/").removesuffix(".git").rpartition("/")[2].lower()
    )
    return f"{name.strip('-')[:40] or 'repository'}-{digest(origin)[:8]}"
