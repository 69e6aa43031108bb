"""Approvals by an operator: the queue of denied requests, and the signed approval of one of
them.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from moothall.authorization.checks import CallContext, Stopped
from moothall.authorization.keys import approval_key
from moothall.domain.codec import dump, load
from moothall.domain.ids import Principal, digest
from moothall.domain.tool import ToolCall, ToolStatus
from moothall.errors import AlreadyExists, BusUnavailable, InvalidRequest, NotFound, Refused
from moothall.ports import Bucket
from moothall.telemetry import get_logger
from moothall.tools.schemas import arguments_digest

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PublicKey,
    )


# An operator's approval of one parked request: signed, valid for that request only, usable once,
# and short-lived.
#
# It is signed with a private key (Ed25519) and checked with the public one, so that a remote host
# can check approvals and cannot sign them.


TYPE = "moothall-approval+jwt"
_ALGORITHM = "EdDSA"


class ExpiredApproval(Refused):
    """A genuine approval that has expired."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The call that an approval covers."""

    tenant: str
    workspace: str
    request_id: str
    tool: str
    arguments_digest: str


@dataclass(frozen=True, slots=True)
class Approval:
    """A checked grant. `id` is recorded as spent when the approval is used."""

    id: str
    approver: str


APPROVAL_SECONDS = 900.0
"""How long an operator's approval of a parked request is valid."""


class Approvals:
    """A signer and checker of approvals, with the root key. With `public` set it only checks.
    `seconds` is the lifetime of an approval.
    """

    def __init__(
        self,
        key: bytes,
        seconds: float,
        clock: Callable[[], float] = time.time,
        *,
        public: bytes = b"",
    ) -> None:
        self._key, self._public = key, public
        self._seconds = seconds
        self._clock = clock

    def sign(self, subject: Subject, approver: str) -> str:
        """Return the grant. Raises `Refused` if only the public key is known."""
        import jwt

        if self._public:
            raise Refused("approvals are signed by the server, not by a host")

        now = self._clock()
        claims = {
            "sub": approver,
            "iat": int(now),
            "exp": int(now + self._seconds),
            "jti": secrets.token_hex(12),
            **asdict(subject),
        }
        return jwt.encode(
            claims, approval_key(self._key), algorithm=_ALGORITHM, headers={"typ": TYPE}
        )

    def check(self, grant: str, subject: Subject) -> Approval:
        """Return the approval of a grant. Raises `Refused` if the grant is forged, expired, or
        covers something else.
        """
        import jwt

        try:
            if jwt.get_unverified_header(grant).get("typ") != TYPE:
                raise Refused("the approval has the wrong type")
            claims = jwt.decode(
                grant,
                self._public_key(),
                algorithms=[_ALGORITHM],
                options={
                    "require": ["sub", "iat", "exp", "jti"],
                    "verify_exp": False,
                    "verify_iat": False,
                },
            )
        except (jwt.InvalidTokenError, ValueError, TypeError, RecursionError) as error:
            raise Refused(f"the approval is refused: {str(error)[:200]}") from error
        if any(claims.get(name) != value for name, value in asdict(subject).items()):
            raise Refused("the approval is for another request")
        if claims["exp"] <= self._clock():
            raise ExpiredApproval("the approval has expired")
        return Approval(str(claims["jti"]), str(claims["sub"]))

    def _public_key(self) -> Ed25519PublicKey:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        return (
            Ed25519PublicKey.from_public_bytes(self._public)
            if self._public
            else approval_key(self._key).public_key()
        )


# Denied requests that an operator may allow. They are stored in a bucket that every process
# follows.


log = get_logger(__name__)

BUCKET, SPENT_BUCKET = "parked", "spent"
_MAX_SHOWN_CHARS = 2000


@dataclass(frozen=True, slots=True)
class Parked:
    """A denied request and its resolution. `arguments` are shown to operators, with long texts
    cut. `workspace` and `task_id` are keys in storage, and the tenant's own ids in lists for
    operators.
    """

    id: str
    request_id: str
    tenant: str
    workspace: str
    task_id: str
    seat: str
    principal: str
    role: str
    tool: str
    arguments: Mapping[str, Any]
    arguments_digest: str
    reason: str
    time: str
    state: Literal["waiting", "allowed", "refused"] = "waiting"
    approver: str = ""
    comment: str = ""
    grant: str = ""

    @property
    def subject(self) -> Subject:
        """The subject of an approval of this request."""
        return Subject(
            self.tenant, self.workspace, self.request_id, self.tool, self.arguments_digest
        )


class ApprovalQueue:
    """The buckets `parked` and `spent`, cached by this process."""

    def __init__(self, parked: Bucket, spent: Bucket, approvals: Approvals) -> None:
        self._parked = parked
        self._spent = spent
        self._approvals = approvals
        self._items: dict[str, Parked] = {}
        self._notified: set[tuple[str, str]] = set()
        self._listeners: list[Callable[[Parked], None]] = []

    async def refresh(self) -> None:
        """Read the current entries. Raises `BusUnavailable`."""
        for key, document in (await self._parked.entries()).items():
            self._store(key, document)

    async def run(self) -> None:
        """Follow the bucket until cancelled."""
        async with aclosing(self._parked.follow()) as changes:
            async for key, document in changes:
                item = self._store(key, document)
                if (
                    item is not None
                    and item.state != "waiting"
                    and (item.id, item.grant) not in self._notified
                ):
                    self._notified.add((item.id, item.grant))
                    for listener in self._listeners:
                        listener(item)

    def on_resolved(self, listener: Callable[[Parked], None]) -> None:
        """Call `listener` once for each request that any process allows or refuses, including old
        ones.
        """
        self._listeners.append(listener)

    def list_waiting(self, tenant: str) -> Sequence[Parked]:
        """Return the requests that wait for an operator of this tenant, oldest first."""
        waiting = (
            item
            for item in self._items.values()
            if item.tenant == tenant and item.state == "waiting"
        )
        return sorted(waiting, key=lambda item: (item.time, item.id))

    async def park(self, context: CallContext, call: ToolCall, reason: str) -> Parked:
        """Park a request. The same request of the same seat is parked once. Raises
        `BusUnavailable`.
        """
        parked = self._items.get(_key(context, call))
        if parked is not None and parked.state in {"waiting", "refused"}:
            return parked
        item = Parked(
            id=_key(context, call).rpartition(".")[2],
            request_id=call.request_id,
            tenant=context.tenant,
            workspace=context.workspace_id,
            task_id=context.task_id,
            seat=context.seat,
            principal=context.principal.name,
            role=context.role,
            tool=call.tool,
            arguments={name: _shorten(value) for name, value in call.arguments.items()},
            arguments_digest=arguments_digest(call.arguments),
            reason=reason[:500],
            time=datetime.now(UTC).isoformat(timespec="milliseconds"),
        )
        await self._put(item)
        return item

    async def resolve(
        self, tenant: str, reference: str, *, allow: bool, approver: str, comment: str = ""
    ) -> Parked:
        """Allow or refuse a parked request, named by its id or its request id. Raises `NotFound`,
        `InvalidRequest`, `BusUnavailable`.
        """
        matches = [
            item
            for item in self._items.values()
            if item.tenant == tenant and reference in {item.id, item.request_id}
        ]
        waiting = [item for item in matches if item.state == "waiting"]
        if not matches:
            raise NotFound(
                f"no parked request {reference[:80]!r}; `moothall tools requeue list` shows them"
            )
        if len(waiting) != 1:
            reason = (
                "several requests with that request id are parked; name one by its own id"
                if waiting
                else f"it was {matches[0].state} already"
            )
            raise InvalidRequest(
                f"the parked request {reference[:80]!r} cannot be resolved: {reason}"
            )
        item = waiting[0]
        grant = self._approvals.sign(item.subject, approver) if allow else ""
        state: Literal["allowed", "refused"] = "allowed" if allow else "refused"
        resolved = replace(item, state=state, approver=approver, comment=comment[:500], grant=grant)
        await self._put(resolved)
        return resolved

    async def spend_approval(self, context: CallContext, call: ToolCall) -> Approval | None:
        """Spend the approval of this call and return it; None without one. An approval
        can be spent once.

        A seat that repeats the same call under another request id spends it too. Raises `Refused`
        if the approval is forged, or if the approved request itself comes again after the approval
        was spent or has expired. Raises `BusUnavailable`.
        """
        item = self._items.get(_key(context, call))
        if item is None or item.state != "allowed":
            return None
        subject = replace(
            item.subject, tenant=context.tenant, workspace=context.workspace_id, tool=call.tool
        )
        repeated = call.request_id == item.request_id
        try:
            approval = self._approvals.check(
                item.grant, replace(subject, arguments_digest=arguments_digest(call.arguments))
            )
            await self._spent.create(
                approval.id, {"request_id": item.request_id, "approver": approval.approver}
            )
        except ExpiredApproval:
            if repeated:
                raise
            return None
        except AlreadyExists as error:
            if repeated:
                raise Refused("the approval was already used") from error
            return None
        return approval

    async def _put(self, item: Parked) -> None:
        key = f"{item.tenant}.{item.id}"
        # The grant is sent in parts, because events are scrubbed of what looks like a token.
        await self._parked.put(key, {**dump(item), "grant": item.grant.split(".")})
        self._items[key] = item

    def _store(self, key: str, document: Mapping[str, Any]) -> Parked | None:
        try:
            parts = document.get("grant", [])
            item = load(
                Parked,
                {**document, "grant": ".".join(map(str, parts)) if isinstance(parts, list) else ""},
            )
        except InvalidRequest as error:
            log.warning("a parked request cannot be read", key=key, reason=error.message)
            return None
        if f"{item.tenant}.{item.id}" != key:
            log.warning("a parked request is stored under the key of another request", key=key)
            return None
        self._items[key] = item
        return item


async def check_approval(
    parking: ApprovalQueue, context: CallContext, call: ToolCall, stopped: Stopped
) -> Approval:
    """Return the approval of an operator who has allowed this call. Otherwise park the call and
    raise `Stopped`.
    """
    try:
        approval = await parking.spend_approval(context, call)
        if approval is not None:
            log.info(
                "a parked request runs",
                request=call.request_id,
                tool=call.tool,
                approver=approval.approver,
            )
            return approval
        item = await parking.park(context, call, stopped.reason)
    except (Refused, BusUnavailable) as error:
        raise Stopped(
            ToolStatus.BLOCKED, error.message, escape=isinstance(error, Refused)
        ) from error
    if item.state == "refused":
        raise Stopped(
            ToolStatus.BLOCKED, f"an operator refused it: {item.comment or stopped.reason}"
        )
    reason = (
        f"{stopped.reason}. It waits for an operator as {item.id}; continue without it, or repeat "
        "the same call later"
    )
    raise Stopped(ToolStatus.PARKED, reason)


def refuse_unless_operator(principal: Principal) -> None:
    """Raise `Refused` unless the principal is an operator."""
    if not principal.operator:
        raise Refused(
            f"{principal.name} is not an operator: give the account or token the role `operator`"
        )


def _key(context: CallContext, call: ToolCall) -> str:
    call_digest = digest(
        context.workspace_id, context.seat, call.tool, arguments_digest(call.arguments)
    )[:24]
    return f"{context.tenant}.{call_digest}"


def _shorten(value: Any) -> Any:
    return (
        f"{value[:_MAX_SHOWN_CHARS]}…"
        if isinstance(value, str) and len(value) > _MAX_SHOWN_CHARS
        else value
    )
