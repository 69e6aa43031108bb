"""The rules of this process's tool gateways, from settings and the bus. Commands use this module to
read operators' overrides and parked requests.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from moothall.authorization.approvals import (
    APPROVAL_SECONDS,
    SPENT_BUCKET,
    ApprovalQueue,
    Approvals,
)
from moothall.authorization.approvals import BUCKET as PARKED_BUCKET
from moothall.authorization.audit import AuditLog
from moothall.authorization.audit_export import AuditShipper, ship_in_background
from moothall.authorization.keys import Keys, keys_of
from moothall.authorization.limits import TOKEN_SECONDS, SharedRates
from moothall.authorization.rules import (
    REVOKED,
    ROLES_FILE,
    SWITCHES,
    Grants,
    Policy,
    Revocations,
    Rules,
    Switches,
    policies_folder,
    read_grants,
)
from moothall.authorization.tokens import Tokens
from moothall.concurrency import run_in_background
from moothall.config import GuardSettings, LimitSettings, Settings
from moothall.errors import ConfigurationError
from moothall.ports import Bus, Toolkit
from moothall.settings import FAMILIES, Families, family_tools, unset_tools
from moothall.tools.catalogue import CATALOGUE
from moothall.tools.code_tools import SHELL
from moothall.tools.spec import ToolSpec
from moothall.workspace.wasm import read_tools

_GRACE_SECONDS = 60.0
_MAX_TENANTS = 1000
_DECISION_SECONDS = 60.0
"""How long a decision of the policy is cached."""
_OPA_SECONDS = 1.0
"""The time limit of the OPA server for one decision; a timeout is a deny."""


@asynccontextmanager
async def open_rules(
    settings: Settings, bus: Bus, families: Families = FAMILIES, *, keys: Keys | None = None
) -> AsyncIterator[Rules]:
    """Read tables and policies, and follow operators' overrides. None for `keys` means the keys of
    this data directory. Raises `ConfigurationError` and `BusUnavailable`.
    """
    catalogue = await asyncio.to_thread(catalogue_of, settings, families)
    off = Switches(bus.bucket(SWITCHES), catalogue)
    revoked = Revocations(bus.bucket(REVOKED))
    signing_keys = (
        await asyncio.to_thread(keys_of, settings.guard, settings.data_dir)
        if keys is None
        else keys
    )
    parking = parking_of(bus, signing_keys)
    await asyncio.gather(off.refresh(), revoked.refresh(), parking.refresh())
    tokens = Tokens(signing_keys.guard, longest_token(settings.limits), revoked=revoked.any)
    async with AsyncExitStack() as stack:
        policy = await stack.enter_async_context(open_policy(settings.guard))
        for work, name in (
            (off.run(), "tools"),
            (revoked.run(), "revocations"),
            (parking.run(), "parked"),
        ):
            await stack.enter_async_context(run_in_background(work, name))
        toolkits: dict[str, Toolkit] = {}
        close_callbacks: list[Callable[[str], Awaitable[None]]] = []
        for family in families:
            opened = await stack.enter_async_context(family.open(settings))
            toolkits |= {spec.category: opened.toolkit for spec in family.specs(settings)}
            close_callbacks += [opened.close_workspace] if opened.close_workspace else []

        async def close_workspace(workspace_id: str) -> None:
            for callback in close_callbacks:
                await callback(workspace_id)

        yield Rules(
            off=off.off,
            unset=functools.lru_cache(_MAX_TENANTS)(
                lambda tenant: unset_tools(settings, tenant, families)
            ),
            grants=await asyncio.to_thread(read_table, settings.guard, catalogue),
            tokens=tokens,
            policy=policy,
            parking=parking,
            rates=SharedRates(bus.bucket("rates")),
            toolkits=toolkits,
            catalogue=catalogue,
            close_workspace=close_workspace,
        )


def catalogue_of(settings: Settings, families: Families = FAMILIES) -> Mapping[str, ToolSpec]:
    """Return all tools: those of Moothall and the operator's own. Raises `ConfigurationError`."""
    shell, max_seconds = CATALOGUE[SHELL], settings.workspace.check_seconds
    return {
        **CATALOGUE,
        SHELL: replace(shell, caps=replace(shell.caps, seconds=max_seconds)),
        **family_tools(settings, families),
        **{tool.spec.name: tool.spec for tool in read_tools(settings.wasm.folder)},
    }


def parking_of(bus: Bus, keys: Keys) -> ApprovalQueue:
    """Return the queue of requests that wait for operators. It is empty until it is refreshed."""
    approvals = Approvals(keys.guard, APPROVAL_SECONDS, public=keys.approvals)
    return ApprovalQueue(bus.bucket(PARKED_BUCKET), bus.bucket(SPENT_BUCKET), approvals)


def longest_token(limits: LimitSettings) -> float:
    """Return the maximum lifetime of a token in seconds. A seat's token must last for a
    deliberation.
    """
    return max(TOKEN_SECONDS, limits.deliberation_seconds + _GRACE_SECONDS)


def read_table(guard: GuardSettings, catalogue: Mapping[str, ToolSpec]) -> Grants:
    """Read the table of grants. Raises `ConfigurationError`."""
    file = _folder(guard) / ROLES_FILE
    if guard.policies is not None and not file.exists():
        file = policies_folder() / ROLES_FILE
    try:
        return read_grants(file.read_text(encoding="utf-8"), catalogue.values())
    except OSError as error:
        raise ConfigurationError(
            f"the table of roles {file} cannot be read: {error.strerror}"
        ) from error


@asynccontextmanager
async def open_policy(guard: GuardSettings) -> AsyncIterator[Policy]:
    """Yield the operator's policy: off, from an OPA server, or Rego in this process."""
    if guard.policy == "off":
        yield Policy("off", None)
        return
    if guard.policy_url:
        from moothall.policy import opa

        token = guard.policy_token.get_secret_value() if guard.policy_token else ""
        async with opa(guard.policy_url, seconds=_OPA_SECONDS, token=token) as server:
            yield Policy(guard.policy, server.decide, keep_seconds=_DECISION_SECONDS)
        return
    from moothall.policy import Rego

    folder = _folder(guard)
    if guard.policies is not None and not any(folder.glob("*.rego")):
        folder = policies_folder()
    # Not created in another thread, because an engine belongs to the thread that creates it.
    engine = Rego(folder)
    try:
        yield Policy(guard.policy, engine.decide, keep_seconds=_DECISION_SECONDS)
    finally:
        engine.close()


def _folder(guard: GuardSettings) -> Path:
    folder = guard.policies
    if folder is None:
        return policies_folder()
    if not folder.is_dir():
        raise ConfigurationError(f"guard.policies {folder} is not a folder")
    return folder


@asynccontextmanager
async def audit_log(
    settings: Settings, bus: Bus, keys: Keys, writer: str
) -> AsyncIterator[AuditLog]:
    """Yield the audit log of this process's tool calls. `writer` is the name of this process."""
    async with AsyncExitStack() as stack:
        if settings.guard.audit_exporter == "otlp":
            from moothall.telemetry.recording import (
                EXPORT_INTERVAL_SECONDS,
                EXPORT_SECONDS,
                open_sender,
            )

            sender = stack.enter_context(open_sender(settings.trace, writer))
            shipper = AuditShipper(settings.data_dir, sender.send, EXPORT_INTERVAL_SECONDS)
            await stack.enter_async_context(
                ship_in_background(shipper, sender.close, EXPORT_SECONDS)
            )
        yield await stack.enter_async_context(
            AuditLog(
                settings.data_dir,
                writer,
                key=keys.audit,
                publish=bus.publish,
                keep_days=settings.guard.audit_days,
            )
        )


@asynccontextmanager
async def open_switches(settings: Settings) -> AsyncIterator[Switches]:
    """Yield the current switches of the serving process, or of this data directory."""
    from moothall.app.bus import open_log

    async with open_log(settings, lambda _: None) as bus:
        switches = Switches(bus.bucket(SWITCHES), await asyncio.to_thread(catalogue_of, settings))
        await switches.refresh()
        yield switches


@asynccontextmanager
async def open_parking(settings: Settings) -> AsyncIterator[ApprovalQueue]:
    """Yield the queue of requests that wait for an operator, as it is now."""
    from moothall.app.bus import open_log

    keys = await asyncio.to_thread(keys_of, settings.guard, settings.data_dir)
    async with open_log(settings, lambda _: None) as bus:
        parking = parking_of(bus, keys)
        await parking.refresh()
        yield parking
