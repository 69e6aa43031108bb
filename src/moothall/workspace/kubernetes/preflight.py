"""Checks whether a cluster can run Jobs for workspaces, for `moothall doctor`. Removal of Jobs
whose host is gone.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

from kubernetes import client
from kubernetes.utils import parse_quantity

from moothall.config import JobSettings, WorkspaceSections
from moothall.domain.status import Finding
from moothall.errors import ConfigurationError, MoothallError
from moothall.telemetry import get_logger
from moothall.workspace.executor_client import ExecutorSetup
from moothall.workspace.kubernetes import manifest
from moothall.workspace.kubernetes.cluster import (
    CALL_SECONDS,
    FAILURES,
    Cluster,
    connect,
    error_text,
)
from moothall.workspace.kubernetes.link import Transport

# Removal of Jobs whose host is gone. A link ends by itself without messages, but a Job whose link
# never started must be deleted.
#
# Each process that creates Jobs publishes beats on the bus and receives those of others. Each
# deletes the Jobs of its server whose host has sent no beat for long. Several processes may delete
# the same Job.


log = get_logger(__name__)

PRESENCE = "hosts"
"""The name of the topic of beats; no Job has that name."""
_BEATS = 6
"""How many beats a host sends in the time after which it counts as gone; half of them may be lost.
"""


class Reconciler:
    """A task that deletes orphaned Jobs. `seconds` is the time without a beat after which a host
    counts as gone.
    """

    def __init__(
        self,
        cluster: Cluster,
        carrier: Transport,
        seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster, self._carrier, self._seconds, self._clock = cluster, carrier, seconds, clock
        self._last_beats: dict[str, float] = {}
        self._listening_since = self._last_own_beat = clock()

    async def run(self) -> None:
        """Send beats, receive beats and delete orphans, independently of each other, so that a slow
        cluster does not delay beats.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self._receive_beats(), name="hosts of jobs")
            for action, failure_message in (
                (self._send_beat, "the beat of this host could not be sent"),
                (self.delete_orphans, "orphaned Jobs could not be deleted"),
            ):
                group.create_task(self._repeat(action, failure_message), name="jobs without a host")

    async def _repeat(self, action: Callable[[], Awaitable[None]], failure_message: str) -> None:
        while True:
            try:
                await action()
            except MoothallError as error:
                log.warning(failure_message, reason=error.message)
            await asyncio.sleep(self._seconds / _BEATS)

    async def _send_beat(self) -> None:
        await self._carrier.send(PRESENCE, self._cluster.host.encode())

    async def _receive_beats(self) -> None:
        while True:
            try:
                async with aclosing(self._carrier.listen(PRESENCE)) as messages:
                    async for message in messages:
                        self.record_beat(message.decode(errors="replace"))
            except MoothallError as error:
                log.warning(
                    "beats of other hosts cannot be received; trying again", reason=error.message
                )
            await asyncio.sleep(self._seconds / _BEATS)

    def record_beat(self, host: str) -> None:
        """Record the beat of a host."""
        now = self._clock()
        self._last_beats[host] = now
        if host == self._cluster.host:
            # A process that missed its own beats missed those of others too, so it knows no more
            # than one that just started.
            if now - self._last_own_beat > self._seconds / 2:
                self._listening_since = now
            self._last_own_beat = now

    async def delete_orphans(self) -> None:
        """Delete the Jobs whose host is gone. Raises `SandboxUnavailable`."""
        hosts = await self._cluster.hosts()
        now = self._clock()
        self._last_beats = {
            host: last_beat
            for host, last_beat in self._last_beats.items()
            if now - last_beat <= self._seconds
        }
        misses_beats = now - self._last_own_beat > self._seconds / 2
        for name, host in hosts.items():
            if host == self._cluster.host:
                # It was removed, but the cluster missed the deletion.
                is_orphan = not self._cluster.created_here(name)
            else:
                is_orphan = (
                    not misses_beats
                    and host not in self._last_beats
                    and now - self._listening_since > self._seconds
                )
            if is_orphan:
                log.info("a workspace's Job is deleted: its host is gone", job=name, host=host)
                await self._cluster.remove(name)


# Checks whether a cluster can run Jobs for workspaces, for `moothall doctor`.


_ROLE = "bind the Role `workspaces` of deploy/k8s/base/rbac.yaml to the account that runs hosts"
_JOBS, _PODS, _EVENTS = ("batch", "jobs"), ("", "pods"), ("", "events")
_REQUIRED_PERMISSIONS = (
    *((verb, *_JOBS) for verb in ("create", "delete", "list")),
    *((verb, *resource) for resource in (_PODS, _EVENTS) for verb in ("list", "watch")),
)
_Document = Mapping[str, Any]


async def examine(settings: WorkspaceSections, bus: Mapping[str, str]) -> AsyncIterator[Finding]:
    """Yield whether the cluster can be reached, whether we have the needed rights, whether the
    quota allows a workspace, and whether the cluster accepts its Job. `bus` is the environment with
    which the link would reach the bus.
    """
    try:
        api = await asyncio.to_thread(connect)
    except ConfigurationError as error:
        yield Finding(
            "cluster",
            ok=False,
            detail=error.message,
            mend="set KUBECONFIG, or run in a pod",
        )
        return
    name = f"moothall-doctor-{secrets.token_hex(4)}"
    document = manifest.job(
        name, {manifest.LABEL: manifest.NAME}, ExecutorSetup("doctor", (Path("/"),)), settings, bus
    )
    try:
        connection = await asyncio.to_thread(_check_connection, api)
        yield connection
        if connection.ok:
            yield await asyncio.to_thread(_check_rights, api, settings.jobs)
            yield await asyncio.to_thread(_read_quota, api, settings.jobs, document)
            yield await asyncio.to_thread(_dry_run, api, settings.jobs, document)
    finally:
        await asyncio.to_thread(api.close)


def _check_connection(api: client.ApiClient) -> Finding:
    server = str(api.configuration.host)
    try:
        response: Any = client.VersionApi(api).get_code(
            _preload_content=False, _request_timeout=CALL_SECONDS
        )
        version = json.loads(response.data)["gitVersion"]
    except FAILURES as error:
        mend = "check that it runs and can be reached; `kubectl cluster-info` tries the same"
        return Finding("cluster", ok=False, detail=f"{server}: {error_text(error)}", mend=mend)
    return Finding("cluster", ok=True, detail=f"Kubernetes {version} at {server}")


def _check_rights(api: client.ApiClient, jobs: JobSettings) -> Finding:
    part, space = "cluster rights", jobs.namespace
    try:
        lacks = [
            f"{verb} {resource}"
            for verb, group, resource in _REQUIRED_PERMISSIONS
            if not _is_allowed(api, space, verb, group, resource)
        ]
        may_label = _is_allowed(api, space, "patch", *_JOBS)
    except FAILURES as error:
        return Finding(
            part, ok=False, detail=f"the rights are unknown: {error_text(error)}", mend=_ROLE
        )
    if lacks:
        return Finding(part, ok=False, detail=f"missing in {space}: {', '.join(lacks)}", mend=_ROLE)
    nameless = (
        ""
        if may_label
        else "; a spare workspace cannot be labelled with its task (missing: patch jobs)"
    )
    return Finding(
        part,
        ok=True,
        detail=f"in {space}: create, list and delete Jobs, watch pods and events{nameless}",
    )


def _is_allowed(api: client.ApiClient, space: str, verb: str, group: str, resource: str) -> bool:
    review = {
        "spec": {
            "resourceAttributes": {
                "namespace": space,
                "verb": verb,
                "group": group,
                "resource": resource,
            }
        }
    }
    body = cast("client.V1SelfSubjectAccessReview", review)  # the client accepts a plain document
    response: Any = client.AuthorizationV1Api(api).create_self_subject_access_review(
        body, _preload_content=False, _request_timeout=CALL_SECONDS
    )
    return bool(json.loads(response.data)["status"]["allowed"])


def _read_quota(api: client.ApiClient, jobs: JobSettings, document: _Document) -> Finding:
    part = "cluster quota"
    try:
        response: Any = client.CoreV1Api(api).list_namespaced_resource_quota(
            jobs.namespace, _preload_content=False, _request_timeout=CALL_SECONDS
        )
        quotas = json.loads(response.data)["items"]
    except FAILURES as error:
        return Finding(part, ok=True, detail=f"unknown: {error_text(error)}")
    requested, lines, full = requested_amounts(document), [], []
    for quota in quotas:
        status = quota.get("status") or {}
        for resource, limit in (status.get("hard") or {}).items():
            used = (status.get("used") or {}).get(resource, "0")
            line = f"{resource} {used} of {limit}"
            lines.append(line)
            if resource in requested and _quantity(used) + requested[resource] > _quantity(limit):
                full.append(line)
    if full:
        mend = f"raise the ResourceQuota of {jobs.namespace}, or wait until workspaces end"
        return Finding(
            part, ok=False, detail=f"too low for another workspace: {', '.join(full)}", mend=mend
        )
    return Finding(part, ok=True, detail=", ".join(lines) or f"{jobs.namespace} has no quota")


def requested_amounts(document: _Document) -> dict[str, Decimal]:
    """Return the amounts that a quota counts for a Job, by the names in the quota."""
    amounts = dict.fromkeys(("pods", "count/pods", "count/jobs.batch"), Decimal(1))
    for resource, amount in _resources(document):
        for name in (resource, resource.removeprefix("requests.")):
            amounts[name] = amounts.get(name, Decimal(0)) + amount
    return amounts


def _resources(document: _Document) -> Iterator[tuple[str, Decimal]]:
    for container in document["spec"]["template"]["spec"]["containers"]:
        for kind, amounts in container["resources"].items():
            for resource, amount in amounts.items():
                yield f"{kind}.{resource}", _quantity(amount)


def _quantity(text: str) -> Decimal:
    return cast("Decimal", parse_quantity(text))  # type: ignore[no-untyped-call]  # the client publishes no types here


def _dry_run(api: client.ApiClient, jobs: JobSettings, document: _Document) -> Finding:
    """Do a dry run: the API server does everything with the Job except storing it."""
    part, body = "cluster job", cast("client.V1Job", document)
    try:
        response: Any = client.BatchV1Api(api).create_namespaced_job(
            jobs.namespace,
            body,
            dry_run="All",
            _preload_content=False,
            _request_timeout=CALL_SECONDS,
        )
    except FAILURES as error:
        mend = (
            f"check the namespace {jobs.namespace} and the settings of `jobs` "
            "(`moothall config --help`)"
        )
        return Finding(
            part,
            ok=False,
            detail=f"the cluster refuses the Job of a workspace: {error_text(error)}",
            mend=mend,
        )
    if warning := response.headers.get("Warning"):
        return Finding(
            part,
            ok=False,
            detail=f"the cluster warns: {warning[:400]}",
            mend="change the named settings of `jobs`",
        )
    return Finding(part, ok=True, detail="the Job of a workspace is accepted (dry run)")
