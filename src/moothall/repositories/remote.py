"""Repositories of a host that shares no disk with the server, and the server's side of their
protocol. See `bundle_transfer`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from moothall.domain import codec
from moothall.domain.event import REPOSITORY_SERVICE, Channel
from moothall.domain.ids import digest
from moothall.domain.repository import Base
from moothall.domain.task import RepositoryRef
from moothall.errors import InvalidRequest, NotFound, Temporary
from moothall.repositories.bundle_transfer import (
    Ask,
    BundleOffer,
    BundleServer,
    Message,
    newest_commits,
    send_request,
)
from moothall.repositories.clone import TrustedClone
from moothall.repositories.registry import Registered
from moothall.repositories.service import RepositoryService

HOSTS = Channel.REPOSITORIES.of("hosts")
"""The topic of all hosts, any of which may have a patch that the server lacks."""
_PATCH_TIMEOUT_SECONDS = 5.0


class RemoteRepositories(RepositoryService):
    """A repository service that asks the server instead of its own disk and the origins. It needs
    no credentials of origins.
    """

    def connect(self, bus: Ask, bundle_server: BundleServer) -> None:
        """Set how the server is reached, and what serves the patches of this host."""
        self._bus, self._bundle_server = bus, bundle_server
        self._fetch_locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def resolve(self, ref: RepositoryRef, *, tenant: str = "local") -> Base:
        """Return a base as the server pinned it, after its commit was fetched. Raises what
        `resolve` raises on the server, and `Temporary`.
        """
        haves = await self._haves(ref)
        request = {
            "ask": "base",
            "repository": ref.id,
            "ref": ref.ref,
            "tenant": tenant,
            "haves": haves,
        }
        reply = await send_request(self._bus, REPOSITORY_SERVICE, request)
        base, entry, offer = (
            codec.load(Base, reply.get("base")),
            _parse_record(reply.get("entry")),
            codec.load(BundleOffer, reply.get("offer")),
        )
        if (entry.id, entry.tenant, base.repository, base.sha) != (ref.id, tenant, ref.id, ref.ref):
            raise Temporary(
                "the server answered for another commit than the one that it was asked for"
            )
        await self._ensure_commits(
            self._clone(await asyncio.to_thread(self._record_entry, entry)), offer
        )
        return base

    async def _haves(self, ref: RepositoryRef) -> list[str]:
        try:
            clone = self.clone(ref.id)
        except NotFound:
            return []
        return [*await newest_commits(clone), *([ref.ref] if await clone.has(ref.ref) else [])]

    def _record_entry(self, entry: Registered) -> Registered:
        """Store the record by which the clone is found again, and return it. The clone is named by
        tenant and origin, because an id may be reused.
        """
        clone_id = f"far-{digest(entry.tenant, entry.origin, entry.clone)[:24]}"
        local_entry = Registered(
            id=entry.id, origin=entry.origin, tenant=entry.tenant, push=entry.push, of=clone_id
        )
        try:
            if self.registry.find(entry.id) == local_entry:
                return local_entry
            self.registry.remove(entry.id)
        except NotFound:
            pass
        self.registry.add(local_entry)
        return local_entry

    async def _ensure_commits(self, clone: TrustedClone, offer: BundleOffer) -> None:
        async with self._fetch_locks[str(clone.path)]:
            if not all([await clone.has(sha) for sha in offer.wants]):
                await self._bundle_server.fetch(self._bus, clone, offer)

    async def _fetch(self, clone: TrustedClone, entry: Registered, ref: str) -> str:
        request = {
            "ask": "commit",
            "repository": entry.id,
            "ref": ref,
            "tenant": entry.tenant,
            "haves": await newest_commits(clone),
        }
        reply = await send_request(self._bus, REPOSITORY_SERVICE, request)
        await self._ensure_commits(clone, codec.load(BundleOffer, reply.get("offer")))
        sha = str(reply.get("sha"))
        await clone.entries(sha)
        return sha

    async def push(self, repository: str, base_sha: str, sha: str, branch: str) -> tuple[str, str]:
        """Ask the server to create a branch of a commit of this host. See
        `RepositoryService.push`.
        """
        entry = await asyncio.to_thread(self.registry.find, repository)
        offer = await self._bundle_server.offer(self._clone(entry), [sha], [base_sha])
        request = {
            "ask": "push",
            "repository": repository,
            "tenant": entry.tenant,
            "offer": codec.dump(offer),
        }
        reply = await send_request(
            self._bus,
            REPOSITORY_SERVICE,
            {**request, "base_sha": base_sha, "sha": sha, "branch": branch},
        )
        return str(reply.get("branch")), str(reply.get("origin"))

    async def answer(self, request: Message) -> tuple[Message, bytes]:
        """Serve a patch created on this host; ignore requests for unknown ones."""
        if request.get("ask") == "part":
            return await self._bundle_server.read_part(request)
        repository, tenant, sha, base_sha = _read_strings(
            request, "repository", "tenant", "sha", "base_sha"
        )
        try:
            clone = self._clone(self.registry.get(repository, tenant))
        except NotFound as error:
            raise InvalidRequest(error.message) from error
        if request.get("ask") != "patch" or not await clone.has(sha):
            raise InvalidRequest(f"the patch {sha[:40]} is not stored here")
        return await self._bundle_server.run_or_wait(
            request, lambda _: self._offer(clone, sha, base_sha)
        ), b""

    async def _offer(self, clone: TrustedClone, sha: str, base_sha: str) -> Message:
        return {"offer": codec.dump(await self._bundle_server.offer(clone, [sha], [base_sha]))}


class RepositoryServer:
    """The server of the repositories on this disk, for hosts."""

    def __init__(
        self, repositories: RepositoryService, bundle_server: BundleServer, bus: Ask
    ) -> None:
        self._repositories, self._bundle_server, self._bus = repositories, bundle_server, bus

    async def answer(self, request: Message) -> tuple[Message, bytes]:
        """Answer one request. See `ports.Answerer`."""
        if request.get("ask") == "part":
            return await self._bundle_server.read_part(request)
        handlers = {"base": self._base, "commit": self._commit, "push": self._push}
        handler = handlers.get(str(request.get("ask")))
        if handler is None:
            raise InvalidRequest(f"unknown request {str(request.get('ask'))[:40]!r}")
        return await self._bundle_server.run_or_wait(request, handler), b""

    async def _base(self, request: Message) -> Message:
        repository, tenant, sha = _read_strings(request, "repository", "tenant", "ref")
        base = await self._repositories.resolve(
            RepositoryRef(id=repository, ref=sha), tenant=tenant
        )
        entry = self._repositories.registry.get(repository, tenant)
        record = entry.model_dump(mode="json", include={"id", "origin", "tenant", "push", "of"})
        offer = await self._bundle_server.offer(
            self._repositories.clone(repository), [base.sha], _haves(request)
        )
        return {"base": codec.dump(base), "entry": record, "offer": codec.dump(offer)}

    async def _commit(self, request: Message) -> Message:
        repository, tenant, ref = _read_strings(request, "repository", "tenant", "ref")
        self._repositories.registry.get(repository, tenant)
        sha = await self._repositories.fetch(repository, ref)
        offer = await self._bundle_server.offer(
            self._repositories.clone(repository), [sha], _haves(request)
        )
        return {"sha": sha, "offer": codec.dump(offer)}

    async def _push(self, request: Message) -> Message:
        repository, tenant, base_sha, sha, branch = _read_strings(
            request, "repository", "tenant", "base_sha", "sha", "branch"
        )
        self._repositories.registry.get(repository, tenant)
        offer = codec.load(BundleOffer, request.get("offer"))
        await self._bundle_server.fetch(
            self._bus, self._repositories.clone(repository), offer, patch=True
        )
        name, origin = await self._repositories.push(repository, base_sha, sha, branch)
        return {"branch": name, "origin": origin}


def enable_patch_fetching(
    repositories: RepositoryService, bundle_server: BundleServer, bus: Ask
) -> None:
    """Let the service fetch missing patches from the hosts that created them."""

    async def fetch_patch(repository: str, base_sha: str, sha: str) -> None:
        tenant = repositories.registry.find(repository).tenant
        request = {
            "ask": "patch",
            "repository": repository,
            "tenant": tenant,
            "sha": sha,
            "base_sha": base_sha,
        }
        reply, _ = await bus(HOSTS, request, _PATCH_TIMEOUT_SECONDS)
        await bundle_server.fetch(
            bus,
            repositories.clone(repository),
            codec.load(BundleOffer, reply.get("offer")),
            patch=True,
        )

    repositories.fetch_missing = fetch_patch


def _parse_record(record: object) -> Registered:
    try:
        return Registered.model_validate(record)
    except ValidationError as error:
        raise Temporary(
            f"the server's record of the repository cannot be read: {codec.describe_errors(error)}"
        ) from error


def _read_strings(request: Message, *names: str) -> tuple[str, ...]:
    values = tuple(request.get(name) for name in names)
    if not all(isinstance(value, str) for value in values):
        raise InvalidRequest(f"a request names {', '.join(names)}")
    return tuple(map(str, values))


def _haves(request: Message) -> Sequence[str]:
    haves: Any = request.get("haves")
    return [str(sha) for sha in haves] if isinstance(haves, list) else ()
