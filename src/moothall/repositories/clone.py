"""The trusted bare clone of a repository: stores commits, and produces plain trees and patches.

Repositories are hostile data. Git never checks anything out here; this module writes the blobs, so
no filter runs.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import shlex
import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from moothall.config import WorkspaceSettings as Settings
from moothall.domain.repository import Patch
from moothall.errors import MergeConflict, NotFound, PatchRefused, RepositoryError, WorkspaceFailed
from moothall.processes import scratch
from moothall.repositories import patch_rules
from moothall.repositories.changes import NewPaths
from moothall.repositories.git_objects import (
    LIST_BYTES,
    Change,
    Commit,
    Conversion,
    TreeEntry,
    asks_for_conversion,
    colliding_links,
    file_identity,
    find_conversions,
    ignored_paths,
    raw_change,
    raw_change_between,
    read_blobs,
    read_tree,
    replaces_folder,
    write_files,
)
from moothall.repositories.gitcmd import (
    ATTEMPTS,
    FetchTooLarge,
    GitResult,
    GitRunner,
    OutputCaps,
    diff_between,
    exceeds_file_limit,
)

_SHA = re.compile(r"[0-9a-f]{40}")
_MESSAGE_CHARS = 10_000
_SHOWN_CONFLICTS = 10
_APPLY_MEMORY_BYTES = 4_000_000_000
_CONFLICT = re.compile(r"^<{7} .*?^>{7} .*?$", re.MULTILINE | re.DOTALL)
_CONFLICT_CHARS, _CONFLICT_FILE_BYTES = 4_000, 1_000_000
_NO_CAPS = OutputCaps()
_CACHED_TREES = 16
"""The number of commits whose trees are cached; few are in use at a time."""
_PARTIAL = re.compile(r"promisor|lazy fetching disabled")
_IDENTITY = {
    f"GIT_{person}_{part}": value
    for person in ("AUTHOR", "COMMITTER")
    for part, value in (("NAME", "Moothall"), ("EMAIL", "moothall@localhost"))
}


class TrustedClone:
    """A bare repository at `path`, created on first use. Refs under refs/moothall/ keep its commits
    reachable.
    """

    def __init__(self, path: Path, settings: Settings, runner: GitRunner | None = None) -> None:
        self.path = path
        self._settings = settings
        self._git = runner or GitRunner(path.parent)
        self._read_lists: dict[tuple[str, str], Mapping[str, bytes]] = {}
        self._trees: dict[str, tuple[tuple[TreeEntry, ...], Mapping[str, str]]] = {}

    async def create(self) -> None:
        """Create the empty bare repository if it does not exist. The creation is atomic, because
        another process may create it at the same time.
        """
        if (self.path / "HEAD").exists():
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_name(f"{self.path.name}.{secrets.token_hex(8)}")
        try:
            await self._git.run(
                "init", "--quiet", "--bare", "--template=", "--", str(new), cwd=self.path.parent
            )
            new.rename(self.path)
        except OSError as error:
            if not (self.path / "HEAD").exists():
                raise RepositoryError(
                    f"no clone can be created at {self.path}: {error.strerror}"
                ) from error
        finally:
            await asyncio.to_thread(shutil.rmtree, new, ignore_errors=True)

    async def fetch(
        self,
        source: str,
        ref: str,
        *,
        protocols: str = "file",
        env: Mapping[str, str] | None = None,
        tags: bool = False,
    ) -> str:
        """Fetch a commit from `source` and return its sha. `ref` is a full ref name or a sha.

        protocols: the transports that git may use, joined by ':'.
        env: more environment variables of git, such as credentials.
        tags: fetch the tags of its history too.

        Raises `RepositoryError`.
        """
        await self.create()
        temporary_ref = f"refs/moothall/fetch/{secrets.token_hex(8)}"
        result = await self._git.call(
            "fetch",
            "--quiet",
            *(() if tags else ("--no-tags",)),
            "--no-write-fetch-head",
            "--no-recurse-submodules",
            "--update-shallow",
            "--",
            source,
            f"+{ref}:{temporary_ref}",
            cwd=self.path,
            env={"GIT_ALLOW_PROTOCOL": protocols, **(env or {})},
            seconds=self._settings.check_seconds,
            caps=OutputCaps(file_bytes=self._settings.max_repository_bytes),
        )
        if result.status:
            raise self._fetch_error(source, ref, result)
        try:
            output = await self._run_git(
                "rev-parse", "--verify", "--end-of-options", f"{temporary_ref}^{{commit}}"
            )
            sha = output.strip().decode()
            await self._run_git("update-ref", f"refs/moothall/bases/{sha}", sha)
        finally:
            await self._run_git("update-ref", "-d", temporary_ref)
        return sha

    def _fetch_error(self, source: str, ref: str, result: GitResult) -> RepositoryError:
        message = f"cannot fetch {ref!r} from {source!r}: "
        if exceeds_file_limit(result.err):
            return FetchTooLarge(
                f"{message}{result.reason} (a repository may have at most "
                f"{self._settings.max_repository_bytes} bytes)"
            )
        if not _PARTIAL.search(result.err):
            return RepositoryError(f"{message}{result.reason}")
        advice = (
            f". Fetch them: git -C {shlex.quote(source)} fetch --refetch --no-filter"
            if source.startswith("/")
            else ""
        )
        return RepositoryError(
            f"{message}it is a partial clone, and lacks objects of that commit or of its history"
            f"{advice}"
        )

    async def has(self, sha: str) -> bool:
        """Return whether the clone has the commit as a base or as a patch."""
        if not _SHA.fullmatch(sha) or not (self.path / "HEAD").exists():
            return False
        for kind in ("bases", "patches"):
            result = await self._git.call(
                "rev-parse", "--verify", "--quiet", f"refs/moothall/{kind}/{sha}", cwd=self.path
            )
            if not result.status:
                return True
        return False

    async def prune(self, kept_shas: AbstractSet[str]) -> int:
        """Forget the patches whose commits are not in `kept_shas`, and delete unreachable objects
        that are more than a day old.

        Return how many patches were forgotten. A patch that is still in use is created again when
        it is needed.
        """
        output = await self._run_git(
            "for-each-ref", "--format=%(objectname)", "refs/moothall/patches/"
        )
        forgotten = [sha for sha in output.decode().split() if sha not in kept_shas]
        if forgotten:
            commands = "".join(f"delete refs/moothall/patches/{sha} {sha}\n" for sha in forgotten)
            await self._run_git("update-ref", "--stdin", stdin=commands.encode())
        await self._run_git("prune", "--expire=1.day.ago")
        return len(forgotten)

    async def files(self, sha: str) -> tuple[str, ...]:
        """Return the paths of a commit in git's order, without odd names. Raises `RepositoryError`
        for an unusable tree.
        """
        return tuple(
            entry.path for entry in await self.entries(sha) if not entry.unpatchable_reason
        )

    async def entries(self, sha: str) -> tuple[TreeEntry, ...]:
        """Return the checked tree of a commit, odd names included."""
        return (await self._tree(sha))[0]

    async def submodules(self, sha: str) -> Mapping[str, str]:
        """Return the submodules of a commit: path → recorded commit."""
        return (await self._tree(sha))[1]

    async def _tree(self, sha: str) -> tuple[tuple[TreeEntry, ...], Mapping[str, str]]:
        if sha not in self._trees:
            entries = await asyncio.to_thread(
                read_tree,
                self._git,
                self.path,
                _check_sha(sha),
                self._settings.max_repository_bytes,
            )
            while len(self._trees) >= _CACHED_TREES:
                self._trees.pop(next(iter(self._trees)))
            files = tuple(entry for entry in entries if entry.mode != patch_rules.SUBMODULE)
            self._trees[sha] = (
                files,
                {entry.path: entry.oid for entry in entries if entry.mode == patch_rules.SUBMODULE},
            )
        return self._trees[sha]

    async def checkout(self, sha: str, dest: Path) -> int:
        """Write the files of a commit, with modes and symlinks, to `dest`, which must be empty or
        absent.

        Return how many files were skipped because the file system cannot hold them.
        """
        entries = await self.entries(sha)
        conversions = await self._conversions(sha, [entry.path for entry in entries])
        seconds = self._settings.check_seconds
        return await asyncio.to_thread(
            write_files, self._git, self.path, entries, dest, seconds, conversions=conversions
        )

    async def smudge(self, sha: str, changes: Sequence[Change]) -> list[Change]:
        """Convert changes to `sha` to the form of a work tree: with the line ends and encodings of
        its attributes.
        """
        conversions = await self._conversions(sha, [change.path for change in changes], changes)
        return [
            _convert(change, conversions[change.path].smudge)
            if change.path in conversions
            else change
            for change in changes
        ]

    async def clean(self, sha: str, changes: Sequence[Change]) -> list[Change]:
        """Convert changes in a work tree of `sha` to the form that git stores."""
        paths = [change.path for change in changes]
        crlf = any(b"\r\n" in (change.content or b"") for change in changes)
        conversions = await self._conversions(sha, paths, changes, all_kinds=crlf)
        converted_entries = (
            {entry.path: entry for entry in await self.entries(sha) if entry.path in conversions}
            if conversions
            else {}
        )
        blobs = await asyncio.to_thread(
            read_blobs, self._git, self.path, [entry.oid for entry in converted_entries.values()], 0
        )
        previous_blobs = dict(zip(converted_entries, blobs, strict=True))
        cleaned_changes = []
        for change in changes:
            if conversion := conversions.get(change.path):
                before = previous_blobs.get(change.path, b"")
                cleaned_changes.append(
                    _convert(change, partial(conversion.clean, previous_blob=before))
                )
            else:
                cleaned_changes.append(change)
        return cleaned_changes

    async def _conversions(
        self,
        sha: str,
        paths: Sequence[str],
        changes: Sequence[Change] = (),
        *,
        all_kinds: bool = False,
    ) -> dict[str, Conversion]:
        """Return the conversions of `paths` that change a file on checkout; with `all_kinds`, also
        those that only change it when it is stored.
        """
        lists = await self._lists(sha, ".gitattributes", changes)
        if not (lists if all_kinds else asks_for_conversion(lists.values())):
            return {}
        conversions = await find_conversions(self._git, self.path, lists, paths)
        return {
            path: conversion
            for path, conversion in conversions.items()
            if all_kinds or conversion.on_checkout
        }

    async def _lists(self, sha: str, name: str, changes: Sequence[Change]) -> dict[str, bytes]:
        """Return the files called `name` (.gitignore, .gitattributes) of a commit with `changes`
        applied: path → content.
        """
        lists = dict(await self._base_lists(sha, name))
        for change in changes:
            if change.path.rpartition("/")[2] == name and not patch_rules.invalid_path_reason(
                change.path
            ):
                lists.pop(change.path, None)
                if change.content is not None and change.mode != patch_rules.SYMLINK:
                    lists[change.path] = change.content[:LIST_BYTES]
        return lists

    async def _base_lists(self, sha: str, name: str) -> Mapping[str, bytes]:
        if (sha, name) not in self._read_lists:
            lists = [
                entry
                for entry in await self.entries(sha)
                if entry.path.rpartition("/")[2] == name
                and entry.mode != patch_rules.SYMLINK
                and not entry.unpatchable_reason
            ]
            texts = await asyncio.to_thread(
                read_blobs, self._git, self.path, [entry.oid for entry in lists], LIST_BYTES
            )
            while len(self._read_lists) >= 2 * _CACHED_TREES:
                self._read_lists.pop(next(iter(self._read_lists)))
            self._read_lists[sha, name] = {
                entry.path: text for entry, text in zip(lists, texts, strict=True)
            }
        return self._read_lists[sha, name]

    async def call(self, *args: str) -> GitResult:
        """Return the result of a git command in the clone."""
        return await self._git.call(*args, cwd=self.path)

    async def read(self, sha: str, path: str, limit: int) -> bytes:
        """Return at most `limit` bytes of a file, or of the target of a symlink. Raises
        `NotFound`.
        """
        entry = next((entry for entry in await self.entries(sha) if entry.path == path), None)
        if entry is None:
            raise NotFound(f"{path[:200]!r} is not a file of commit {sha[:12]}")
        return (await asyncio.to_thread(read_blobs, self._git, self.path, [entry.oid], limit))[0]

    async def read_all(self, sha: str, paths: Sequence[str], limit: int) -> list[bytes]:
        """Return at most `limit` bytes of each of these files of a commit."""
        entries = {entry.path: entry for entry in await self.entries(sha)}
        return await asyncio.to_thread(
            read_blobs, self._git, self.path, [entries[path].oid for path in paths], limit
        )

    async def changes(self, base_sha: str, commit_sha: str) -> list[Change]:
        """Return the changes from `base_sha` to `commit_sha`, with content."""
        old = {entry.path: entry for entry in await self.entries(base_sha)}
        new = {entry.path: entry for entry in await self.entries(commit_sha)}
        deletions = [
            Change(path, entry.mode, None) for path, entry in old.items() if path not in new
        ]
        written = [
            entry
            for path, entry in new.items()
            if path not in old or old[path].content != entry.content
        ]
        blobs = await asyncio.to_thread(
            read_blobs, self._git, self.path, [entry.oid for entry in written], 0
        )
        writes = [
            Change(entry.path, entry.mode, blob) for entry, blob in zip(written, blobs, strict=True)
        ]
        return sorted([*deletions, *writes], key=lambda change: change.path)

    async def contents(self, sha: str) -> list[Change]:
        """Return every file of a commit."""
        entries = await self.entries(sha)
        blobs = await asyncio.to_thread(
            read_blobs, self._git, self.path, [entry.oid for entry in entries], 0
        )
        return [
            Change(entry.path, entry.mode, blob) for entry, blob in zip(entries, blobs, strict=True)
        ]

    async def merge(self, base_sha: str, ours: str, theirs: str, message: str) -> Patch:
        """Commit the merge of two commits, with both as parents. Raises `MergeConflict` with the
        conflicting sections.
        """
        result = await self._git.call(
            "merge-tree",
            "--write-tree",
            "-z",
            "--name-only",
            "--no-messages",
            _check_sha(ours),
            _check_sha(theirs),
            cwd=self.path,
        )
        tree, *conflicting_names = result.out.decode(errors="replace").split("\0")
        if result.status == 1 and conflicting_names:
            names = sorted({name for name in conflicting_names if name})[:_SHOWN_CONFLICTS]
            raise MergeConflict(
                "both sides changed the same lines, and nothing was merged: "
                f"{', '.join(names)}{await self._conflicts(tree, names)}"
            )
        if result.status:
            raise RepositoryError(
                f"the commits cannot be merged (git 2.38 or newer is needed): {result.reason}"
            )
        return await self._record(base_sha, tree, (ours, theirs), message)

    async def _conflicts(self, tree: str, names: Sequence[str]) -> str:
        """Return the conflicting sections in the files of a tree with conflict markers, cut to
        `_CONFLICT_CHARS`.
        """
        conflicts: list[str] = []
        for name in names:
            result = await self.call("cat-file", "blob", f"{_check_sha(tree)}:{name}")
            sections = (
                _CONFLICT.findall(result.out[:_CONFLICT_FILE_BYTES].decode(errors="replace"))
                if not result.status
                else []
            )
            conflicts += [f"\n{name}:\n{section}" for section in sections]
        return "".join(conflicts)[:_CONFLICT_CHARS]

    async def ignored(self, base_sha: str, new: NewPaths) -> dict[str, str]:
        """Return the new paths of a work tree of `base_sha` that its .gitignore files ignore: path
        → rule.
        """
        lists = dict(await self._base_lists(base_sha, ".gitignore"))
        for path, text in new.lists.items():
            lists.pop(path, None)
            if text is not None and not patch_rules.invalid_path_reason(path):
                lists[path] = text[:LIST_BYTES]
        return await ignored_paths(
            self._git, self.path, lists, [*new.folders, *new.files], new.folders
        )

    async def commit_changes(
        self,
        base_sha: str,
        changes: Sequence[Change],
        message: str,
        *,
        parent: str = "",
        ignored: Mapping[str, str] | None = None,
    ) -> Patch:
        """Commit `changes`, relative to the tree of `base_sha`, on top of `parent` (default: the
        base).

        The same input gives the same sha. Build leftovers and ignored files are left out unless the
        base has them. If nothing is left, return the base with an empty diff.

        ignored: new files that are left out already, with the rules that ignore them; None to ask
        git.

        Raises `PatchRefused`.
        """
        old = {entry.path: entry for entry in await self.entries(base_sha)}
        included = [
            change
            for change in changes
            if change.path in old or not patch_rules.matches(patch_rules.LEFT_OUT, change.path)
        ]
        if ignored is None:
            included, ignored = await self._drop_ignored(base_sha, old, included)
        patch_rules.check_submodules(
            await self.submodules(base_sha), [change.path for change in included]
        )
        patch_rules.check_changes([raw_change(change, old) for change in included])
        writes = [change for change in included if change.content is not None]
        oids = await self._store_blobs([change.content or b"" for change in writes])
        lines = [
            f"0 {'0' * 40}\t{change.path}"
            for change in included
            if change.content is None and change.path in old
        ]
        lines += [
            f"{change.mode} {oid}\t{change.path}" for change, oid in zip(writes, oids, strict=True)
        ]
        async with self._index(base_sha) as env:
            listing = "".join(f"{line}\0" for line in lines).encode()
            await self._run_or_refuse(
                "update-index",
                "--add",
                "--remove",
                "--replace",
                "-z",
                "--index-info",
                stdin=listing,
                env=env,
            )
            return replace(
                await self._commit(base_sha, parent or base_sha, message, env), ignored=ignored
            )

    async def _store_blobs(self, contents: Sequence[bytes]) -> Sequence[str]:
        """Store the contents of files, and return their ids."""
        if not contents:
            return []
        with scratch() as folder:
            paths = [folder / str(number) for number in range(len(contents))]
            await asyncio.to_thread(_write_all, paths, contents)
            listing = "".join(f"{path}\n" for path in paths).encode()
            output = await self._run_git(
                "hash-object", "-w", "--no-filters", "--stdin-paths", stdin=listing
            )
        return output.decode().split()

    async def commit_without(self, sha: str, paths: Sequence[str]) -> str:
        """Commit the tree of a commit without some of its files, with no parent, and return the new
        sha. The same input gives the same sha.
        """
        index_info = "".join(f"0 {'0' * 40}\t{path}\0" for path in paths)
        async with self._index(sha) as env:
            await self._run_git(
                "update-index", "--remove", "-z", "--index-info", stdin=index_info.encode(), env=env
            )
            tree = (await self._run_git("write-tree", env=env)).strip().decode()
        date = await self._commit_date(sha)
        output = await self._run_git(
            "commit-tree",
            tree,
            "-m",
            "The base, without hidden tests",
            env={**_IDENTITY, "GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date},
        )
        commit_sha = output.strip().decode()
        await self._run_git("update-ref", f"refs/moothall/bases/{commit_sha}", commit_sha)
        return commit_sha

    async def find_base(self, commit_sha: str, base_sha: str) -> str:
        """Return the base of a commit: `base_sha`, or the commit that `commit_without` derived from
        it.
        """
        shas = _check_sha(base_sha), _check_sha(commit_sha)
        if not (await self.call("merge-base", "--is-ancestor", *shas)).status:
            return base_sha
        roots = (await self.call("rev-list", "--max-parents=0", shas[1])).out.decode().split()
        return roots[0] if len(roots) == 1 and await self.has(roots[0]) else base_sha

    async def apply(
        self, base_sha: str, diff: str, message: str = "", merged: Sequence[str] = ()
    ) -> Patch:
        """Apply a git diff to the base and commit it. Raises `PatchRefused` if it does not apply or
        is not allowed.

        `merged` are further parents: the commits whose work the diff combines.
        """
        raw = diff.encode(errors="surrogateescape")
        if len(raw) > patch_rules.MAX_PATCH_BYTES:
            raise PatchRefused(
                f"the patch has {len(raw)} bytes; at most {patch_rules.MAX_PATCH_BYTES} are "
                "allowed."
            )
        patch_rules.check_binaries(raw)
        for _ in range(ATTEMPTS - 1):
            # Git was killed, so the index may or may not have the patch: retry with a new one.
            with suppress(WorkspaceFailed):
                return await self._apply_patch(base_sha, raw, message, merged)
        return await self._apply_patch(base_sha, raw, message, merged)

    async def _apply_patch(
        self, base_sha: str, raw: bytes, message: str, merged: Sequence[str]
    ) -> Patch:
        async with self._index(base_sha) as env:
            if raw.strip():
                await self._run_or_refuse(
                    "apply",
                    "--cached",
                    "--whitespace=nowarn",
                    "-",
                    stdin=raw,
                    env=env,
                    caps=OutputCaps(memory_bytes=_APPLY_MEMORY_BYTES),
                )
            return await self._commit(base_sha, base_sha, message, env, merged)

    async def diff(self, base_sha: str, commit_sha: str) -> str:
        """Return the git diff between two commits, in the form that `apply` takes. Files that are
        not UTF-8 are binary in it.
        """
        shas = _check_sha(base_sha), _check_sha(commit_sha)
        replaces = replaces_folder(await self.files(base_sha), await self.files(commit_sha))
        # If a folder replaces a file or the reverse, git applies the diff only if the deletions
        # come first.
        filters = ("--diff-filter=D", "--diff-filter=d") if replaces else ("",)
        return "".join(
            [await diff_between(self._run_git, *shas, diff_filter) for diff_filter in filters]
        )

    async def history(self, sha: str, limit: int) -> list[Commit]:
        """Return at most `limit` commits from `sha` back along first parents, newest first."""
        fields = "%H%x00%an%x00%cI%x00%s"
        out = await self._run_git(
            "log",
            "-z",
            "--first-parent",
            f"--max-count={limit}",
            f"--format={fields}",
            "--no-show-signature",
            _check_sha(sha),
        )
        values = out.decode(errors="replace").rstrip("\0").split("\0")
        return [Commit(*values[start : start + 4]) for start in range(0, len(values) - 3, 4)]

    async def _commit(
        self,
        base_sha: str,
        parent: str,
        message: str,
        env: Mapping[str, str],
        merged: Sequence[str] = (),
    ) -> Patch:
        tree = (await self._run_git("write-tree", env=env)).strip().decode()
        parent_tree = await self._run_git("rev-parse", f"{_check_sha(parent)}^{{tree}}")
        if tree != parent_tree.strip().decode():
            return await self._record(base_sha, tree, (parent, *merged), message)
        if parent == base_sha:
            return Patch(base_sha, base_sha, "")
        return await self._store_patch(base_sha, parent)

    async def _record(
        self, base_sha: str, tree: str, parents: Sequence[str], message: str
    ) -> Patch:
        date = await self._commit_date(base_sha)
        text = message.replace("\0", "").strip()[:_MESSAGE_CHARS] or "Change made in a workspace"
        dates = {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
        parent_arguments = [argument for parent in parents for argument in ("-p", parent)]
        out = await self._run_git(
            "commit-tree",
            tree,
            *parent_arguments,
            "-F",
            "-",
            stdin=f"{text}\n".encode(errors="replace"),
            env={**_IDENTITY, **dates},
        )
        return await self._store_patch(base_sha, out.strip().decode())

    async def _commit_date(self, sha: str) -> str:
        output = await self._run_git(
            "log", "-1", "--format=%ct +0000", "--no-show-signature", _check_sha(sha)
        )
        return output.strip().decode()

    async def _store_patch(self, base_sha: str, commit_sha: str) -> Patch:
        """Check the changes of a new commit, then give it a ref and return it as a patch."""
        try:
            new = {entry.path: entry for entry in await self.entries(commit_sha)}
        except RepositoryError as error:
            raise PatchRefused(
                f"the patch creates a tree that cannot be used: {error.message}."
            ) from error
        old = {entry.path: entry for entry in await self.entries(base_sha)}
        if await self.submodules(commit_sha) != await self.submodules(base_sha):
            raise PatchRefused("the patch may not change which commits the submodules are at.")
        paths = [
            path
            for path in sorted({*old, *new})
            if file_identity(old.get(path)) != file_identity(new.get(path))
        ]
        patch_rules.check_changes(
            [raw_change_between(path, old.get(path), new.get(path)) for path in paths]
        )
        old_links, new_links = (
            {path: entry.target for path, entry in tree.items() if entry.target}
            for tree in (old, new)
        )
        patch_rules.check_links(old_links, new_links)
        if collisions := colliding_links(new.values()) - colliding_links(old.values()):
            raise PatchRefused(
                f"the patch may not create the symlink {min(collisions)[:200]!r}: a folder has the "
                "same name except for case."
            )
        text = await self.diff(base_sha, commit_sha)
        size = len(text.encode())
        if size > patch_rules.MAX_PATCH_BYTES:
            raise PatchRefused(
                f"the patch has {size} bytes; at most {patch_rules.MAX_PATCH_BYTES} are allowed."
            )
        await self._run_git("update-ref", f"refs/moothall/patches/{commit_sha}", commit_sha)
        return Patch(
            base_sha,
            commit_sha,
            text,
            tuple(paths),
            tuple(path for path in paths if patch_rules.is_test(path)),
        )

    async def _drop_ignored(
        self, base_sha: str, old: Mapping[str, TreeEntry], changes: Sequence[Change]
    ) -> tuple[list[Change], dict[str, str]]:
        """Return the changes without ignored new files, and the ignored ones: path → rule."""
        patch_rules.check_changes(
            [patch_rules.RawChange(change.path) for change in changes],
            patch_rules.ChangeLimits(files=len(changes)),
        )
        new_paths = [
            change.path
            for change in changes
            if change.path not in old and change.content is not None
        ]
        lists = await self._lists(base_sha, ".gitignore", changes)
        ignored = await ignored_paths(self._git, self.path, lists, new_paths)
        return [change for change in changes if change.path not in ignored], ignored

    @asynccontextmanager
    async def _index(self, sha: str) -> AsyncIterator[Mapping[str, str]]:
        """Yield the environment of a temporary index that holds the tree of `sha`."""
        await self.entries(sha)
        with scratch() as folder:
            env = {"GIT_INDEX_FILE": str(folder / "index")}
            await self._run_git("read-tree", _check_sha(sha), env=env)
            yield env

    async def _run_git(
        self, *args: str, stdin: bytes = b"", env: Mapping[str, str] | None = None
    ) -> bytes:
        return await self._git.run(*args, cwd=self.path, stdin=stdin, env=env)

    async def _run_or_refuse(
        self, *args: str, stdin: bytes, env: Mapping[str, str], caps: OutputCaps = _NO_CAPS
    ) -> None:
        result = await self._git.call(*args, cwd=self.path, stdin=stdin, env=env, caps=caps)
        if result.status:
            raise PatchRefused(f"the patch does not apply: {result.reason}.")


def _check_sha(sha: str) -> str:
    if not _SHA.fullmatch(sha):
        raise RepositoryError(f"{sha[:80]!r} is not a full commit id")
    return sha


def _convert(change: Change, convert: Callable[[bytes], bytes]) -> Change:
    if change.content is None or change.mode == patch_rules.SYMLINK:
        return change
    return replace(change, content=convert(change.content))


def _write_all(paths: Sequence[Path], contents: Sequence[bytes]) -> None:
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
