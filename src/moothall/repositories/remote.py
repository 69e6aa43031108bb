"""Repositories of a host that shares no disk with the server, and the server's answers to such
hosts.
See `lending`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from moothall.domain import codec
from moothall.domain.ids import digest
from moothall.domain.repository import Base
from moothall.domain.task import RepositoryRef
from moothall.domain.topic import HOUSE, Channel
from moothall.errors import InvalidRequest, NotFound, Temporary
from moothall.repositories.bundle_transfer import Ask, BundleOffer, BundleServer, Said, ask
from moothall.repositories.bundles import newest_commits
from moothall.repositories.clone import TrustedClone
from moothall.repositories.registry import Registered
from moothall.repositories.service import RepositoryService

HOSTS = Channel.REPOSITORIES.of("hosts")
"""Whoever may hold a patch that the server lacks."""
_PATCH_SECONDS = 5.0


class RemoteRepositories(RepositoryService):
    """Asks the server for what `RepositoryService` gets from its own disk and from origins. No
    credential of an origin is needed here.
    """

    def far(self, bus: Ask, bundle_server: BundleServer) -> None:
        """Say how the server is asked, and who lends it what was made here."""
        self._bus, self._bundle_server = bus, bundle_server
        self._bringing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def resolve(self, ref: RepositoryRef, *, tenant: str = "local") -> Base:
        """Return a commit as the server has pinned it, once it is here. Raises what the server's
        own
        `resolve` raises, and `Temporary`.
        """
        haves = await self._haves(ref)
        wanted = {
            "ask": "base",
            "repository": ref.id,
            "ref": ref.ref,
            "tenant": tenant,
            "haves": haves,
        }
        said = await ask(self._bus, HOUSE, wanted)
        base, entry, offer = (
            codec.load(Base, said.get("base")),
            _record(said.get("entry")),
            codec.load(BundleOffer, said.get("offer")),
        )
        if (entry.id, entry.tenant, base.repository, base.sha) != (ref.id, tenant, ref.id, ref.ref):
            raise Temporary(
                "the server answered for another commit than the one that it was asked for"
            )
        await self._take(self._clone(await asyncio.to_thread(self._remember, entry)), offer)
        return base

    async def _haves(self, ref: RepositoryRef) -> list[str]:
        try:
            clone = self.clone(ref.id)
        except NotFound:
            return []
        return [*await newest_commits(clone), *([ref.ref] if await clone.has(ref.ref) else [])]

    def _remember(self, entry: Registered) -> Registered:
        """Keep and return what is needed to find the clone again. It is named by whose it is and
        where it comes from: an id may be given anew.
        """
        place = f"far-{digest(entry.tenant, entry.origin, entry.clone)[:24]}"
        known = Registered(
            id=entry.id, origin=entry.origin, tenant=entry.tenant, push=entry.push, of=place
        )
        try:
            if self.registry.find(entry.id) == known:
                return known
            self.registry.remove(entry.id)
        except NotFound:
            pass
        self.registry.add(known)
        return known

    async def _take(self, clone: TrustedClone, offer: BundleOffer) -> None:
        async with self._bringing[str(clone.path)]:
            if not all([await clone.has(sha) for sha in offer.wants]):
                await self._bundle_server.take(self._bus, clone, offer)

    async def _fetch(self, clone: TrustedClone, entry: Registered, ref: str) -> str:
        wanted = {
            "ask": "commit",
            "repository": entry.id,
            "ref": ref,
            "tenant": entry.tenant,
            "haves": await newest_commits(clone),
        }
        said = await ask(self._bus, HOUSE, wanted)
        await self._take(clone, codec.load(BundleOffer, said.get("offer")))
        sha = str(said.get("sha"))
        await clone.entries(sha)
        return sha

    async def push(self, repository: str, base_sha: str, sha: str, branch: str) -> tuple[str, str]:
        """Have the server make a new branch of a commit of ours. See `RepositoryService.push`."""
        entry = await asyncio.to_thread(self.registry.find, repository)
        offer = await self._bundle_server.offer(self._clone(entry), [sha], [base_sha])
        wanted = {
            "ask": "push",
            "repository": repository,
            "tenant": entry.tenant,
            "offer": codec.dump(offer),
        }
        said = await ask(
            self._bus, HOUSE, {**wanted, "base_sha": base_sha, "sha": sha, "branch": branch}
        )
        return str(said.get("branch")), str(said.get("origin"))

    async def answer(self, asked: Said) -> tuple[Said, bytes]:
        """Lend a patch that was made here; of what is not here nothing is said."""
        if asked.get("ask") == "part":
            return await self._bundle_server.part(asked)
        repository, tenant, sha, base_sha = _words(asked, "repository", "tenant", "sha", "base_sha")
        try:
            clone = self._clone(self.registry.get(repository, tenant))
        except NotFound as error:
            raise InvalidRequest(error.message) from error
        if asked.get("ask") != "patch" or not await clone.has(sha):
            raise InvalidRequest(f"the patch {sha[:40]} is not here")
        return await self._bundle_server.soon(
            asked, lambda _: self._offer(clone, sha, base_sha)
        ), b""

    async def _offer(self, clone: TrustedClone, sha: str, base_sha: str) -> Said:
        return {"offer": codec.dump(await self._bundle_server.offer(clone, [sha], [base_sha]))}


class RepositoryServer:
    """Answers hosts for the repositories of this disk."""

    def __init__(
        self, repositories: RepositoryService, bundle_server: BundleServer, bus: Ask
    ) -> None:
        self._repositories, self._bundle_server, self._bus = repositories, bundle_server, bus

    async def answer(self, asked: Said) -> tuple[Said, bytes]:
        """Answer one request. See `ports.Answerer`."""
        if asked.get("ask") == "part":
            return await self._bundle_server.part(asked)
        works = {"base": self._base, "commit": self._commit, "push": self._push}
        work = works.get(str(asked.get("ask")))
        if work is None:
            raise InvalidRequest(f"nothing answers {str(asked.get('ask'))[:40]!r}")
        return await self._bundle_server.soon(asked, work), b""

    async def _base(self, asked: Said) -> Said:
        repository, tenant, sha = _words(asked, "repository", "tenant", "ref")
        base = await self._repositories.resolve(
            RepositoryRef(id=repository, ref=sha), tenant=tenant
        )
        entry = self._repositories.registry.get(repository, tenant)
        told = entry.model_dump(mode="json", include={"id", "origin", "tenant", "push", "of"})
        offer = await self._bundle_server.offer(
            self._repositories.clone(repository), [base.sha], _haves(asked)
        )
        return {"base": codec.dump(base), "entry": told, "offer": codec.dump(offer)}

    async def _commit(self, asked: Said) -> Said:
        repository, tenant, ref = _words(asked, "repository", "tenant", "ref")
        self._repositories.registry.get(repository, tenant)
        sha = await self._repositories.fetch(repository, ref)
        offer = await self._bundle_server.offer(
            self._repositories.clone(repository), [sha], _haves(asked)
        )
        return {"sha": sha, "offer": codec.dump(offer)}

    async def _push(self, asked: Said) -> Said:
        repository, tenant, base_sha, sha, branch = _words(
            asked, "repository", "tenant", "base_sha", "sha", "branch"
        )
        self._repositories.registry.get(repository, tenant)
        offer = codec.load(BundleOffer, asked.get("offer"))
        await self._bundle_server.take(
            self._bus, self._repositories.clone(repository), offer, patch=True
        )
        name, origin = await self._repositories.push(repository, base_sha, sha, branch)
        return {"branch": name, "origin": origin}


def patches_of_hosts(
    repositories: RepositoryService, bundle_server: BundleServer, bus: Ask
) -> None:
    """Have patches that are not here fetched from the host that made them."""

    async def bring(repository: str, base_sha: str, sha: str) -> None:
        tenant = repositories.registry.find(repository).tenant
        wanted = {
            "ask": "patch",
            "repository": repository,
            "tenant": tenant,
            "sha": sha,
            "base_sha": base_sha,
        }
        said, _ = await bus(HOSTS, wanted, _PATCH_SECONDS)
        await bundle_server.take(
            bus,
            repositories.clone(repository),
            codec.load(BundleOffer, said.get("offer")),
            patch=True,
        )

    repositories.fetch_missing = bring


def _record(said: object) -> Registered:
    try:
        return Registered.model_validate(said)
    except ValidationError as error:
        raise Temporary(
            f"the server's record of the repository cannot be read: {codec.wrong(error)}"
        ) from error


def _words(asked: Said, *names: str) -> tuple[str, ...]:
    values = tuple(asked.get(name) for name in names)
    if not all(isinstance(value, str) for value in values):
        raise InvalidRequest(f"a request names {', '.join(names)}")
    return tuple(map(str, values))


def _haves(asked: Said) -> Sequence[str]:
    haves: Any = asked.get("haves")
    return [str(sha) for sha in haves] if isinstance(haves, list) else ()
