"""The `git.*` tools of a workspace, answered on the trusted side: the workspace itself holds no
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
from moothall.repositories.objects import Change
from moothall.repositories.service import Remote

Changes = Callable[[], Awaitable[WorkspaceChanges]]
Restore = Callable[[Sequence[Change]], Awaitable[None]]
_BRANCH = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]|[./](?![./])){0,199}(?<![./])(?<!\.lock)")
_BACK = re.compile(r"(?:HEAD|@)(?:~([0-9]{0,3})|(\^))?")
_SHA = re.compile(r"[0-9a-f]{7,40}")
_DIFF_CHARS = 100_000
_SEARCHED = 200


@dataclass(slots=True)
class GitState:
    """Where a workspace's history stands: its base, its newest commit, its branches, what was added
    for the next commit.
    """

    base_sha: str
    head: str = ""
    branch: str = "work"
    branches: dict[str, str] = field(default_factory=dict)
    added: set[str] = field(default_factory=set)
    made: dict[str, tuple[str, str]] = field(default_factory=dict)
    """The commits made here: commit → (parent, message)."""

    @property
    def message(self) -> str:
        """The messages of the commits made here, oldest first, without duplicates; empty if there
        are none.
        """
        messages: list[str] = []
        at = self.head
        while at in self.made:
            at, message = self.made[at]
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
    """Answer one `git.*` call. `changes` gives the workspace's files that differ from the base, and
    the ignored ones; `restore` makes the workspace differ from the base by just the changes given.
    Raises `InvalidRequest`, `AlreadyExists`,
    `Refused`, `PatchRefused`.
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
            answer = await repository.beyond(tool, arguments)
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
            **({"ignored": sorted(snapshot.ignored)[:_SEARCHED]} if snapshot.ignored else {}),
        }

    async def diff(self, ref: str) -> dict[str, Any]:
        against = await self._resolve(ref) if ref else self.state.head
        snapshot = await self._snapshot()
        text = await self.clone.diff(against, snapshot.commit_sha)
        return {
            "against": against,
            "diff": text[:_DIFF_CHARS],
            "truncated": len(text) > _DIFF_CHARS,
        }

    async def log(self, limit: object) -> dict[str, Any]:
        if not isinstance(limit, int) or not 1 <= limit <= _SEARCHED:
            raise InvalidRequest(f"limit is a number from 1 to {_SEARCHED}")
        commits = await self.clone.history(self.state.head, limit)
        shown = [
            {"commit": c.sha, "author": c.author, "date": c.date, "subject": c.subject}
            for c in commits
        ]
        return {"branch": self.state.branch, "commits": shown}

    async def add(self, paths: object) -> dict[str, Any]:
        if not isinstance(paths, Sequence) or isinstance(paths, str) or not paths:
            raise InvalidRequest(
                'paths is a list such as ["src/utils.py"], or ["."] for all changes'
            )
        snapshot = await self._snapshot()
        pending = [change.path for change in await self._pending_changes(snapshot)]
        for wanted in paths:
            name = str(wanted).removeprefix("./").rstrip("/")
            found = [
                path
                for path in pending
                if name in {"", "."} or path == name or path.startswith(f"{name}/")
            ]
            if not found and (rule := snapshot.rule_for(name)):
                raise InvalidRequest(
                    f"{name[:200]!r} is ignored ({rule}): write it under another path, or change "
                    "that rule"
                )
            if not found:
                raise InvalidRequest(
                    f"nothing to add: {str(wanted)[:200]!r} has no change; changed are "
                    f"{', '.join(pending[:10])}"
                )
            self.state.added.update(found)
        return {"added": sorted(self.state.added)}

    async def commit(self, message: str) -> dict[str, Any]:
        if not message.strip():
            raise InvalidRequest("a commit needs a message")
        written = await self.changes()
        pending = {
            change.path for change in await self._pending_changes(await self._snapshot(written))
        }
        chosen = pending & self.state.added or pending  # without git.add: everything
        if not chosen:
            raise InvalidRequest("nothing to commit: no file differs from the last commit")
        before = {
            change.path: change
            for change in await self.clone.changes(self.state.base_sha, self.state.head)
        }
        kept = {path: change for path, change in before.items() if path not in chosen}
        kept |= {change.path: change for change in written.changes if change.path in chosen}
        patch = await self.clone.commit_changes(
            self.state.base_sha, list(kept.values()), message, parent=self.state.head
        )
        self.state.made[patch.commit_sha] = (self.state.head, message)
        self.state.head = self.state.branches[self.state.branch] = patch.commit_sha
        self.state.added.clear()
        return {"commit": patch.commit_sha, "branch": self.state.branch, "files": sorted(chosen)}

    def make_branch(self, name: str) -> dict[str, Any]:
        if not _BRANCH.fullmatch(name) or name in {"HEAD", "@"}:
            raise InvalidRequest(f"{name[:80]!r} is not a branch name; write one such as fix-login")
        if name in self.state.branches:
            raise AlreadyExists(f"the branch {name!r} is there already")
        if len(self.state.branches) >= _SEARCHED:
            raise InvalidRequest(f"a workspace has at most {_SEARCHED} branches")
        self.state.branches[name] = self.state.head
        return {"branch": name, "commit": self.state.head}

    async def checkout(self, ref: str) -> dict[str, Any]:
        sha = await self._resolve(ref)
        if sha != self.state.head:
            await self._go(sha)
        self.state.branch = ref if ref in self.state.branches else f"at-{sha[:12]}"
        self.state.head = sha
        self.state.branches[self.state.branch] = sha
        return {"branch": self.state.branch, "commit": sha}

    async def beyond(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        if tool == "git.push":
            return await self.push(_text(arguments, "branch"))
        if tool == "git.pull":
            return await self.pull()
        return await self.take_in(_text(arguments, "url"), _text(arguments, "ref"))

    async def push(self, branch: str) -> dict[str, Any]:
        sha = self.state.branches.get(branch)
        if sha is None:
            raise InvalidRequest(
                f"there is no branch {branch[:80]!r} here; there are "
                f"{', '.join(self.state.branches)}"
            )
        if sha == self.state.base_sha:
            raise InvalidRequest(
                f"the branch {branch!r} has no commit of its own; commit something first"
            )
        name, where = await self._beyond().push(self.state.base_sha, sha, branch)
        return {"branch": name, "commit": sha, "to": where}

    async def pull(self) -> dict[str, Any]:
        beyond, restore = self._beyond(), self._restore()
        await self._refuse_pending()
        theirs = await beyond.fetch()
        known = {commit.sha for commit in await self.clone.history(self.state.head, _SEARCHED)}
        if theirs not in known:
            before = await self.clone.entries(self.state.head)
            merged = await self.clone.merge(
                self.state.base_sha, self.state.head, theirs, f"Merge {theirs[:12]}"
            )
            await restore(await self.clone.changes(self.state.base_sha, merged.commit_sha))
            self.state.head = self.state.branches[self.state.branch] = merged.commit_sha
            after = await self.clone.entries(merged.commit_sha)
            changed = {entry.path for entry in set(before) ^ set(after)}
        else:
            changed = set()
        return {"branch": self.state.branch, "commit": self.state.head, "files": sorted(changed)}

    async def take_in(self, url: str, ref: str) -> dict[str, Any]:
        beyond, restore = self._beyond(), self._restore()
        found = await beyond.clone(url, ref)
        now = list((await self.changes()).changes)
        paths = {*(change.path for change in now), *await self.clone.files(self.state.base_sha)}
        if any(path == found.name or path.startswith(f"{found.name}/") for path in paths):
            raise AlreadyExists(f"there is a {found.name!r} here already; nothing was written")
        await restore([*now, *found.changes])
        return {"path": found.name, "commit": found.sha, "files": len(found.changes)}

    def _beyond(self) -> Remote:
        if self.remote is None:
            raise Refused("this workspace reaches no other repository")
        return self.remote

    def _restore(self) -> Restore:
        if self.restore is None:
            raise InvalidRequest(
                "this workspace cannot go to another commit; edit the files, or look at "
                "git.diff(ref)"
            )
        return self.restore

    async def _refuse_pending(self) -> None:
        if await self._pending_changes(await self._snapshot()):
            raise InvalidRequest("files differ from the last commit; commit them first")

    async def _go(self, sha: str) -> None:
        restore = self._restore()
        await self._refuse_pending()
        if not any(
            commit.sha == self.state.base_sha for commit in await self.clone.history(sha, _SEARCHED)
        ):
            raise InvalidRequest(
                "only commits of this workspace, from its base on, can be checked out"
            )
        await restore(await self.clone.changes(self.state.base_sha, sha))

    async def _snapshot(self, written: WorkspaceChanges | None = None) -> Patch:
        """Commit the files as they are, on no branch."""
        written = written or await self.changes()
        about = "files as they are"
        base, head = self.state.base_sha, self.state.head
        return await self.clone.commit_changes(
            base, written.changes, about, parent=head, ignored=written.ignored
        )

    async def _pending_changes(self, snapshot: Patch) -> list[_Pending]:
        """Return what differs from the last commit."""
        before = set(await self.clone.files(self.state.head))
        changes = await self.clone.changes(self.state.head, snapshot.commit_sha)
        kinds = ("added", "modified")
        return [
            _Pending(c.path, "deleted" if c.content is None else kinds[c.path in before])
            for c in changes
        ]

    async def _resolve(self, ref: str) -> str:
        """Return the commit that a model means: HEAD, HEAD~n, a branch of this workspace or a
        commit of its history.
        """
        if ref in self.state.branches:
            return self.state.branches[ref]
        back = _BACK.fullmatch(ref)
        commits = await self.clone.history(self.state.head, _SEARCHED)
        if back:
            steps = int(back[1] or 1) if "~" in ref else int(back[2] is not None)
            if steps < len(commits):
                return commits[steps].sha
        elif _SHA.fullmatch(ref):
            found = {commit.sha for commit in commits if commit.sha.startswith(ref)}
            found |= {sha for sha in self.state.branches.values() if sha.startswith(ref)}
            if len(found) == 1:
                return found.pop()
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
        raise InvalidRequest(f"{name} is a text")
    return value
