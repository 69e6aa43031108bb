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
from moothall.domain.repository import Base, MergeResult, Patch, Prepared
from moothall.domain.task import RepositoryRef
from moothall.errors import InvalidRequest, MoothallError, PatchRefused, Refused, RepositoryError
from moothall.repositories import delivery, patch_rules, sources
from moothall.repositories import merge as landing
from moothall.repositories.blame import LineOrigin, origin_of
from moothall.repositories.clone import TrustedClone
from moothall.repositories.gitcmd import GitRunner
from moothall.repositories.gitremote import Cloned, clone_public, fetch_commit
from moothall.repositories.profile import OWN_FILE, TEXT_BYTES, Commands, read_profile, read_text
from moothall.repositories.registry import (
    Approval,
    PushPolicy,
    Registered,
    Registry,
    make_registered,
)
from moothall.repositories.submodules import Submodules
from moothall.repositories.transport import (
    Pin,
    hide_reason,
    refuse_any,
    registered_transport,
    stranger_transport,
)
from moothall.sandbox_runtime.text_encodings import find_encoding

Prepare = Callable[[Base, Callable[[str], None] | None], Awaitable[Prepared]]
"""Makes a base ready to work on."""
_SHA = re.compile(r"[0-9a-f]{40}")
_TRIES = 3  # of moving a branch that others move too


class RepositoryService:
    """Clones in `data_dir`/repos, records in `data_dir`/repositories.

    `roots` are the folders whose repositories may be named by path without being registered.
    `secrets` are
    the environment variables that a record's credential may name. `pin` judges the URLs that nobody
    registered.
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
    ) -> None:
        self.registry = Registry(data_dir / "repositories")
        self._clones = data_dir / "repos"
        self._settings = settings
        self._prepare = prepare
        self._roots = tuple(root.resolve() for root in (*settings.allowed_roots, *roots))
        self._secrets = secrets or {}
        self._pin = pin
        self._git = GitRunner(self._clones, settings.git_seconds)
        self.fetch_missing: Callable[[str, str, str], Awaitable[None]] | None = None
        """Brings a patch (repository, base, commit) that a host on another disk made; None where
        there is no such host.
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
        id: str = "",  # noqa: A002 - the record's own word
        credential: str = "",
        push: PushPolicy | None = None,
        on_approval: Approval | None = None,
        base: str = "",
        commands: Commands | None = None,
    ) -> Registered:
        """Record a path or URL for the operator, who may name any; what is not given stays as it
        was. Approved stories are merged into `base`, by default the branch that is checked out in a
        local repository now.

        Raises `RepositoryError`, `InvalidRequest`, `Refused`, `AlreadyExists`.
        """
        if sources.is_url(origin):
            place = sources.check_url(origin, self._settings.allowed_schemes)
        else:
            path = await asyncio.to_thread(
                sources.check_path, origin, self._settings.allowed_schemes, None
            )
            place = str((await sources.find_local(self._git, path)).top)
        known = await asyncio.to_thread(self.registry.of_origin, place, tenant)
        if known and id not in {"", known.id}:
            known = None
        before = dict(known) if known else {}
        given = {
            "id": id,
            "on_approval": on_approval,
            "base": base,
            "credential": credential,
            "push": push,
            "commands": commands,
        }
        said: dict[str, Any] = {
            name: value or before.get(name, "") for name, value in given.items()
        }
        if said["on_approval"] == "merge":
            said["base"] = await self._base(place, said["base"])
        entry = make_registered(place, tenant=tenant, **said)
        if entry.push == "local-branch" and not entry.local:
            raise InvalidRequest(
                "a URL's push policy is 'push' or 'none'; only a local repository gets a branch"
            )
        await asyncio.to_thread(self.registry.add, entry)
        return entry

    async def _base(self, place: str, named: str) -> str:
        """Return the branch into which approved stories are merged. Raises `InvalidRequest`,
        `RepositoryError`.
        """
        if named:
            return sources.check_ref(named)
        if sources.is_url(place):
            raise InvalidRequest(
                "into which branch are approved stories merged? say it with --base, such as --base "
                "main"
            )
        local = await sources.find_local(self._git, Path(place))
        at = await self._git.call(
            f"--git-dir={local.git_dir}", "symbolic-ref", "--short", "HEAD", cwd=local.git_dir
        )
        if at.status:
            raise InvalidRequest(
                f"no branch is checked out in {place!r}; name the one that approved stories are "
                "merged into with --base"
            )
        return at.out.decode().strip()

    async def with_profile(self, entry: Registered, commands: Commands) -> Registered:
        """Record `entry` once more, with other commands, for those who ask for just these; the same
        for the same commands.
        """
        own = f"{entry.id[:80]}-{digest(commands.model_dump_json())[:12]}"
        variant = entry.model_copy(update={"id": own, "of": entry.clone, "commands": commands})
        await asyncio.to_thread(self.registry.add, variant)
        return variant

    async def resolve(self, ref: RepositoryRef, *, tenant: str = "local") -> Base:
        """Fetch and pin a commit. Raises `RepositoryError`, `NotFound`, `Refused`,
        `InvalidRequest`.

        A full commit id that this tenant pinned before is answered from the clone, wherever the
        source is now.
        """
        entry = await self._entry(ref, tenant)
        clone = self._clone(entry)
        pinned = _SHA.fullmatch(ref.ref) is not None and await clone.has(ref.ref)
        sha = ref.ref if pinned else await self._fetch(clone, entry, ref.ref)
        own, notes = await self._own_file(clone, entry, sha)
        if not pinned:
            notes += await self._submodules(clone, entry, sha)
        profile = await read_profile(
            clone, sha, entry.commands, most=self._settings.max_projects, own=own
        )
        return Base(
            entry.id, sha, replace(profile, notes=(*profile.notes, *notes)), origin=entry.origin
        )

    async def _own_file(
        self, clone: TrustedClone, entry: Registered, sha: str
    ) -> tuple[str | None, tuple[str, ...]]:
        """Return what the work tree of a local repository says of set-up and checks, where the
        commit says otherwise, and a note.
        """
        if not entry.local or not (
            entry.listed or any(Path(entry.origin).is_relative_to(root) for root in self._roots)
        ):
            return None, ()
        text = await asyncio.to_thread(read_text, Path(entry.origin, OWN_FILE))
        committed = (
            (await clone.read(sha, OWN_FILE, TEXT_BYTES)).decode(errors="replace")
            if OWN_FILE in await clone.files(sha)
            else None
        )
        if text is None or text == committed:
            return None, ()
        differs = "is not committed" if committed is None else "differs from the commit's"
        return text, (f"{OWN_FILE} in the work tree {differs}; it is used as it lies there",)

    async def _submodules(
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
        """Set up, check out, run the checks once. Tests that the profile hides are not in it, and
        are returned beside it.
        """
        base, hidden = await self._hide(base)
        return replace(await self._prepare(base, on_progress), hidden=hidden)

    async def _hide(self, base: Base) -> tuple[Base, Mapping[str, str]]:
        """Return a base without the tests that its profile hides, and their texts by path.

        It is a commit of its own without a history, which would hold them. Raises
        `RepositoryError`.
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
        raw = await self.clone(base.repository).read(
            base.sha, path, 4 * limit
        )  # a character has at most 4 bytes
        return _text_of(raw, whole=len(raw) < 4 * limit)[:limit]

    async def paths(self, repository: str, ref: str, *, tenant: str) -> tuple[str, tuple[str, ...]]:
        """Return a commit of a registered repository, by default the newest, and its files. Raises
        `NotFound`, `RepositoryError`, `InvalidRequest`.
        """
        clone, sha = await self._pin_ref(repository, ref, tenant)
        return sha, await clone.files(sha)

    async def text(self, repository: str, sha: str, path: str, *, tenant: str) -> str:
        """Return a text file of a commit that `paths` told. Raises `NotFound`, and `InvalidRequest`
        for what is no text or is too large.
        """
        clone, sha = await self._pin_ref(repository, sha, tenant)
        raw = await clone.read(sha, path, TEXT_BYTES + 1)
        if len(raw) > TEXT_BYTES or find_encoding(raw) is None:
            raise InvalidRequest(f"{path[:200]!r} is no text, or has more than {TEXT_BYTES} bytes")
        return _text_of(raw)

    async def origin(
        self, repository: str, ref: str, path: str, line: int, *, tenant: str
    ) -> LineOrigin:
        """Return which commit a line of a registered repository comes from. Raises `NotFound`,
        `InvalidRequest`, `RepositoryError`.
        """
        clone, sha = await self._pin_ref(repository, ref, tenant)
        return await origin_of(self._git, clone.path, sha, path, line)

    async def _pin_ref(self, repository: str, ref: str, tenant: str) -> tuple[TrustedClone, str]:
        entry = await asyncio.to_thread(self.registry.get, repository, tenant)
        clone = self._clone(entry)
        pinned = _SHA.fullmatch(ref) is not None and await clone.has(ref)
        return clone, ref if pinned else await self._fetch(clone, entry, ref)

    async def diff(self, base: Base, commit_sha: str) -> str:
        """Return what a commit has changed. Raises `PatchRefused` where the clone does not have
        it.
        """
        clone = self.clone(base.repository)
        if self.fetch_missing is not None and not await clone.has(commit_sha):
            with suppress(MoothallError):
                await self.fetch_missing(base.repository, base.sha, commit_sha)
        if not await clone.has(commit_sha):
            raise PatchRefused(f"the commit {commit_sha[:40]} is not in the clone any more.")
        return await clone.diff(await clone.begin_of(commit_sha, base.sha), commit_sha)

    async def merge(self, base: Base, commits: Sequence[str]) -> Patch:
        """Merge one commit after the other into the base. Raises `MergeConflict`, `PatchRefused`,
        `RepositoryError`.
        """
        entry = await asyncio.to_thread(self.registry.find, base.repository)
        clone, merged = self._clone(entry), Patch(base.sha, base.sha, "")
        for sha in commits:
            await self._bring(clone, entry, sha)
            merged = await clone.merge(base.sha, merged.commit_sha, sha, f"Merge {sha[:12]}")
        return merged

    async def _bring(self, clone: TrustedClone, entry: Registered, sha: str) -> None:
        if not await clone.has(sha):
            await self._fetch(clone, entry, sha)

    async def check_delivery(self, repository: str, base_sha: str, branch: str) -> None:
        """Raise `RepositoryError` if the push policy wants a branch of that name and it cannot be
        created. Change nothing.

        An unreachable origin is no reason: it may be reachable at delivery.
        """
        entry = await asyncio.to_thread(self.registry.find, repository)
        if entry.push == "none" and entry.on_approval != "push":
            return
        if entry.local:
            local = await sources.find_local(self._git, Path(entry.origin))
            why = await delivery.why_no_branch(self._git, local, base_sha, branch)
        else:
            env = registered_transport(entry, self._settings.allowed_schemes, self._secrets)
            refs: Mapping[str, str] = {}
            with suppress(RepositoryError):
                refs = await sources.remote_refs(
                    self._git, self._clone(entry).path, entry.origin, env
                )
            why = delivery.branch_in_the_way(refs, branch)
        if why:
            raise RepositoryError(
                f"the winner could not be delivered as the branch {branch!r} of {entry.origin!r}: "
                f"{why}. Rename or delete what is in the way, or turn delivery off: moothall repo "
                "add PATH_OR_URL --push none"
            )

    async def deliver(
        self, base: Base, diff: str, branch: str, message: str, merged: Sequence[str] = ()
    ) -> str:
        """Commit `diff` on the base and on the commits whose work it is, where it brings some
        together, make the branch where the push policy allows, return the commit's sha.

        Same input, same sha. Raises `PatchRefused` (also for an empty diff), `AlreadyExists` where
        the branch
        is another commit, `RepositoryError`.
        """
        delivery.check_branch(branch)
        entry = await asyncio.to_thread(self.registry.find, base.repository)
        clone = self.clone(entry.id)
        for sha in merged:
            await self._bring(clone, entry, sha)
        patch = await clone.apply(base.sha, diff, message, merged)
        if not patch.diff:
            raise PatchRefused("the patch is empty; there is nothing to deliver.")
        await self._hand_over(entry, base.sha, patch.commit_sha, branch)
        return patch.commit_sha

    async def _hand_over(self, entry: Registered, base_sha: str, sha: str, branch: str) -> None:
        """Make the branch at the origin where the push policy is one that lets it."""
        clone = self.clone(entry.id)
        if entry.local and entry.push != "none":
            local = await sources.find_local(self._git, Path(entry.origin))
            await delivery.branch_locally(
                self._git, clone.path, local, base_sha=base_sha, sha=sha, branch=branch
            )
        elif entry.push == "push":
            env = registered_transport(entry, self._settings.allowed_schemes, self._secrets)
            await delivery.push(
                self._git, clone.path, entry.origin, sha=sha, branch=branch, env=env
            )

    async def land(
        self, ref: RepositoryRef, sha: str, branch: str, message: str, tenant: str
    ) -> MergeResult:
        """Do with an approved commit, which lies on `branch`, what the repository's policy says.
        Done again, it changes nothing.

        Raises `NotFound`, `AlreadyExists`, `RepositoryError`, `MergeConflict`.
        """
        entry = await self._entry(ref, tenant)
        clone = self._clone(entry)
        if entry.on_approval == "leave":
            return MergeResult("left", branch, sha)
        await self._bring(clone, entry, sha)
        if entry.on_approval == "push":
            begin = (await clone.ask("rev-parse", f"{sha}^1")).out.decode().strip()
            allowed = entry.model_copy(update={"push": "local-branch" if entry.local else "push"})
            await self._hand_over(allowed, begin, sha, delivery.check_branch(branch))
            return MergeResult("pushed", branch, sha)
        why = ""
        for _ in range(_TRIES):
            tip = await self._fetch(clone, entry, f"refs/heads/{entry.base}")
            merged = await landing.merge_onto(clone, entry.base, tip, sha, message)
            if merged.status != "merged" or not merged.tip:
                return merged
            if not (why := await self._move(entry, clone, merged)):
                return merged
            if (
                await self._fetch(clone, entry, f"refs/heads/{entry.base}") == tip
            ):  # nobody was faster
                break
        return MergeResult("left", branch, sha, why=why)

    async def _move(self, entry: Registered, clone: TrustedClone, merged: MergeResult) -> str:
        """Move a branch at the origin to a merge; return '', or why it stays."""
        if entry.local:
            return await landing.move_local(
                self._git, clone, await sources.find_local(self._git, Path(entry.origin)), merged
            )
        env = registered_transport(entry, self._settings.allowed_schemes, self._secrets)
        return await landing.push_merge(self._git, clone.path, entry.origin, merged, env)

    def remote(self, repository: str) -> Remote:
        """Return what a workspace on a repository reaches beyond itself."""
        return Remote(self, repository)

    async def push(self, repository: str, base_sha: str, sha: str, branch: str) -> tuple[str, str]:
        """Make a new branch of a commit at the origin. See `Remote`."""
        name = delivery.check_branch(
            f"moothall/{branch}"
        )  # as all that is ours: no branch of anybody else's is touched
        entry = await asyncio.to_thread(self.registry.find, repository)
        if entry.push == "none":
            raise Refused(
                f"the push policy of {entry.id} is none; an operator changes it with `moothall "
                "repo add --push`"
            )
        await self._hand_over(entry, base_sha, sha, name)
        return name, entry.origin

    async def offer(self, repository: str, sha: str, branch: str) -> None:
        """Push a commit of ours to a URL whatever the push policy, as a new branch or onto one that
        is at its parent. Done again, it changes nothing. Raises `AlreadyExists` where the branch is
        another commit, `RepositoryError`.
        """
        entry = await asyncio.to_thread(self.registry.find, repository)
        clone = self._clone(entry)
        parent = (
            (await clone.ask("rev-parse", "--verify", "--quiet", f"{sha}^1")).out.decode().strip()
        )
        if not parent:
            raise RepositoryError(f"the commit {sha[:40]} is not in the clone any more.")
        env = registered_transport(entry, self._settings.allowed_schemes, self._secrets)
        await delivery.push(
            self._git, clone.path, entry.origin, sha=sha, branch=branch, env=env, after=parent
        )

    async def fetch(self, repository: str, ref: str = "") -> str:
        """Bring what `ref` means at the origin here, by default the newest commit of its default
        branch; return its sha. One that is here by its full id is not asked for. Raises
        `RepositoryError`.
        """
        entry = await asyncio.to_thread(self.registry.find, repository)
        clone = self._clone(entry)
        return ref if await clone.has(ref) else await self._fetch(clone, entry, ref)

    async def clone_other(self, url: str, ref: str) -> Cloned:
        """Bring the files of another repository. See `gitremote.clone_public`."""
        return await clone_public(self._git, self._settings, url, ref, self._pin)

    async def drop_branch(
        self, repository: str, branch: str, sha: str, *, force: bool
    ) -> tuple[str, str]:
        """Remove a branch of ours from a local repository. Returns the branch, '' where none was
        removed, and what is left.

        Raises `NotFound` for an unknown repository, `RepositoryError` where the branch is checked
        out, or holds what no other ref does and not `force`.
        """
        entry = await asyncio.to_thread(self.registry.find, repository)
        if not entry.local:
            return "", f"the branch {branch} at {entry.origin}, if it was pushed"
        try:
            local = await sources.find_local(self._git, Path(entry.origin))
        except RepositoryError:
            return "", f"the branch {branch}: {entry.origin} is not there any more"
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
        known = await asyncio.to_thread(self.registry.of_origin, origin, tenant)
        return known or make_registered(origin, tenant=tenant, listed=False)

    async def _local_origin(self, text: str, tenant: str) -> str:
        path = await asyncio.to_thread(
            sources.check_path, text, self._settings.allowed_schemes, None
        )
        if await asyncio.to_thread(self.registry.of_origin, str(path), tenant):
            return str(path)
        sources.inside(path, self._roots)
        return str((await sources.find_local(self._git, path)).top)

    async def _fetch(self, clone: TrustedClone, entry: Registered, ref: str) -> str:
        if entry.local:
            roots = None if entry.listed else self._roots
            sources.inside(Path(entry.origin), roots)
            local = await sources.find_local(self._git, Path(entry.origin))
            for path in (local.top, local.shared, local.git_dir):
                sources.inside(await asyncio.to_thread(path.resolve), roots)
            sha = await sources.local_commit(self._git, local, ref)
            if not await clone.has(sha):
                await clone.fetch(str(local.shared), sha, tags=True)
        else:
            await clone.make()
            if entry.listed:
                env = registered_transport(entry, self._settings.allowed_schemes, self._secrets)
                sha = await fetch_commit(self._git, clone, entry.origin, ref, env)
            else:
                env = await stranger_transport(self._git, clone.path, entry.origin, self._pin)
                sha = await fetch_commit(
                    self._git,
                    clone,
                    entry.origin,
                    ref,
                    env,
                    talking=lambda: hide_reason(entry.origin),
                )
        await clone.entries(sha)
        if not entry.listed:
            await asyncio.to_thread(self.registry.add, entry)
        return sha


def _text_of(raw: bytes, *, whole: bool = True) -> str:
    """Return the text of a file in its own encoding; binary data is read as UTF-8 with
    replacements.

    whole: the file was not cut.
    """
    with suppress(UnicodeDecodeError):
        return codecs.getincrementaldecoder("utf-8")().decode(raw, final=whole)
    found = find_encoding(raw)
    return found.decode(raw) if found and found.errors == "strict" else raw.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Remote:
    """What the git tools of a workspace reach beyond it."""

    repositories: RepositoryService
    repository: str

    async def push(self, base_sha: str, sha: str, branch: str) -> tuple[str, str]:
        """Make the new branch `moothall/<branch>` of a commit where the push policy allows; return
        its name and where it is.

        Raises `Refused` where it allows none, `AlreadyExists` where the branch is another commit,
        `RepositoryError`.
        """
        return await self.repositories.push(self.repository, base_sha, sha, branch)

    async def fetch(self) -> str:
        """Bring the newest commit of the origin's default branch here. Raises `RepositoryError`."""
        return await self.repositories.fetch(self.repository)

    async def clone(self, url: str, ref: str) -> Cloned:
        """Bring the files of another repository. Raises `Refused`, `InvalidRequest`,
        `RepositoryError`.
        """
        return await self.repositories.clone_other(url, ref)
