"""`moothall doctor`: checks of this installation, and how to fix failures. `moothall fleet`: the
hosts, where they run and what they work on. Descriptions of models for users.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import click

from moothall.cli.documents import findings_document
from moothall.cli.options import example, json_option
from moothall.cli.runtime import EXIT_NONE, plain, print_json, print_status, with_settings
from moothall.config import LlmSettings, RaySettings, Settings
from moothall.config.models import DEFAULT, SOURCE, checked_on
from moothall.domain.chat import ModelDescription, ReplyMode
from moothall.domain.status import Finding, HostState
from moothall.errors import MoothallError
from moothall.settings import FAMILIES

if TYPE_CHECKING:
    from moothall.llm.client import OpenAIModel


@click.command(epilog=example("moothall fleet", "moothall fleet --json"))
@json_option
@with_settings("asking the hosts")
async def fleet(settings: Settings, *, as_json: bool) -> int:
    """List the hosts that answer: each with its machine, its tasks and its start. Exit code 1 if
    none does.
    """
    from moothall.app.bus import hosts
    from moothall.cli.documents import FleetDocument
    from moothall.domain.codec import dump

    host_states = await hosts(settings)
    if as_json:
        print_json(dump(FleetDocument(host_states is not None, tuple(host_states or ()))))
    else:
        for host in host_states or ():
            for line in _lines(host):
                click.echo(plain(line))
        if not host_states:
            print_status(
                "no host answers"
                if host_states is not None
                else "no server is running here; start `moothall serve`"
            )
    return 0 if host_states else EXIT_NONE


def _lines(host: HostState) -> list[str]:
    work = f"holds {len(host.holds)}" if host.holds else "idle"
    first_line = (
        f"{host.name:<10}  {host.node:<20}  process {host.pid}, since {time_of(host.since)}, {work}"
    )
    return [
        first_line,
        *(f"{'':<10}  {task.task_id}  since {time_of(task.since)}" for task in host.holds),
    ]


def time_of(seconds: float) -> str:
    """Return a time in ISO format, readable for people and programs."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


@click.command(epilog=example("moothall doctor"))
@json_option
@with_settings()
async def doctor(settings: Settings, *, as_json: bool) -> int:
    """Check every part of this machine that Moothall needs. Exit code 1 if something is missing."""
    findings: list[Finding] = []
    async for finding in _examine(settings):
        findings.append(finding)
        if not as_json:
            mark = click.style("ok  ", fg="green") if finding.ok else click.style("FAIL", fg="red")
            click.echo(f"{mark}  {finding.part:<22} {finding.detail}")
            if finding.mend:
                click.echo(f"{'':<6}{'':<22} mend: {finding.mend}")
    if as_json:
        print_json(findings_document(findings))
    return 0 if all(finding.ok for finding in findings) else EXIT_NONE


async def _examine(settings: Settings) -> AsyncIterator[Finding]:
    from moothall.app.workspaces import examine_nodes, workspace_kind
    from moothall.events.adapter import SERVER_PACKAGE

    yield Finding("python", ok=sys.version_info >= (3, 11), detail=sys.version.split()[0])
    yield _data_dir(settings.data_dir)
    on_ray = settings.ray.mode == "ray" or settings.ray.address is not None
    local_model = any(llm.base_url is None for _, llm in settings.choice.items())
    for package, extra, is_needed in (
        ("ray", "ray", on_ray),
        (SERVER_PACKAGE, "", settings.bus.url is None),
        ("xllamacpp", "local", local_model),
    ):
        yield _package(package, extra, is_needed=is_needed)
    yield _event_loop()
    async for finding in workspace_kind(settings).examine(settings):
        yield finding
    yield await _bus(settings)
    if settings.ray.address is not None:
        access = await _ray_cluster(settings.ray, settings.ray.address)
        yield access
        if access.ok and settings.workspace.kind == "ray":
            async for finding in examine_nodes(settings):
                yield finding
    yield await _fleet(settings)
    for name, llm in settings.choice.items():
        async for finding in _model(
            settings.data_dir, llm, "model" if name == DEFAULT else f"model {name}"
        ):
            yield finding
    for family in FAMILIES:
        async for finding in family.examine(settings):
            yield finding


def _data_dir(path: Path) -> Finding:
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        test_file = path / ".doctor"
        test_file.write_bytes(b"")
        test_file.unlink()
    except OSError as error:
        return Finding(
            "data directory",
            ok=False,
            detail=f"{path}: {error.strerror}",
            mend="set MOOTHALL_DATA_DIR to a folder that you own",
        )
    return Finding("data directory", ok=True, detail=str(path))


def _package(name: str, extra: str, *, is_needed: bool) -> Finding:
    requirement = f"'moothall[{extra}]'" if extra else name
    try:
        return Finding(name, ok=True, detail=version(name))
    except PackageNotFoundError:
        if not is_needed:
            return Finding(name, ok=True, detail="not installed, and not needed")
        mend = f"pip install {requirement}, or run scripts/demo, which installs everything"
        return Finding(name, ok=False, detail="not installed", mend=mend)


def _event_loop() -> Finding:
    try:
        detail = f"uvloop {version('uvloop')}"
    except PackageNotFoundError:
        detail = "asyncio's; pip install 'moothall[server]' adds a faster one for servers"
    return Finding("event loop", ok=True, detail=detail)


async def _bus(settings: Settings) -> Finding:
    from moothall.app.bus import open_log
    from moothall.events.registry import EVENTS

    location = settings.bus.url or "embedded server"
    try:
        async with open_log(settings, lambda _: None) as bus:
            state = await bus.state(EVENTS.name)
    except MoothallError as error:
        return Finding(
            "bus",
            ok=False,
            detail=error.message,
            mend="start it, or unset MOOTHALL_BUS__URL for the embedded one",
        )
    return Finding(
        "bus", ok=True, detail=f"{location}; {state.messages} events, {state.bytes} bytes"
    )


async def _ray_cluster(ray: RaySettings, address: str) -> Finding:
    from moothall.workers.ray_setup import HELP, Access, describe_access, probe_access

    access, reason = await probe_access(address)
    detail = describe_access(access, address, reason)
    if access is Access.OPEN and ray.allow_no_token:
        return Finding(
            "ray cluster",
            ok=True,
            detail=f"{detail} and can read our credentials, which ray.allow_no_token accepts",
        )
    mend = {
        Access.RESTRICTED: "",
        Access.OPEN: HELP,
        Access.UNKNOWN: "Check ray.address, and that the cluster runs",
    }[access]
    return Finding("ray cluster", ok=access is Access.RESTRICTED, detail=detail, mend=mend)


async def _fleet(settings: Settings) -> Finding:
    from moothall.app.bus import hosts

    mend = "see their logs, and Ray's logs if ray.address is set; `moothall serve` restarts them"
    try:
        host_states = await hosts(settings)
    except MoothallError as error:
        return Finding("fleet", ok=False, detail=error.message, mend=mend)
    if host_states is None:
        return Finding("fleet", ok=True, detail="no server is running")
    host_texts = "; ".join(
        f"{host.name} on {host.node} since {time_of(host.since)}, {_work_of(host)}"
        for host in host_states
    )
    return Finding(
        "fleet",
        ok=bool(host_states),
        detail=host_texts or "no host answers",
        mend="" if host_states else mend,
    )


def _work_of(host: HostState) -> str:
    return (
        ", ".join(f"holds {task.task_id} since {time_of(task.since)}" for task in host.holds)
        or "idle"
    )


async def _model(data_dir: Path, llm: LlmSettings, part: str) -> AsyncIterator[Finding]:
    from moothall.llm.client import open_model
    from moothall.llm.weights import local_weights

    if llm.base_url is None:
        weights = local_weights(llm, data_dir)
        detail = (
            f"local, {weights}"
            if weights
            else "local; its weights (490 MB) are fetched at the first run"
        )
        yield Finding(part, ok=True, detail=detail)
        return
    without_retries = llm.model_copy(
        update={"retries": 0}
    )  # a diagnosis should not wait for a server to recover
    try:
        async with open_model(without_retries, llm.base_url) as model:
            notes = await model.examine()
            description = await model.describe()
            detail = (
                f"{description.model} at {model.url}; {describe_reply(description.reply)}; "
                f"{window_text(llm, description)}; {price_text(llm)}"
            )
            yield await _add_metrics(model, part, detail)
            yield Finding(f"{part} server", ok=True, detail="; ".join(notes))
    except MoothallError as error:
        profile = part.removeprefix("model ")
        mend = (
            "MOOTHALL_LLM__BASE_URL and MOOTHALL_LLM__MODEL"
            if part == profile
            else f"base_url and model of [models.{profile}]"
        )
        yield Finding(part, ok=False, detail=error.message, mend=f"check {mend}")


async def _add_metrics(model: OpenAIModel, part: str, detail: str) -> Finding:
    """Add a vLLM server's metrics to the detail. Calls still work if a gateway hides the
    metrics.
    """
    try:
        metrics = await model.server_metrics()
    except MoothallError as error:
        return Finding(
            part, ok=True, detail=f"{detail}; vLLM's metrics cannot be read: {error.message}"
        )
    if metrics is None:
        return Finding(part, ok=True, detail=detail)
    detail += f"; vLLM, {metrics.running or 0:g} calls running and {metrics.waiting or 0:g} waiting"
    if metrics.missing:
        missing = ", ".join(metrics.missing)
        return Finding(
            part,
            ok=False,
            detail=f"{detail}; it does not report {missing}",
            mend="use a vLLM near 0.32 (docs/models.md)",
        )
    return Finding(part, ok=True, detail=detail)


# Descriptions of models for users.


def describe_reply(mode: ReplyMode) -> str:
    """Describe how a model calls tools."""
    return {"tools": "native tool calls", "json": "replies as json", "blocks": "replies as blocks"}[
        mode
    ]


def window_text(llm: LlmSettings, about: ModelDescription) -> str:
    """Describe the window and the longest reply of a model, and their source."""
    fitted = llm.fitted(about.window, about.most_tokens)
    if llm.context_tokens:
        source = "llm.context_tokens"
    elif about.window:
        source = about.source
    else:
        source = "assumed, since the server does not report it: set MOOTHALL_LLM__CONTEXT_TOKENS"
    return (
        f"window of {fitted.context_tokens:,} tokens ({source}); replies of up to "
        f"{fitted.max_tokens:,} tokens"
    )


def price_text(llm: LlmSettings) -> str:
    """Describe the prices of a model and their source. `llm` names the model."""
    priced = llm.with_known_prices()
    if not (priced.price_in or priced.price_out):
        return "no known price, so costs are 0 unless llm.price_in and llm.price_out are set"
    source = (
        "llm.price_in, llm.price_out"
        if priced is llm
        else f"{SOURCE}, {checked_on()}; llm.price_in and price_out override"
    )
    cached = "" if priced.price_cached is None else f" (${priced.price_cached:g} from the cache)"
    return (
        f"${priced.price_in:g} for a million prompt tokens{cached}, ${priced.price_out:g} for a "
        f"million completion tokens ({source})"
    )
