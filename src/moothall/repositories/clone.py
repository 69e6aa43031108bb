"""The trusted side's bare clone of a repository: commits go in, plain trees and patches come out.

Repositories are hostile data. Git never checks anything out here: blobs are written by us, so no
filter runs.
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
from moothall.repositories import patch_rules
from moothall.repositories.changes import NewPaths
from moothall.repositories.conversion import Conversion, asks_for_conversion
from moothall.repositories.diffs import diff_between
from moothall.repositories.gitcmd import (
    TRIES,
    FetchTooLarge,
    GitAnswer,
    GitRunner,
    OutputCaps,
    over_limit,
)
from moothall.repositories.objects import (
    LIST_BYTES,
    Change,
    Commit,
    TreeEntry,
    colliding_links,
    content_of,
    find_conversions,
    ignored_paths,
    raw_change,
    raw_entry,
    read_blobs,
    read_tree,
    replaces_folder,
    write_files,
)
from moothall.repositories.scratch import scratch

_SHA = re.compile(r"[0-9a-f]{40}")
_MESSAGE_CHARS = 10_000
_SHOWN = 10
_APPLY_MEMORY = 4_000_000_000
_DISPUTED = re.compile(r"^<{7} .*?^>{7} .*?$", re.MULTILINE | re.DOTALL)
_CONFLICT_CHARS, _CONFLICT_BYTES = 4_000, 1_000_000
_NO_CAPS = OutputCaps()
_TREES_KEPT = 16  # a few commits are in use at a time
_PARTIAL = re.compile(r"promisor|lazy fetching disabled")
_WHO = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "Moothall"), ("EMAIL", "moothall@localhost"))
}


class TrustedClone:
    """A bare repository at `path`, made on first use. Its commits stay reachable under
    refs/moothall/.
    """

    def __init__(self, path: Path, settings: Settings, runner: GitRunner | None = None) -> None:
        self.path = path
        self._settings = settings
        self._git = runner or GitRunner(path.parent, settings.git_seconds)
        self._read_lists: dict[tuple[str, str], Mapping[str, bytes]] = {}
        self._trees: dict[str, tuple[tuple[TreeEntry, ...], Mapping[str, str]]] = {}
        self._limits = patch_rules.ChangeLimits(
            files=settings.max_patch_files,
            file_bytes=settings.max_file_bytes,
            total_bytes=4 * settings.max_file_bytes,
        )

    async def make(self) -> None:
        """Make the empty bare repository where there is none yet, whole or not at all: others may
        make it in the same moment.
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
                    f"no clone can be made at {self.path}: {error.strerror}"
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
        """Bring the commit that `ref` (a full ref name or sha) names at `source` here and return
        its sha.

        `tags` brings those of its history too. `protocols` are the transports that git may use,
        joined by ':'; `env` may carry credentials. Raises `RepositoryError`.
        """
        await self.make()
        landing = f"refs/moothall/fetch/{secrets.token_hex(8)}"
        answer = await self._git.call(
            "fetch",
            "--quiet",
            *(() if tags else ("--no-tags",)),
            "--no-write-fetch-head",
            "--no-recurse-submodules",
            "--update-shallow",
            "--",
            source,
            f"+{ref}:{landing}",
            cwd=self.path,
            env={"GIT_ALLOW_PROTOCOL": protocols, **(env or {})},
            seconds=self._settings.setup_seconds,
            caps=OutputCaps(file_bytes=self._settings.max_repository_bytes),
        )
        if answer.status:
            failed = f"cannot fetch {ref!r} from {source!r}: {answer.reason}"
            if over_limit(answer.err):
                raise FetchTooLarge(
                    f"{failed} (a repository may have at most "
                    f"{self._settings.max_repository_bytes} bytes)"
                )
            if _PARTIAL.search(answer.err):
                bring = (
                    f". Fetch them: git -C {shlex.quote(source)} fetch --refetch --no-filter"
                    if source.startswith("/")
                    else ""
                )
                raise RepositoryError(
                    f"cannot fetch {ref!r} from {source!r}: it is a partial clone, and lacks "
                    f"objects of that commit or of its history{bring}"
                )
            raise RepositoryError(failed)
        try:
            sha = (
                (
                    await self._run(
                        "rev-parse", "--verify", "--end-of-options", f"{landing}^{{commit}}"
                    )
                )
                .strip()
                .decode()
            )
            await self._run("update-ref", f"refs/moothall/bases/{sha}", sha)
        finally:
            await self._run("update-ref", "-d", landing)
        return sha

    async def has(self, sha: str) -> bool:
        """Whether the commit was fetched or made here."""
        if not _SHA.fullmatch(sha) or not (self.path / "HEAD").exists():
            return False
        for kind in ("bases", "patches"):
            answer = await self._git.call(
                "rev-parse", "--verify", "--quiet", f"refs/moothall/{kind}/{sha}", cwd=self.path
            )
            if not answer.status:
                return True
        return False

    async def prune(self, keep: AbstractSet[str]) -> int:
        """Forget the patches whose commits are not in `keep`, and drop objects that nothing names
        and that are a day old.

        Returns how many patches were forgotten. One that is being worked on is made again where it
        is needed.
        """
        listed = await self._run("for-each-ref", "--format=%(objectname)", "refs/moothall/patches/")
        gone = [sha for sha in listed.decode().split() if sha not in keep]
        if gone:
            orders = "".join(f"delete refs/moothall/patches/{sha} {sha}\n" for sha in gone)
            await self._run("update-ref", "--stdin", stdin=orders.encode())
        await self._run("prune", "--expire=1.day.ago")
        return len(gone)

    async def files(self, sha: str) -> tuple[str, ...]:
        """Return the paths of a commit in git's order, without odd names. Raises `RepositoryError`
        for an unusable tree.
        """
        return tuple(entry.path for entry in await self.entries(sha) if not entry.oddity)

    async def entries(self, sha: str) -> tuple[TreeEntry, ...]:
        """Return the checked tree of a commit: mode, object, size and path of each file, odd names
        included.
        """
        return (await self._tree(sha))[0]

    async def submodules(self, sha: str) -> Mapping[str, str]:
        """Return the submodules of a commit: path → the commit that is recorded."""
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
            while len(self._trees) >= _TREES_KEPT:
                self._trees.pop(next(iter(self._trees)))
            files = tuple(entry for entry in entries if entry.mode != patch_rules.SUBMODULE)
            self._trees[sha] = (
                files,
                {entry.path: entry.oid for entry in entries if entry.mode == patch_rules.SUBMODULE},
            )
        return self._trees[sha]

    async def checkout(self, sha: str, dest: Path) -> int:
        """Write the commit's files, with modes and symlinks, below `dest`, which must be empty or
        absent.

        Return how many files are left out because the file system cannot hold them.
        """
        entries = await self.entries(sha)
        conversions = await self._conversions(sha, [entry.path for entry in entries])
        seconds = self._settings.setup_seconds
        return await asyncio.to_thread(
            write_files, self._git, self.path, entries, dest, seconds, conversions=conversions
        )

    async def smudge(self, sha: str, changes: Sequence[Change]) -> list[Change]:
        """Return changes to `sha` in the form of a work tree: with the line ends and encodings of
        its attributes.
        """
        made = await self._conversions(sha, [change.path for change in changes], changes)
        return [
            _converted(change, made[change.path].smudge) if change.path in made else change
            for change in changes
        ]

    async def clean(self, sha: str, changes: Sequence[Change]) -> list[Change]:
        """Return changes of a work tree of `sha` in the form that git stores."""
        paths = [change.path for change in changes]
        crlf = any(b"\r\n" in (change.content or b"") for change in changes)
        made = await self._conversions(sha, paths, changes, all_kinds=crlf)
        there = (
            {entry.path: entry for entry in await self.entries(sha) if entry.path in made}
            if made
            else {}
        )
        blobs = await asyncio.to_thread(
            read_blobs, self._git, self.path, [entry.oid for entry in there.values()], 0
        )
        before = dict(zip(there, blobs, strict=True))
        return [
            _converted(
                change, partial(made[change.path].clean, before=before.get(change.path, b""))
            )
            if change.path in made
            else change
            for change in changes
        ]

    async def _conversions(
        self,
        sha: str,
        paths: Sequence[str],
        changes: Sequence[Change] = (),
        *,
        all_kinds: bool = False,
    ) -> dict[str, Conversion]:
        """Return the conversions of `paths` whose checkout differs; with `all_kinds`, also those
        that only storing converts.
        """
        lists = await self._lists(sha, ".gitattributes", changes)
        if not (lists if all_kinds else asks_for_conversion(lists.values())):
            return {}
        found = await find_conversions(self._git, self.path, lists, paths)
        return {path: how for path, how in found.items() if all_kinds or how.on_checkout}

    async def _lists(self, sha: str, name: str, changes: Sequence[Change]) -> dict[str, bytes]:
        """Return all files called `name` (.gitignore, .gitattributes) of a commit with `changes`:
        path → content.
        """
        found = dict(await self._lists_of(sha, name))
        for change in changes:
            if change.path.rpartition("/")[2] == name and not patch_rules.why_path(change.path):
                found.pop(change.path, None)
                if change.content is not None and change.mode != patch_rules.SYMLINK:
                    found[change.path] = change.content[:LIST_BYTES]
        return found

    async def _lists_of(self, sha: str, name: str) -> Mapping[str, bytes]:
        if (sha, name) not in self._read_lists:
            lists = [
                entry
                for entry in await self.entries(sha)
                if entry.path.rpartition("/")[2] == name
                and entry.mode != patch_rules.SYMLINK
                and not entry.oddity
            ]
            texts = await asyncio.to_thread(
                read_blobs, self._git, self.path, [entry.oid for entry in lists], LIST_BYTES
            )
            while len(self._read_lists) >= 2 * _TREES_KEPT:
                self._read_lists.pop(next(iter(self._read_lists)))
            self._read_lists[sha, name] = {
                entry.path: text for entry, text in zip(lists, texts, strict=True)
            }
        return self._read_lists[sha, name]

    async def ask(self, *args: str) -> GitAnswer:
        """Return what a git command says here that changes nothing."""
        return await self._git.call(*args, cwd=self.path)

    async def read(self, sha: str, path: str, limit: int) -> bytes:
        """Return at most `limit` bytes of a file (a symlink's target for a symlink). Raises
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
        """Return what `commit_sha` changes against `base_sha`, with content."""
        old = {entry.path: entry for entry in await self.entries(base_sha)}
        new = {entry.path: entry for entry in await self.entries(commit_sha)}
        gone = [Change(path, entry.mode, None) for path, entry in old.items() if path not in new]
        there = [
            entry
            for path, entry in new.items()
            if path not in old or old[path].content != entry.content
        ]
        blobs = await asyncio.to_thread(
            read_blobs, self._git, self.path, [entry.oid for entry in there], 0
        )
        kept = [
            Change(entry.path, entry.mode, blob) for entry, blob in zip(there, blobs, strict=True)
        ]
        return sorted([*gone, *kept], key=lambda change: change.path)

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
        """Commit what both came to, on top of both. Raises `MergeConflict` that shows where they
        disagree.
        """
        answer = await self._git.call(
            "merge-tree",
            "--write-tree",
            "-z",
            "--name-only",
            "--no-messages",
            _check_sha(ours),
            _check_sha(theirs),
            cwd=self.path,
        )
        tree, *disputed = answer.out.decode(errors="replace").split("\0")
        if answer.status == 1 and disputed:
            names = sorted({name for name in disputed if name})[:_SHOWN]
            raise MergeConflict(
                "both sides changed the same lines, and nothing was merged: "
                f"{', '.join(names)}{await self._conflicts(tree, names)}"
            )
        if answer.status:
            raise RepositoryError(
                f"the commits cannot be merged (git 2.38 or newer is needed): {answer.reason}"
            )
        return await self._record(base_sha, tree, (ours, theirs), message)

    async def _conflicts(self, tree: str, names: Sequence[str]) -> str:
        """Return what disagrees in the files of a tree with conflict markers, cut to
        `_CONFLICT_CHARS`.
        """
        found: list[str] = []
        for name in names:
            answer = await self.ask("cat-file", "blob", f"{_check_sha(tree)}:{name}")
            parts = (
                _DISPUTED.findall(answer.out[:_CONFLICT_BYTES].decode(errors="replace"))
                if not answer.status
                else []
            )
            found += [f"\n{name}:\n{part}" for part in parts]
        return "".join(found)[:_CONFLICT_CHARS]

    async def ignored(self, base_sha: str, new: NewPaths) -> dict[str, str]:
        """Return which new paths of a work tree of `base_sha` its .gitignore files ignore: path →
        rule.
        """
        lists = dict(await self._lists_of(base_sha, ".gitignore"))
        for path, text in new.lists.items():
            lists.pop(path, None)
            if text is not None and not patch_rules.why_path(path):
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

        The same input gives the same sha. Build leftovers and ignored files stay out unless the
        base has them. `ignored`: those that are left out already, with their rules; without, git is
        asked. Nothing left → the base itself with an empty diff. Raises `PatchRefused`.
        """
        old = {entry.path: entry for entry in await self.entries(base_sha)}
        kept = [
            change
            for change in changes
            if change.path in old or not patch_rules.matches(patch_rules.LEFT_OUT, change.path)
        ]
        if ignored is None:
            kept, ignored = await self._not_ignored(base_sha, old, kept)
        patch_rules.check_outside(await self.submodules(base_sha), [change.path for change in kept])
        patch_rules.check_changes([raw_change(change, old) for change in kept], self._limits)
        there = [change for change in kept if change.content is not None]
        with scratch() as folder:
            paths = [folder / str(number) for number in range(len(there))]
            await asyncio.to_thread(_write_all, paths, [change.content or b"" for change in there])
            listing = "".join(f"{path}\n" for path in paths).encode()
            out = (
                await self._run("hash-object", "-w", "--no-filters", "--stdin-paths", stdin=listing)
                if there
                else b""
            )
        oids = out.decode().split()
        lines = [
            f"0 {'0' * 40}\t{change.path}"
            for change in kept
            if change.content is None and change.path in old
        ]
        lines += [
            f"{change.mode} {oid}\t{change.path}" for change, oid in zip(there, oids, strict=True)
        ]
        async with self._index(base_sha) as env:
            listing = "".join(f"{line}\0" for line in lines).encode()
            await self._refusable(
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

    async def commit_without(self, sha: str, paths: Sequence[str]) -> str:
        """Commit the tree of a commit without some of its files, with no parent; return the new
        commit. The same input gives the same one.
        """
        orders = "".join(f"0 {'0' * 40}\t{path}\0" for path in paths)
        async with self._index(sha) as env:
            await self._run(
                "update-index", "--remove", "-z", "--index-info", stdin=orders.encode(), env=env
            )
            tree = (await self._run("write-tree", env=env)).strip().decode()
        date = (
            (
                await self._run(
                    "log", "-1", "--format=%ct +0000", "--no-show-signature", _check_sha(sha)
                )
            )
            .strip()
            .decode()
        )
        dates = {**_WHO, "GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
        made = (
            (
                await self._run(
                    "commit-tree", tree, "-m", "The base, without hidden tests", env=dates
                )
            )
            .strip()
            .decode()
        )
        await self._run("update-ref", f"refs/moothall/bases/{made}", made)
        return made

    async def begin_of(self, commit_sha: str, base_sha: str) -> str:
        """Return the base of a commit: `base_sha`, or what `commit_without` made of it."""
        shas = _check_sha(base_sha), _check_sha(commit_sha)
        if not (await self.ask("merge-base", "--is-ancestor", *shas)).status:
            return base_sha
        roots = (await self.ask("rev-list", "--max-parents=0", shas[1])).out.decode().split()
        return roots[0] if len(roots) == 1 and await self.has(roots[0]) else base_sha

    async def apply(
        self, base_sha: str, diff: str, message: str = "", merged: Sequence[str] = ()
    ) -> Patch:
        """Apply a git diff to the base and commit it; `merged` are commits whose work it is, its
        other parents. Raises `PatchRefused` where it doesn't apply or mayn't.
        """
        raw = diff.encode(errors="surrogateescape")
        cap = self._settings.max_patch_bytes
        if len(raw) > cap:
            raise PatchRefused(
                f"the patch has {len(raw)} bytes; at most {cap} (workspace.max_patch_bytes) are "
                "allowed."
            )
        patch_rules.check_binaries(raw, self._settings.max_file_bytes)
        for _ in range(TRIES - 1):
            with suppress(
                WorkspaceFailed
            ):  # git was killed, and the index may or may not have the patch: a fresh one
                return await self._apply_patch(base_sha, raw, message, merged)
        return await self._apply_patch(base_sha, raw, message, merged)

    async def _apply_patch(
        self, base_sha: str, raw: bytes, message: str, merged: Sequence[str]
    ) -> Patch:
        async with self._index(base_sha) as env:
            if raw.strip():
                await self._refusable(
                    "apply",
                    "--cached",
                    "--whitespace=nowarn",
                    "-",
                    stdin=raw,
                    env=env,
                    caps=OutputCaps(memory_bytes=_APPLY_MEMORY),
                )
            return await self._commit(base_sha, base_sha, message, env, merged)

    async def diff(self, base_sha: str, commit_sha: str) -> str:
        """Return the git diff between two commits, which `apply` takes; files that aren't UTF-8
        come as binary.
        """
        shas = _check_sha(base_sha), _check_sha(commit_sha)
        replaced = replaces_folder(await self.files(base_sha), await self.files(commit_sha))
        parts = (
            ("--diff-filter=D", "--diff-filter=d") if replaced else ("",)
        )  # git applies that only if it hears of the removals first
        return "".join([await diff_between(self._run, *shas, only) for only in parts])

    async def history(self, sha: str, limit: int) -> list[Commit]:
        """Return at most `limit` commits from `sha` back along first parents, newest first."""
        fields = "%H%x00%an%x00%cI%x00%s"
        out = await self._run(
            "log",
            "-z",
            "--first-parent",
            f"--max-count={limit}",
            f"--format={fields}",
            "--no-show-signature",
            _check_sha(sha),
        )
        words = out.decode(errors="replace").rstrip("\0").split("\0")
        return [Commit(*words[at : at + 4]) for at in range(0, len(words) - 3, 4)]

    async def _commit(
        self,
        base_sha: str,
        parent: str,
        message: str,
        env: Mapping[str, str],
        merged: Sequence[str] = (),
    ) -> Patch:
        tree = (await self._run("write-tree", env=env)).strip().decode()
        if (
            tree
            == (await self._run("rev-parse", f"{_check_sha(parent)}^{{tree}}")).strip().decode()
        ):
            return (
                await self._keep(base_sha, parent)
                if parent != base_sha
                else Patch(base_sha, base_sha, "")
            )
        return await self._record(base_sha, tree, (parent, *merged), message)

    async def _record(
        self, base_sha: str, tree: str, parents: Sequence[str], message: str
    ) -> Patch:
        date = (
            (
                await self._run(
                    "log", "-1", "--format=%ct +0000", "--no-show-signature", _check_sha(base_sha)
                )
            )
            .strip()
            .decode()
        )
        text = message.replace("\0", "").strip()[:_MESSAGE_CHARS] or "Change made in a workspace"
        dates = {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
        above = [word for parent in parents for word in ("-p", parent)]
        out = await self._run(
            "commit-tree",
            tree,
            *above,
            "-F",
            "-",
            stdin=f"{text}\n".encode(errors="replace"),
            env={**_WHO, **dates},
        )
        return await self._keep(base_sha, out.strip().decode())

    async def _keep(self, base_sha: str, commit_sha: str) -> Patch:
        """Check what a new commit really changes; only then give it a name and tell of it."""
        try:
            new = {entry.path: entry for entry in await self.entries(commit_sha)}
        except RepositoryError as error:
            raise PatchRefused(
                f"the patch makes a tree that can't be used: {error.message}."
            ) from error
        old = {entry.path: entry for entry in await self.entries(base_sha)}
        if await self.submodules(commit_sha) != await self.submodules(base_sha):
            raise PatchRefused("the patch may not change which commits the submodules are at.")
        paths = [
            path
            for path in sorted({*old, *new})
            if content_of(old.get(path)) != content_of(new.get(path))
        ]
        patch_rules.check_changes(
            [raw_entry(path, old.get(path), new.get(path)) for path in paths], self._limits
        )
        patch_rules.check_links(
            *(
                {path: entry.target for path, entry in tree.items() if entry.target}
                for tree in (old, new)
            )
        )
        if collisions := colliding_links(new.values()) - colliding_links(old.values()):
            raise PatchRefused(
                f"the patch may not create the symlink {min(collisions)[:200]!r}: a folder has the "
                "same name except for case."
            )
        text = await self.diff(base_sha, commit_sha)
        size = len(text.encode())
        if size > self._settings.max_patch_bytes:
            raise PatchRefused(
                f"the patch has {size} bytes; at most {self._settings.max_patch_bytes} "
                "(workspace.max_patch_bytes) are allowed."
            )
        await self._run("update-ref", f"refs/moothall/patches/{commit_sha}", commit_sha)
        return Patch(
            base_sha,
            commit_sha,
            text,
            tuple(paths),
            tuple(path for path in paths if patch_rules.is_test(path)),
        )

    async def _not_ignored(
        self, base_sha: str, old: Mapping[str, TreeEntry], changes: Sequence[Change]
    ) -> tuple[list[Change], dict[str, str]]:
        """Return the changes without ignored new files, and the ignored ones: path → rule."""
        patch_rules.check_changes(
            [patch_rules.RawChange(change.path) for change in changes],
            patch_rules.ChangeLimits(files=len(changes)),
        )
        fresh = [
            change.path
            for change in changes
            if change.path not in old and change.content is not None
        ]
        lists = await self._lists(base_sha, ".gitignore", changes)
        ignored = await ignored_paths(self._git, self.path, lists, fresh)
        return [change for change in changes if change.path not in ignored], ignored

    @asynccontextmanager
    async def _index(self, sha: str) -> AsyncIterator[Mapping[str, str]]:
        """Yield the environment of a throw-away index that holds the tree of `sha`."""
        await self.entries(sha)
        with scratch() as folder:
            env = {"GIT_INDEX_FILE": str(folder / "index")}
            await self._run("read-tree", _check_sha(sha), env=env)
            yield env

    async def _run(
        self, *args: str, stdin: bytes = b"", env: Mapping[str, str] | None = None
    ) -> bytes:
        return await self._git.run(*args, cwd=self.path, stdin=stdin, env=env)

    async def _refusable(
        self, *args: str, stdin: bytes, env: Mapping[str, str], caps: OutputCaps = _NO_CAPS
    ) -> None:
        answer = await self._git.call(*args, cwd=self.path, stdin=stdin, env=env, caps=caps)
        if answer.status:
            raise PatchRefused(f"the patch does not apply: {answer.reason}.")


def _check_sha(sha: str) -> str:
    if not _SHA.fullmatch(sha):
        raise RepositoryError(f"{sha[:80]!r} is not a full commit id")
    return sha


def _converted(change: Change, how: Callable[[bytes], bytes]) -> Change:
    plain = change.content is None or change.mode == patch_rules.SYMLINK
    return change if plain else replace(change, content=how(change.content or b""))


def _write_all(paths: Sequence[Path], contents: Sequence[bytes]) -> None:
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
