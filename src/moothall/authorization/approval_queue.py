"""Requests that were denied and that an operator may allow. They wait in a bucket that every
process follows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

from moothall.authorization.approvals import Approval, Approvals, ExpiredApproval, Subject
from moothall.authorization.call_context import CallContext, Stopped
from moothall.domain.codec import dump, load
from moothall.domain.identity import Principal
from moothall.domain.ids import digest
from moothall.domain.tool import ToolCall, ToolStatus
from moothall.errors import AlreadyExists, BusUnavailable, InvalidRequest, NotFound, Refused
from moothall.ports import Bucket
from moothall.telemetry import get_logger
from moothall.tools.arguments import arguments_digest

log = get_logger(__name__)

BUCKET, SPENT_BUCKET = "parked", "spent"
_SHOWN = 2000


@dataclass(frozen=True, slots=True)
class Parked:
    """A request that waits, or what an operator said of it. `arguments` are shown to operators,
    long texts cut.
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
        """What an approval is over."""
        return Subject(
            self.tenant, self.workspace, self.request_id, self.tool, self.arguments_digest
        )


class ApprovalQueue:
    """The buckets `parked` and `spent` as this process knows them."""

    def __init__(self, parked: Bucket, spent: Bucket, approvals: Approvals) -> None:
        self._parked = parked
        self._spent = spent
        self._approvals = approvals
        self._known: dict[str, Parked] = {}
        self._told: set[tuple[str, str]] = set()
        self._listeners: list[Callable[[Parked], None]] = []

    async def refresh(self) -> None:
        """Read how it stands now. Raises `BusUnavailable`."""
        for key, document in (await self._parked.entries()).items():
            self._take(key, document)

    async def run(self) -> None:
        """Follow until cancelled."""
        async with aclosing(self._parked.follow()) as changes:
            async for key, document in changes:
                item = self._take(key, document)
                if (
                    item is not None
                    and item.state != "waiting"
                    and (item.id, item.grant) not in self._told
                ):
                    self._told.add((item.id, item.grant))
                    for listener in self._listeners:
                        listener(item)

    def on_resolved(self, listener: Callable[[Parked], None]) -> None:
        """Call `listener` with every request that is allowed or refused, by whatever process; each
        once, old ones too.
        """
        self._listeners.append(listener)

    def list_waiting(self, tenant: str) -> Sequence[Parked]:
        """Return what waits for an operator of this tenant, the longest first."""
        found = (
            item
            for item in self._known.values()
            if item.tenant == tenant and item.state == "waiting"
        )
        return sorted(found, key=lambda item: (item.time, item.id))

    async def park(self, seat: CallContext, call: ToolCall, reason: str) -> Parked:
        """Let a request wait; the same of the same seat waits once. Raises `BusUnavailable`."""
        known = self._known.get(_key(seat, call))
        if known is not None and known.state in {"waiting", "refused"}:
            return known
        item = Parked(
            id=_key(seat, call).rpartition(".")[2],
            request_id=call.request_id,
            tenant=seat.tenant,
            workspace=seat.workspace_id,
            task_id=seat.task_id,
            seat=seat.seat,
            principal=seat.principal.name,
            role=seat.role,
            tool=call.tool,
            arguments={name: _shorten(value) for name, value in call.arguments.items()},
            arguments_digest=arguments_digest(call.arguments),
            reason=reason[:500],
            time=datetime.now(UTC).isoformat(timespec="milliseconds"),
        )
        await self._put(item)
        return item

    async def resolve(
        self, tenant: str, named: str, *, allow: bool, approver: str, comment: str = ""
    ) -> Parked:
        """Allow or refuse what waits, named by its id or its request id. Raises `NotFound`,
        `InvalidRequest`, `BusUnavailable`.
        """
        found = [
            item
            for item in self._known.values()
            if item.tenant == tenant and named in {item.id, item.request_id}
        ]
        waiting = [item for item in found if item.state == "waiting"]
        if not found:
            raise NotFound(
                f"no parked request {named[:80]!r}; `moothall tools requeue list` shows them"
            )
        if len(waiting) != 1:
            said = (
                "several wait under that request id; name one by its id"
                if waiting
                else f"it was {found[0].state} already"
            )
            raise InvalidRequest(f"the parked request {named[:80]!r} cannot be resolved: {said}")
        item = waiting[0]
        grant = self._approvals.sign(item.subject, approver) if allow else ""
        state: Literal["allowed", "refused"] = "allowed" if allow else "refused"
        resolved = replace(item, state=state, approver=approver, comment=comment[:500], grant=grant)
        await self._put(resolved)
        return resolved

    async def spend_approval(self, seat: CallContext, call: ToolCall) -> Approval | None:
        """Spend the approval of this call, if there is one; None where there is none. Good once,
        whoever asks first.

        A seat that asks for the same again, under another request id, spends it too. Raises
        `Refused` where what is there is forged, or where the approved request itself comes again
        after it is spent or expired; `BusUnavailable`.
        """
        item = self._known.get(_key(seat, call))
        if item is None or item.state != "allowed":
            return None
        wanted = replace(
            item.subject, tenant=seat.tenant, workspace=seat.workspace_id, tool=call.tool
        )
        again = call.request_id == item.request_id
        try:
            approval = self._approvals.check(
                item.grant, replace(wanted, arguments_digest=arguments_digest(call.arguments))
            )
            await self._spent.create(
                approval.id, {"request_id": item.request_id, "approver": approval.approver}
            )
        except ExpiredApproval:
            if again:
                raise
            return None
        except AlreadyExists as error:
            if again:
                raise Refused("the approval was used already") from error
            return None
        return approval

    async def _put(self, item: Parked) -> None:
        key = f"{item.tenant}.{item.id}"
        # In parts: what looks like a token is scrubbed on its way to the bus, and this one is meant
        # to arrive.
        await self._parked.put(key, {**dump(item), "grant": item.grant.split(".")})
        self._known[key] = item

    def _take(self, key: str, document: Mapping[str, Any]) -> Parked | None:
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
            log.warning("a parked request lies under another's key", key=key)
            return None
        self._known[key] = item
        return item


async def check_approval(
    parking: ApprovalQueue, seat: CallContext, call: ToolCall, stopped: Stopped
) -> Approval:
    """Return the word of the operator who has allowed this call, once; else it waits for one, and
    `Stopped` says so.
    """
    try:
        approval = await parking.spend_approval(seat, call)
        if approval is not None:
            log.info(
                "a parked request runs",
                request=call.request_id,
                tool=call.tool,
                approver=approval.approver,
            )
            return approval
        item = await parking.park(seat, call, stopped.reason)
    except (Refused, BusUnavailable) as error:
        raise Stopped(
            ToolStatus.BLOCKED, error.message, escape=isinstance(error, Refused)
        ) from error
    if item.state == "refused":
        raise Stopped(
            ToolStatus.BLOCKED, f"an operator refused it: {item.comment or stopped.reason}"
        )
    words = (
        f"{stopped.reason}. It waits for an operator as {item.id}; go on without it, or ask for "
        "the same again later"
    )
    raise Stopped(ToolStatus.PARKED, words)


def refuse_unless_operator(who: Principal) -> None:
    """Only operators say what may be done. Raises `Refused`."""
    if not who.operator:
        raise Refused(
            f"{who.name} is no operator: `operator = true` in the file of tokens makes one"
        )


def _key(seat: CallContext, call: ToolCall) -> str:
    named = digest(seat.workspace_id, seat.seat, call.tool, arguments_digest(call.arguments))[:24]
    return f"{seat.tenant}.{named}"


def _shorten(value: Any) -> Any:
    return f"{value[:_SHOWN]}…" if isinstance(value, str) and len(value) > _SHOWN else value
