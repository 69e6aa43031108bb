"""Checks whether a cluster can run Jobs for workspaces, for `moothall doctor`."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

from kubernetes import client
from kubernetes.utils import parse_quantity

from moothall.config import JobSettings, WorkspaceSections
from moothall.domain.status import Finding
from moothall.errors import ConfigurationError
from moothall.workspace.executor_client import ExecutorSetup
from moothall.workspace.kubernetes import manifest
from moothall.workspace.kubernetes.cluster import CALL_SECONDS, FAILURES, connect, error_text

_ROLE = "the Role `workspaces` of deploy/k8s/base/rbac.yaml, bound to whoever runs hosts"
_JOBS, _PODS, _EVENTS = ("batch", "jobs"), ("", "pods"), ("", "events")
_NEEDED = (
    *((verb, *_JOBS) for verb in ("create", "delete", "list")),
    *((verb, *what) for what in (_PODS, _EVENTS) for verb in ("list", "watch")),
)
_Document = Mapping[str, Any]


async def examine(settings: WorkspaceSections, bus: Mapping[str, str]) -> AsyncIterator[Finding]:
    """Yield whether the cluster can be reached, whether we have the needed rights, whether its
    quota has room, and whether it accepts the Job of a workspace. `bus` is the environment by which
    its link would reach the bus.
    """
    try:
        api = await asyncio.to_thread(connect, settings.jobs)
    except ConfigurationError as error:
        yield Finding(
            "cluster",
            ok=False,
            detail=error.message,
            mend="set MOOTHALL_JOBS__KUBECONFIG, or run in a pod",
        )
        return
    name = f"moothall-doctor-{secrets.token_hex(4)}"
    document = manifest.job(
        name, {manifest.LABEL: manifest.NAME}, ExecutorSetup("doctor", (Path("/"),)), settings, bus
    )
    try:
        reached = await asyncio.to_thread(_reach, api)
        yield reached
        if reached.ok:
            yield await asyncio.to_thread(_ask_rights, api, settings.jobs)
            yield await asyncio.to_thread(_read_quota, api, settings.jobs, document)
            yield await asyncio.to_thread(_try_manifest, api, settings.jobs, document)
    finally:
        await asyncio.to_thread(api.close)


def _reach(api: client.ApiClient) -> Finding:
    where = str(api.configuration.host)
    try:
        said: Any = client.VersionApi(api).get_code(
            _preload_content=False, _request_timeout=CALL_SECONDS
        )
        version = json.loads(said.data)["gitVersion"]
    except FAILURES as error:
        mend = "is it on, and is the way to it free? `kubectl cluster-info` tries the same"
        return Finding("cluster", ok=False, detail=f"{where}: {error_text(error)}", mend=mend)
    return Finding("cluster", ok=True, detail=f"Kubernetes {version} at {where}")


def _ask_rights(api: client.ApiClient, jobs: JobSettings) -> Finding:
    part, space = "cluster rights", jobs.namespace
    try:
        lacks = [
            f"{verb} {what}"
            for verb, group, what in _NEEDED
            if not _may(api, space, verb, group, what)
        ]
        may_label = _may(api, space, "patch", *_JOBS)
    except FAILURES as error:
        return Finding(
            part, ok=False, detail=f"what we may do is not told: {error_text(error)}", mend=_ROLE
        )
    if lacks:
        return Finding(
            part, ok=False, detail=f"in {space} we may not {', '.join(lacks)}", mend=_ROLE
        )
    nameless = (
        ""
        if may_label
        else "; what is kept ready cannot be labelled with its task when it is taken (patch jobs)"
    )
    return Finding(
        part,
        ok=True,
        detail=f"in {space}: Jobs are made, listed and deleted, pods and events watched{nameless}",
    )


def _may(api: client.ApiClient, space: str, verb: str, group: str, what: str) -> bool:
    asked = {
        "spec": {
            "resourceAttributes": {
                "namespace": space,
                "verb": verb,
                "group": group,
                "resource": what,
            }
        }
    }
    body = cast("client.V1SelfSubjectAccessReview", asked)  # the client takes a document as it is
    said: Any = client.AuthorizationV1Api(api).create_self_subject_access_review(
        body, _preload_content=False, _request_timeout=CALL_SECONDS
    )
    return bool(json.loads(said.data)["status"]["allowed"])


def _read_quota(api: client.ApiClient, jobs: JobSettings, document: _Document) -> Finding:
    part = "cluster quota"
    try:
        said: Any = client.CoreV1Api(api).list_namespaced_resource_quota(
            jobs.namespace, _preload_content=False, _request_timeout=CALL_SECONDS
        )
        quotas = json.loads(said.data)["items"]
    except FAILURES as error:
        return Finding(part, ok=True, detail=f"not told: {error_text(error)}")
    wanted, told, full = wants(document), [], []
    for quota in quotas:
        status = quota.get("status") or {}
        for what, most in (status.get("hard") or {}).items():
            used = (status.get("used") or {}).get(what, "0")
            line = f"{what} {used} of {most}"
            told.append(line)
            if what in wanted and _quantity(used) + wanted[what] > _quantity(most):
                full.append(line)
    if full:
        mend = f"more of it in the ResourceQuota of {jobs.namespace}, or wait until workspaces end"
        return Finding(
            part, ok=False, detail=f"no room for one more workspace: {', '.join(full)}", mend=mend
        )
    return Finding(part, ok=True, detail=", ".join(told) or f"{jobs.namespace} has none")


def wants(document: _Document) -> dict[str, Decimal]:
    """Return the amounts that a quota counts for a Job, by the names in the quota."""
    found = dict.fromkeys(("pods", "count/pods", "count/jobs.batch"), Decimal(1))
    for what, amount in _resources(document):
        for name in (what, what.removeprefix("requests.")):
            found[name] = found.get(name, Decimal(0)) + amount
    return found


def _resources(document: _Document) -> Iterator[tuple[str, Decimal]]:
    for container in document["spec"]["template"]["spec"]["containers"]:
        for kind, amounts in container["resources"].items():
            for what, amount in amounts.items():
                yield f"{kind}.{what}", _quantity(amount)


def _quantity(text: str) -> Decimal:
    return cast("Decimal", parse_quantity(text))  # type: ignore[no-untyped-call]  # the client publishes no types here


def _try_manifest(api: client.ApiClient, jobs: JobSettings, document: _Document) -> Finding:
    """Do a dry run: the API server does everything with the Job except storing it."""
    part, body = "cluster job", cast("client.V1Job", document)
    try:
        said: Any = client.BatchV1Api(api).create_namespaced_job(
            jobs.namespace,
            body,
            dry_run="All",
            _preload_content=False,
            _request_timeout=CALL_SECONDS,
        )
    except FAILURES as error:
        mend = (
            f"the namespace {jobs.namespace} and the settings of `jobs` (`moothall config --help`)"
        )
        return Finding(
            part,
            ok=False,
            detail=f"the Job of a workspace is refused: {error_text(error)}",
            mend=mend,
        )
    if warned := said.headers.get("Warning"):
        return Finding(
            part,
            ok=False,
            detail=f"the cluster warns: {warned[:400]}",
            mend="what it names, in the settings of `jobs`",
        )
    return Finding(part, ok=True, detail="the Job of a workspace is accepted, in a dry run")
