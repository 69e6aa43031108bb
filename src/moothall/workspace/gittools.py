"""The `git.*` tools of a workspace, answered on the trusted side: the workspace itself has no
repository.

Its history is a line of commits in the trusted clone that begins at the base.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from moothall.domain.repository import Patch
from moothall.errors import AlreadyExists, InvalidRequest, Refused
from moothall.repositories.changes import WorkspaceChanges
from moothall.repositories.clone import TrustedClone
from moothall.repositories.git_objects import Change
from moothall.repositories.service import Remote

Changes = Callable[[], Awaitable[WorkspaceChanges]]
Restore = Callable[[Sequence[Change]], Awaitable[None]]
_BRANCH = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]|[./](?![./])){0,199}(?<![./])(?<!\.lock)")
_HEAD_OFFSET = re.compile(r"(?:HEAD|@)(?:~([0-9]{0,3})|(\^))?")
_SHA = re.compile(r"[0-9a-f]{7,40}")
_DIFF_CHARS = 100_000
_MAX_COMMITS = 200


@dataclass(slots=True)
class GitState:
    """The state of a workspace's history: its base, its newest commit, its branches, and the paths
    that were added for the next commit.
    """

    base_sha: str
    head: str = ""
    branch: str = "work"
    branches: dict[str, str] = field(default_factory=dict)
    added: set[str] = field(default_factory=set)
    commits: dict[str, tuple[str, str]] = field(default_factory=dict)
    """The commits made here: commit → (parent, message)."""

    @property
    def message(self) -> str:
        """The messages of the commits made here, oldest first, without duplicates; empty if there
        are none.
        """
        messages: list[str] = []
        commit = self.head
        while commit in self.commits:
            commit, message = self.commits[commit]
            messages.insert(0, message.strip())
        return "\n\n".join(dict.fromkeys(messages))

    def __post_init__(self) -> None:
        self.head = self.head or self.base_sha
        self.branches.setdefault(self.branch, self.head)


async def git_tool(
    clone: TrustedClone,
    state: GitState,
    tool: str,
    arguments: Mapping[str, Any],
    changes: Changes,
    *,
    restore: Restore | None = None,
    remote: Remote | None = None,
) -> dict[str, Any]:
    """Run a `git.*` tool.

    changes: returns the workspace's changes against the base, and the ignored paths.
    restore: makes the workspace differ from the base by the given changes only.

    Raises `InvalidRequest`, `AlreadyExists`, `Refused`, `PatchRefused`.
    """
    repository = _Repository(clone, state, changes, restore, remote)
    match tool:
        case "git.status":
            answer = await repository.status()
        case "git.diff":
            answer = await repository.diff(_text(arguments, "ref"))
        case "git.log":
            answer = await repository.log(arguments.get("limit", 10))
        case "git.add":
            answer = await repository.add(arguments.get("paths", []))
        case "git.commit":
            answer = await repository.commit(_text(arguments, "message"))
        case "git.branch":
            answer = repository.make_branch(_text(arguments, "name"))
        case "git.checkout":
            answer = await repository.checkout(_text(arguments, "ref"))
        case "git.clone" | "git.pull" | "git.push":
            answer = await repository.call_remote(tool, arguments)
        case _:
            raise InvalidRequest(f"there is no tool {tool[:40]!r}")
    return answer


@dataclass(frozen=True, slots=True)
class _Repository:
    clone: TrustedClone
    state: GitState
    changes: Changes
    restore: Restore | None
    remote: Remote | None

    async def status(self) -> dict[str, Any]:
        snapshot = await self._snapshot()
        pending = await self._pending_changes(snapshot)
        changed = [
            {"path": change.path, "change": change.kind, "added": change.path in self.state.added}
            for change in pending
        ]
        answer = {
            "branch": self.state.branch,
            "head": self.state.head,
            "clean": not pending,
            "changed": changed,
        }
        return {
            **answer,
            **({"ignored": sorted(snapshot.ignored)[:_MAX_COMMITS]} if snapshot.ignored else {}),
        }

    async def diff(self, ref: str) -> dict[str, Any]:
        against = await self._resolve_ref(ref) if ref else self.state.head
        snapshot = await self._snapshot()
        text = await self.clone.diff(against, snapshot.commit_sha)
        return {
            "against": against,
            "diff": text[:_DIFF_CHARS],
            "truncated": len(text) > _DIFF_CHARS,
        }

    async def log(self, limit: object) -> dict[str, Any]:
        if not isinstance(limit, int) or not 1 <= limit <= _MAX_COMMITS:
            raise InvalidRequest(f"limit must be a number from 1 to {_MAX_COMMITS}")
        commits = await self.clone.history(self.state.head, limit)
        entries = [
            {"commit": c.sha, "author": c.author, "date": c.date, "subject": c.subject}
            for c in commits
        ]
        return {"branch": self.state.branch, "commits": entries}

    async def add(self, paths: object) -> dict[str, Any]:
        if not isinstance(paths, Sequence) or isinstance(paths, str) or not paths:
            raise InvalidRequest(
                'paths must be a list such as ["src/utils.py"], or ["."] for all changes'
            )
        snapshot = await self._snapshot()
        pending = [change.path for change in await self._pending_changes(snapshot)]
        for requested_path in paths:
            name = str(requested_path).removeprefix("./").rstrip("/")
            matches = [
                path
                for path in pending
                if name in {"", "."} or path == name or path.startswith(f"{name}/")
            ]
            if not matches and (rule := snapshot.rule_for(name)):
                raise InvalidRequest(
                    f"{name[:200]!r} is ignored ({rule}): write it under another path, or change "
                    "that rule"
                )
            if not matches:
                raise InvalidRequest(
                    f"nothing to add: {str(requested_path)[:200]!r} has no change; changed are "
                    f"{', '.join(pending[:10])}"
                )
            self.state.added.update(matches)
        return {"added": sorted(self.state.added)}

    async def commit(self, message: str) -> dict[str, Any]:
        if not message.strip():
            raise InvalidRequest("a commit needs a message")
        workspace_changes = await self.changes()
        pending = {
            change.path
            for change in await self._pending_changes(await self._snapshot(workspace_changes))
        }
        paths = pending & self.state.added or pending  # without git.add: all
        if not paths:
            raise InvalidRequest("nothing to commit: no file differs from the last commit")
        committed = {
            change.path: change
            for change in await self.clone.changes(self.state.base_sha, self.state.head)
        }
        changes = {path: change for path, change in committed.items() if path not in paths}
        changes |= {
            change.path: change for change in workspace_changes.changes if change.path in paths
        }
        patch = await self.clone.commit_changes(
            self.state.base_sha, list(changes.values()), message, parent=self.state.head
        )
        self.state.commits[patch.commit_sha] = (self.state.head, message)
        self.state.head = self.state.branches[self.state.branch] = patch.commit_sha
        self.state.added.clear()
        return {"commit": patch.commit_sha, "branch": self.state.branch, "files": sorted(paths)}

    def make_branch(self, name: str) -> dict[str, Any]:
        if not _BRANCH.fullmatch(name) or name in {"HEAD", "@"}:
            raise InvalidRequest(f"{name[:80]!r} is not a branch name; write one such as fix-login")
        if name in self.state.branches:
            raise AlreadyExists(f"the branch {name!r} exists already")
        if len(self.state.branches) >= _MAX_COMMITS:
            raise InvalidRequest(f"a workspace has at most {_MAX_COMMITS} branches")
        self.state.branches[name] = self.state.head
        return {"branch": name, "commit": self.state.head}

    async def checkout(self, ref: str) -> dict[str, Any]:
        sha = await self._resolve_ref(ref)
        if sha != self.state.head:
            await self._check_out_commit(sha)
        self.state.branch = ref if ref in self.state.branches else f"at-{sha[:12]}"
        self.state.head = sha
        self.state.branches[self.state.branch] = sha
        return {"branch": self.state.branch, "commit": sha}

    async def call_remote(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        if tool == "git.push":
            return await self.push(_text(arguments, "branch"))
        if tool == "git.pull":
            return await self.pull()
        return await self.clone_into(_text(arguments, "url"), _text(arguments, "ref"))

    async def push(self, branch: str) -> dict[str, Any]:
        sha = self.state.branches.get(branch)
        if sha is None:
            raise InvalidRequest(
                f"there is no branch {branch[:80]!r} here; the branches are "
                f"{', '.join(self.state.branches)}"
            )
        if sha == self.state.base_sha:
            raise InvalidRequest(
                f"the branch {branch!r} has no commit of its own; commit something first"
            )
        name, origin = await self._require_remote().push(self.state.base_sha, sha, branch)
        return {"branch": name, "commit": sha, "to": origin}

    async def pull(self) -> dict[str, Any]:
        remote, restore = self._require_remote(), self._require_restore()
        await self._check_clean()
        fetched = await remote.fetch()
        local_commits = {
            commit.sha for commit in await self.clone.history(self.state.head, _MAX_COMMITS)
        }
        if fetched not in local_commits:
            old_entries = await self.clone.entries(self.state.head)
            merged = await self.clone.merge(
                self.state.base_sha, self.state.head, fetched, f"Merge {fetched[:12]}"
            )
            await restore(await self.clone.changes(self.state.base_sha, merged.commit_sha))
            self.state.head = self.state.branches[self.state.branch] = merged.commit_sha
            new_entries = await self.clone.entries(merged.commit_sha)
            changed = {entry.path for entry in set(old_entries) ^ set(new_entries)}
        else:
            changed = set()
        return {"branch": self.state.branch, "commit": self.state.head, "files": sorted(changed)}

    async def clone_into(self, url: str, ref: str) -> dict[str, Any]:
        remote, restore = self._require_remote(), self._require_restore()
        cloned = await remote.clone(url, ref)
        changes = list((await self.changes()).changes)
        paths = {*(change.path for change in changes), *await self.clone.files(self.state.base_sha)}
        if any(path == cloned.name or path.startswith(f"{cloned.name}/") for path in paths):
            raise AlreadyExists(f"{cloned.name!r} exists already; nothing was written")
        await restore([*changes, *cloned.changes])
        return {"path": cloned.name, "commit": cloned.sha, "files": len(cloned.changes)}

    def _require_remote(self) -> Remote:
        if self.remote is None:
            raise Refused("this workspace has no access to other repositories")
        return self.remote

    def _require_restore(self) -> Restore:
        if self.restore is None:
            raise InvalidRequest(
                "this workspace cannot check out another commit; edit the files, or read "
                "git.diff(ref)"
            )
        return self.restore

    async def _check_clean(self) -> None:
        if await self._pending_changes(await self._snapshot()):
            raise InvalidRequest("files differ from the last commit; commit them first")

    async def _check_out_commit(self, sha: str) -> None:
        restore = self._require_restore()
        await self._check_clean()
        if not any(
            commit.sha == self.state.base_sha
            for commit in await self.clone.history(sha, _MAX_COMMITS)
        ):
            raise InvalidRequest(
                "only commits of this workspace, from its base on, can be checked out"
            )
        await restore(await self.clone.changes(self.state.base_sha, sha))

    async def _snapshot(self, workspace_changes: WorkspaceChanges | None = None) -> Patch:
        """Commit the current files, on no branch."""
        workspace_changes = workspace_changes or await self.changes()
        message = "files as they are"
        base, head = self.state.base_sha, self.state.head
        return await self.clone.commit_changes(
            base, workspace_changes.changes, message, parent=head, ignored=workspace_changes.ignored
        )

    async def _pending_changes(self, snapshot: Patch) -> list[_Pending]:
        """Return the changes since the last commit."""
        committed_paths = set(await self.clone.files(self.state.head))
        changes = await self.clone.changes(self.state.head, snapshot.commit_sha)
        kinds = ("added", "modified")
        return [
            _Pending(c.path, "deleted" if c.content is None else kinds[c.path in committed_paths])
            for c in changes
        ]

    async def _resolve_ref(self, ref: str) -> str:
        """Return the commit that a ref names: HEAD, HEAD~n, a branch of this workspace or a commit
        of its history.
        """
        if ref in self.state.branches:
            return self.state.branches[ref]
        offset = _HEAD_OFFSET.fullmatch(ref)
        commits = await self.clone.history(self.state.head, _MAX_COMMITS)
        if offset:
            steps = int(offset[1] or 1) if "~" in ref else int(offset[2] is not None)
            if steps < len(commits):
                return commits[steps].sha
        elif _SHA.fullmatch(ref):
            matches = {commit.sha for commit in commits if commit.sha.startswith(ref)}
            matches |= {sha for sha in self.state.branches.values() if sha.startswith(ref)}
            if len(matches) == 1:
                return matches.pop()
        raise InvalidRequest(
            f"no commit {ref[:80]!r} here; there are HEAD, HEAD~1 and so on, and "
            f"{', '.join(self.state.branches)}"
        )


@dataclass(frozen=True, slots=True)
class _Pending:
    path: str
    kind: str


def _text(arguments: Mapping[str, Any], name: str) -> str:
    value = arguments.get(name, "")
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} must be a text")
    return value
