"""The trusted side of repositories: from a ref to a pinned base, and from a diff to a branch."""

from __future__ import annotations

import asyncio
import codecs
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from moothall.config import WorkspaceSettings as Settings
from moothall.domain.ids import digest
from moothall.domain.repository import Base, ChangeRange, MergeResult, Patch, Prepared
from moothall.domain.task import RepositoryRef
from moothall.errors import InvalidRequest, MoothallError, PatchRefused, Refused, RepositoryError
from moothall.repositories import delivery, patch_rules, sources
from moothall.repositories import delivery as merging
from moothall.repositories.checkout import Submodules
from moothall.repositories.clone import TrustedClone
from moothall.repositories.gitcmd import GIT_SECONDS, GitRunner
from moothall.repositories.history import LineOrigin, find_change, find_line_origin
from moothall.repositories.profile import CONFIG_FILE, TEXT_BYTES, Commands, read_profile, read_text
from moothall.repositories.registry import (
    Approval,
    Pin,
    PushPolicy,
    Registered,
    anonymous_transport,
    hide_reason,
    make_registered,
    open_registry,
    refuse_any,
    registered_transport,
)
from moothall.repositories.sources import Cloned, clone_public, fetch_commit
from moothall.sandbox_runtime.file_access import find_encoding

Prepare = Callable[[Base, Callable[[str], None] | None], Awaitable[Prepared]]
"""Prepares a base: checks it out, sets it up and runs its checks once."""
_SHA = re.compile(r"[0-9a-f]{40}")
_MOVE_ATTEMPTS = 3
"""How often a branch is moved to a merge if others move it at the same time."""


class RepositoryService:
    """Access to repositories: fetches them, prepares bases, and delivers commits.

    Clones are in `data_dir`/repos, records in `data_dir`/repositories.

    roots: folders whose repositories can be named by path without being registered.
    secrets: environment variables that the credential of a record may name.
    pin: checks the URLs of repositories that are not registered.
    """

    def __init__(
        self,
        data_dir: Path,
        settings: Settings,
        prepare: Prepare,
        *,
        roots: Sequence[Path] = (),
        secrets: Mapping[str, str] | None = None,
        pin: Pin = refuse_any,
        git_seconds: float = GIT_SECONDS,
    ) -> None:
        self.registry = open_registry(data_dir)
        self._clones = data_dir / "repos"
        self._settings = settings
        self._prepare = prepare
        self._roots = tuple(root.resolve() for root in (*settings.allowed_roots, *roots))
        self._secrets = secrets or {}
        self._pin = pin
        self._git = GitRunner(self._clones, git_seconds)
        self.fetch_missing: Callable[[str, str, str], Awaitable[None]] | None = None
        """Fetches a patch (repository, base, commit) from a host with another disk; None if there
        is no such host.
        """

    def clone(self, repository: str) -> TrustedClone:
        """Return the trusted clone of a repository id."""
        return self._clone(self.registry.find(repository))

    def _clone(self, entry: Registered) -> TrustedClone:
        return TrustedClone(self._clones / f"{entry.clone}.git", self._settings, self._git)

    async def register(
        self,
        origin: str,
        *,
        tenant: str = "local",
        id: str = "",  # noqa: A002 - the field's name in the record
        credential: str = "",
        push: PushPolicy | None = None,
        on_approval: Approval | None = None,
        base: str = "",
        commands: Commands | None = None,
    ) -> Registered:
        """Register a path or URL for the operator, who may name any. Arguments that are not given
        keep their recorded values.

        base: the branch that approved stories are merged into; by default the branch that is
        checked out in a local repository now.
        Raises `RepositoryError`, `InvalidRequest`, `Refused`, `AlreadyExists`.
        """
        if sources.is_url(origin):
            location = sources.check_url(origin, self._settings.allowed_schemes)
        else:
            path = await asyncio.to_thread(
                sources.check_path, origin, self._settings.allowed_schemes, None
            )
            location = str((await sources.find_local(self._git, path)).top)
        registered = await asyncio.to_thread(self.registry.of_origin, location, tenant)
        if registered and id not in {"", registered.id}:
            registered = None
        registered_fields = dict(registered) if registered else {}
        arguments = {
            "id": id,
            "on_approval": on_approval,
            "base": base,
            "credential": credential,
            "push": push,
            "commands": commands,
        }
        fields: dict[str, Any] = {
            name: value or registered_fields.get(name, "") for name, value in arguments.items()
        }
        if fields["on_approval"] == "merge":
            fields["base"] = await self._base(location, fields["base"])
        entry = make_registered(location, tenant=tenant, **fields)
        if entry.push == "local-branch" and not entry.local:
            raise InvalidRequest(
                "a URL's push policy is 'push' or 'none'; only a local repository gets a branch"
            )
        await asyncio.to_thread(self.registry.add, entry)
        return entry

    async def _base(self, location: str, branch: str) -> str:
        """Return the branch into which approved stories are merged. Raises `InvalidRequest`,
        `RepositoryError`.
        """
        if branch:
            return sources.check_ref(branch)
        if sources.is_url(location):
            raise InvalidRequest(
                "the branch that approved stories are merged into is missing; name it with --base, "
                "such as --base main"
            )
        local = await sources.find_local(self._git, Path(location))
        head = await self._git.call(
            f"--git-dir={local.git_dir}", "symbolic-ref", "--short", "HEAD", cwd=local.git_dir
        )
        if head.status:
            raise InvalidRequest(
                f"no branch is checked out in {location!r}; name the one that approved stories are "
                "merged into with --base"
            )
        return head.out.decode().strip()

    async def with_profile(self, entry: Registered, commands: Commands) -> Registered:
        """Register a variant of `entry` with other commands. The id is derived from the commands,
        so the same commands give the same variant.
        """
        variant_id = f"{entry.id[:80]}-{digest(commands.model_dump_json())[:12]}"
        variant = entry.model_copy(
            update={"id": variant_id, "of": entry.clone, "commands": commands}
        )
        await asyncio.to_thread(self.registry.add, variant)
        return variant

    async def resolve(self, ref: RepositoryRef, *, tenant: str = "local") -> Base:
        """Fetch and pin a commit.

        A full commit id that was pinned before is read from the clone, even if the origin is gone.
        Raises `RepositoryError`, `NotFound`, `Refused`, `InvalidRequest`.
        """
        entry = await self._entry(ref, tenant)
        clone = self._clone(entry)
        pinned = _SHA.fullmatch(ref.ref) is not None and await clone.has(ref.ref)
        sha = ref.ref if pinned else await self._fetch(clone, entry, ref.ref)
        uncommitted_config, notes = await self._read_uncommitted_config(clone, entry, sha)
        if not pinned:
            notes += await self._fetch_submodules(clone, entry, sha)
        profile = await read_profile(
            clone,
            sha,
            entry.commands,
            uncommitted_config=uncommitted_config,
        )
        return Base(
            entry.id, sha, replace(profile, notes=(*profile.notes, *notes)), origin=entry.origin
        )

    async def resolve_change(
        self, ref: RepositoryRef, head: str, *, tenant: str = "local"
    ) -> ChangeRange:
        """Fetch the commits of `head` that `ref` lacks, and return them from their merge base.

        Raises `InvalidRequest` if nothing would change, and the errors of `resolve`.
        """
        entry = await self._entry(ref, tenant)
        clone = self._clone(entry)
        tip = await self._fetch(clone, entry, ref.ref)
        head_sha = await self._fetch(clone, entry, head)
        change = await find_change(clone, entry.id, tip=tip, head=head_sha)
        await self._fetch_submodules(clone, entry, change.base_sha)
        return change

    async def _read_uncommitted_config(
        self, clone: TrustedClone, entry: Registered, sha: str
    ) -> tuple[str | None, tuple[str, ...]]:
        """Return the configuration file in the work tree of a local repository, and a note on it.

        Return (None, ()) if it equals the committed file, or if the work tree may not be read.
        """
        if not entry.local or not (
            entry.listed or any(Path(entry.origin).is_relative_to(root) for root in self._roots)
        ):
            return None, ()
        text = await asyncio.to_thread(read_text, Path(entry.origin, CONFIG_FILE))
        committed = (
            (await clone.read(sha, CONFIG_FILE, TEXT_BYTES)).decode(errors="replace")
            if CONFIG_FILE in await clone.files(sha)
            else None
        )
        if text is None or text == committed:
            return None, ()
        differs = "is not committed" if committed is None else "differs from the commit's"
        return text, (f"{CONFIG_FILE} in the work tree {differs}; it is used as it is",)

    async def _fetch_submodules(
        self, clone: TrustedClone, entry: Registered, sha: str
    ) -> tuple[str, ...]:
        if not await clone.submodules(sha):
            return ()
        modules = (
            (await sources.find_local(self._git, Path(entry.origin))).shared / "modules"
            if entry.local
            else None
        )
        return await Submodules(
            self._git, clone, entry, self._settings, secrets=self._secrets, pin=self._pin
        ).fetch(sha, modules)

    async def prepare(
        self, base: Base, on_progress: Callable[[str], None] | None = None
    ) -> Prepared:
        """Check out a base, set it up, and run its checks once.

        Tests that its profile hides are not checked out; they are returned in `hidden`.
        """
        base, hidden = await self._hide_tests(base)
        return replace(await self._prepare(base, on_progress), hidden=hidden)

    async def _hide_tests(self, base: Base) -> tuple[Base, Mapping[str, str]]:
        """Return a base without the tests that its profile hides, and their texts by path.

        The new base is a commit without parents, because its history would contain the tests.
        Raises `RepositoryError`.
        """
        if not base.profile.hidden:
            return base, {}
        clone = self.clone(base.repository)
        hidden = [
            path
            for path in await clone.files(base.sha)
            if patch_rules.matches(base.profile.hidden, path)
        ]
        if not hidden:
            return base, {}
        texts = [
            blob.decode(errors="surrogateescape")
            for blob in await clone.read_all(base.sha, hidden, 0)
        ]
        return replace(base, sha=await clone.commit_without(base.sha, hidden)), dict(
            zip(hidden, texts, strict=True)
        )

    async def read(self, base: Base, path: str, limit: int = 65536) -> str:
        """Return a text file of the base commit, at most `limit` characters. Raises `NotFound`."""
        # A character has at most 4 bytes.
        raw = await self.clone(base.repository).read(base.sha, path, 4 * limit)
        return _text_of(raw, is_complete=len(raw) < 4 * limit)[:limit]

    async def paths(self, repository: str, ref: str, *, tenant: str) -> tuple[str, tuple[str, ...]]:
        """Return the sha of a commit of a registered repository and the paths of its files.

        `ref` is a branch, tag or commit id; empty means the newest commit of the default branch.
        Raises `NotFound`, `RepositoryError`, `InvalidRequest`.
        """
        clone, sha = await self._pin_ref(repository, ref, tenant)
        return sha, await clone.files(sha)

    async def text(self, repository: str, sha: str, path: str, *, tenant: str) -> str:
        """Return a text file of a commit that `paths` returned. Raises `NotFound`, and
        `InvalidRequest` for binary and large files.
        """
        clone, sha = await self._pin_ref(repository, sha, tenant)
        raw = await clone.read(sha, path, TEXT_BYTES + 1)
        if len(raw) > TEXT_BYTES or find_encoding(raw) is None:
            raise InvalidRequest(f"{path[:200]!r} is not text, or has more than {TEXT_BYTES} bytes")
        return _text_of(raw)

    async def origin(
        self, repository: str, ref: str, path: str, line: int, *, tenant: str
    ) -> LineOrigin:
        """Return the commit that a line of a registered repository comes from. Raises `NotFound`,
        `InvalidRequest`, `RepositoryError`.
        """
        clone, sha = await self._pin_ref(repository, ref, tenant)
        return await find_line_origin(self._git, clone.path, sha, path, line)

    async def _pin_ref(self, repository: str, ref: str, tenant: str) -> tuple[TrustedClone, str]:
        entry = await asyncio.to_thread(self.registry.get, repository, tenant)
        clone = self._clone(entry)
        pinned = _SHA.fullmatch(ref) is not None and await clone.has(ref)
        return clone, ref if pinned else await self._fetch(clone, entry, ref)

    async def diff(self, base: Base, commit_sha: str) -> str:
        """Return the diff of a commit against its base. Raises `PatchRefused` if neither the clone
        nor another host has the commit.
        """
        clone = self.clone(base.repository)
        if self.fetch_missing is not None and not await clone.has(commit_sha):
            with suppress(MoothallError):
                await self.fetch_missing(base.repository, base.sha, commit_sha)
        if not await clone.has(commit_sha):
            raise PatchRefused(f"the commit {commit_sha[:40]} is not in the clone any more.")
        return await clone.diff(await clone.find_base(commit_sha, base.sha), commit_sha)

    async def merge(self, base: Base, commits: Sequence[str]) -> Patch:
        """Merge commits into the base, in order. Raises `MergeConflict`, `PatchRefused`,
        `RepositoryError`.
        """
        entry = await asyncio.to_thread(self.registry.find, base.repository)
        clone, merged = self._clone(entry), Patch(base.sha, base.sha, "")
        for sha in commits:
            await self._ensure_commit(clone, entry, sha)
            merged = await clone.merge(base.sha, merged.commit_sha, sha, f"Merge {sha[:12]}")
        return merged

    async def _ensure_commit(self, clone: TrustedClone, entry: Registered, sha: str) -> None:
        if not await clone.has(sha):
            await self._fetch(clone, entry, sha)

    async def check_delivery(self, repository: str, base_sha: str, branch: str) -> None:
        """Raise `RepositoryError` if the branch of a delivery cannot be created. Change nothing.

        An unreachable origin raises nothing, because it may be reachable at delivery.
        """
        entry = await asyncio.to_thread(self.registry.find, repository)
        if entry.push == "none" and entry.on_approval != "push":
            return
        if entry.local:
            local = await sources.find_local(self._git, Path(entry.origin))
            obstacle = await delivery.find_branch_obstacle(self._git, local, base_sha, branch)
        else:
            env = registered_transport(entry, self._settings.allowed_schemes, self._secrets)
            refs: Mapping[str, str] = {}
            with suppress(RepositoryError):
                refs = await sources.remote_refs(
                    self._git, self._clone(entry).path, entry.origin, env
                )
            obstacle = delivery.find_conflicting_branch(refs, branch)
        if obstacle:
            raise RepositoryError(
                f"the winner could not be delivered as the branch {branch!r} of {entry.origin!r}: "
                f"{obstacle}. Rename or delete what is in the way, or turn delivery off: moothall "
                "repo add PATH_OR_URL --push none"
            )

    async def deliver(
        self, base: Base, diff: str, branch: str, message: str, merged: Sequence[str] = ()
    ) -> str:
        """Commit `diff` on the base, create the branch if the push policy allows it, and return the
        sha of the commit.

        `merged` are further parents: the commits whose work the diff combines. The same input gives
        the same sha. Raises `PatchRefused` (also for an empty diff), `AlreadyExists` if the branch
        is at another commit, and `RepositoryError`.
        """
        delivery.check_branch(branch)
        entry = await asyncio.to_thread(self.registry.find, base.repository)
        clone = self.clone(entry.id)
        for sha in merged:
            await self._ensure_commit(clone, entry, sha)
        patch = await clone.apply(base.sha, diff, message, merged)
        if not patch.diff:
            raise PatchRefused("the patch is empty; there is nothing to deliver.")
        await self._create_branch(entry, base_sha=base.sha, sha=patch.commit_sha, branch=branch)
        return patch.commit_sha

    async def _create_branch(
        self, entry: Registered, *, base_sha: str, sha: str, branch: str
    ) -> None:
        """Create the branch at the origin if the push policy allows it."""
        clone = self.clone(entry.id)
        if entry.local and entry.push != "none":
            local = await sources.find_local(self._git, Path(entry.origin))
            await delivery.create_local_branch(
                self._git, clone.path, local, base_sha=base_sha, sha=sha, branch=branch
            )
        elif entry.push == "push":
            env = registered_transport(entry, self._settings.allowed_schemes, self._secrets)
            await delivery.push(
                self._git, clone.path, entry.origin, sha=sha, branch=branch, env=env
            )

    async def land(
        self,
        ref: RepositoryRef,
        sha: str,
        branch: str,
        message: str,
        tenant: str,
        *,
        merge: bool = False,
    ) -> MergeResult:
        """Apply the approval policy of a repository to an approved commit on `branch`. Repeating it
        changes nothing. With `merge`, merge it whatever the policy, unless the repository is not to
        be written to.

        Raises `NotFound`, `AlreadyExists`, `RepositoryError`, `MergeConflict`, and with `merge`
        `InvalidRequest` if the base branch is unknown, and `Refused`.
        """
        entry = await self._entry(ref, tenant)
        clone = self._clone(entry)
        if merge:
            entry = await self._mergeable(entry)
        if entry.on_approval == "leave":
            return MergeResult("left", branch, sha)
        await self._ensure_commit(clone, entry, sha)
        if entry.on_approval == "push":
            parent = (await clone.call("rev-parse", f"{sha}^1")).out.decode().strip()
            pushing_entry = entry.model_copy(
                update={"push": "local-branch" if entry.local else "push"}
            )
            await self._create_branch(
                pushing_entry, base_sha=parent, sha=sha, branch=delivery.check_branch(branch)
            )
            return MergeResult("pushed", branch, sha)
        reason = ""
        for _ in range(_MOVE_ATTEMPTS):
            tip = await self._fetch(clone, entry, f"refs/heads/{entry.base}")
            merged = await merging.merge_onto(clone, entry.base, tip, sha, message)
            if merged.status != "merged" or not merged.tip:
                return merged
            reason = await self._move_branch(entry, clone, merged)
            if not reason:
                return merged
            if await self._fetch(clone, entry, f"refs/heads/{entry.base}") == tip:
                break  # nobody else moved the branch, so another attempt would fail too
        return MergeResult("left", branch, sha, why=reason)

    async def _mergeable(self, entry: Registered) -> Registered:
        """Return a record with the policy to merge. Raises `InvalidRequest`, `Refused`."""
        if entry.push == "none" and entry.on_approval == "leave":
            raise Refused(
                f"nothing may be written to {entry.id}: its push policy is none. An operator "
                "changes it with `moothall repo add PATH_OR_URL --push`"
            )
        base = await self._base(entry.origin, entry.base)
        return entry.model_copy(update={"on_approval": "merge", "base": base})

    async def _move_branch(
        self, entry: Registered, clone: TrustedClone, merged: MergeResult
    ) -> str:
        """Move a branch at the origin to a merge. Return '', or the reason why it was not moved."""
        if entry.local:
            return await merging.move_local_branch(
                self._git, clone, await sources.find_local(self._git, Path(entry.origin)), merged
            )
        env = registered_transport(entry, self._settings.allowed_schemes, self._secrets)
        return await merging.push_merge(self._git, clone.path, entry.origin, merged, env)

    def remote(self, repository: str) -> Remote:
        """Return the access of a workspace's git tools to the origin of a repository."""
        return Remote(self, repository)

    async def push(self, repository: str, base_sha: str, sha: str, branch: str) -> tuple[str, str]:
        """Create the branch `moothall/<branch>` at the origin. See `Remote.push`."""
        # The prefix keeps it from touching branches of other people.
        name = delivery.check_branch(f"moothall/{branch}")
        entry = await asyncio.to_thread(self.registry.find, repository)
        if entry.push == "none":
            raise Refused(
                f"the push policy of {entry.id} is none; an operator changes it with `moothall "
                "repo add --push`"
            )
        await self._create_branch(entry, base_sha=base_sha, sha=sha, branch=name)
        return name, entry.origin

    async def offer(self, repository: str, sha: str, branch: str) -> None:
        """Push a commit to a URL regardless of the push policy: as a new branch, or onto a branch
        that is at its parent. Repeating it changes nothing.

        Raises `AlreadyExists` if the branch is at another commit, and `RepositoryError`.
        """
        entry = await asyncio.to_thread(self.registry.find, repository)
        clone = self._clone(entry)
        parent = (
            (await clone.call("rev-parse", "--verify", "--quiet", f"{sha}^1")).out.decode().strip()
        )
        if not parent:
            raise RepositoryError(f"the commit {sha[:40]} is not in the clone any more.")
        env = registered_transport(entry, self._settings.allowed_schemes, self._secrets)
        await delivery.push(
            self._git, clone.path, entry.origin, sha=sha, branch=branch, env=env, parent=parent
        )

    async def fetch(self, repository: str, ref: str = "") -> str:
        """Fetch a ref from the origin, by default its default branch, and return the sha.

        A full commit id that the clone has is not fetched. Raises `RepositoryError`.
        """
        entry = await asyncio.to_thread(self.registry.find, repository)
        clone = self._clone(entry)
        return ref if await clone.has(ref) else await self._fetch(clone, entry, ref)

    async def clone_other(self, url: str, ref: str) -> Cloned:
        """Fetch the files of another repository. See `gitremote.clone_public`."""
        return await clone_public(self._git, self._settings, url, ref, self._pin)

    async def drop_branch(
        self, repository: str, branch: str, sha: str, *, force: bool
    ) -> tuple[str, str]:
        """Remove a branch of ours from a local repository. Return the branch ('' if none was
        removed), and a description of what remains.

        Raises `NotFound` for an unknown repository, and `RepositoryError` if the branch is checked
        out, or if no other ref contains its commits and `force` is false.
        """
        entry = await asyncio.to_thread(self.registry.find, repository)
        if not entry.local:
            return "", f"the branch {branch} at {entry.origin}, if it was pushed"
        try:
            local = await sources.find_local(self._git, Path(entry.origin))
        except RepositoryError:
            return "", f"the branch {branch}: {entry.origin} no longer exists"
        dropped = await delivery.drop_branch(self._git, local, branch, sha, force=force)
        return (branch, "") if dropped else ("", "")

    async def _entry(self, ref: RepositoryRef, tenant: str) -> Registered:
        if ref.id:
            return await asyncio.to_thread(self.registry.get, ref.id, tenant)
        if not ref.url:
            raise InvalidRequest(
                "no repository is named; give the id of a registered one, a path or a URL"
            )
        if sources.is_url(ref.url):
            origin = sources.check_url(ref.url, self._settings.allowed_schemes)
        else:
            origin = await self._local_origin(ref.url, tenant)
        registered = await asyncio.to_thread(self.registry.of_origin, origin, tenant)
        return registered or make_registered(origin, tenant=tenant, listed=False)

    async def _local_origin(self, text: str, tenant: str) -> str:
        path = await asyncio.to_thread(
            sources.check_path, text, self._settings.allowed_schemes, None
        )
        if await asyncio.to_thread(self.registry.of_origin, str(path), tenant):
            return str(path)
        sources.check_inside(path, self._roots)
        return str((await sources.find_local(self._git, path)).top)

    async def _fetch(self, clone: TrustedClone, entry: Registered, ref: str) -> str:
        if entry.local:
            roots = None if entry.listed else self._roots
            sources.check_inside(Path(entry.origin), roots)
            local = await sources.find_local(self._git, Path(entry.origin))
            for path in (local.top, local.shared, local.git_dir):
                sources.check_inside(await asyncio.to_thread(path.resolve), roots)
            sha = await sources.local_commit(self._git, local, ref)
            if not await clone.has(sha):
                await clone.fetch(str(local.shared), sha, tags=True)
        else:
            await clone.create()
            if entry.listed:
                env = registered_transport(entry, self._settings.allowed_schemes, self._secrets)
                sha = await fetch_commit(self._git, clone, entry.origin, ref, env)
            else:
                env = await anonymous_transport(self._git, clone.path, entry.origin, self._pin)
                sha = await fetch_commit(
                    self._git,
                    clone,
                    entry.origin,
                    ref,
                    env,
                    remote_call=lambda: hide_reason(entry.origin),
                )
        await clone.entries(sha)
        if not entry.listed:
            await asyncio.to_thread(self.registry.add, entry)
        return sha


def _text_of(raw: bytes, *, is_complete: bool = True) -> str:
    """Return the text of a file in its own encoding. Binary data is decoded as UTF-8 with
    replacement characters.

    is_complete: false if the file was truncated.
    """
    with suppress(UnicodeDecodeError):
        return codecs.getincrementaldecoder("utf-8")().decode(raw, final=is_complete)
    encoding = find_encoding(raw)
    if encoding and encoding.errors == "strict":
        return encoding.decode(raw)
    return raw.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Remote:
    """Access of a workspace's git tools to the origin and to other repositories."""

    repositories: RepositoryService
    repository: str

    async def push(self, base_sha: str, sha: str, branch: str) -> tuple[str, str]:
        """Create the branch `moothall/<branch>` at the origin. Return its name and the origin.

        Raises `Refused` if the push policy is none, `AlreadyExists` if the branch is at another
        commit, and `RepositoryError`.
        """
        return await self.repositories.push(self.repository, base_sha, sha, branch)

    async def fetch(self) -> str:
        """Fetch the newest commit of the origin's default branch. Raises `RepositoryError`."""
        return await self.repositories.fetch(self.repository)

    async def clone(self, url: str, ref: str) -> Cloned:
        """Fetch the files of another repository. Raises `Refused`, `InvalidRequest`,
        `RepositoryError`.
        """
        return await self.repositories.clone_other(url, ref)
