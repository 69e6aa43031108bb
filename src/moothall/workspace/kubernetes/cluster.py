"""The Jobs of one process in a cluster: created, watched and removed with the official client. It
blocks and therefore runs in threads. Errors describe why a pod did not start or ended.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Self, cast

from kubernetes import client, config, watch
from urllib3.exceptions import HTTPError

from moothall.config import JobSettings
from moothall.errors import ConfigurationError, SandboxUnavailable
from moothall.telemetry import get_logger
from moothall.workspace.kubernetes.manifest import HOST, HOUSE, LABEL, NAME

_PULL = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
_BROKEN = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_SHOWN = 400


def of_pod(pod: Mapping[str, Any]) -> str:
    """Return why a pod will never answer, or answers no more; '' while it may yet."""
    status = pod.get("status") or {}
    if reason := status.get("reason"):  # Evicted, DeadlineExceeded, NodeLost, …
        return _say(f"its pod was ended: {reason}", status.get("message"))
    for one in status.get("containerStatuses") or ():
        if failure := _of_container(one):
            return failure
    return "its pod was deleted" if (pod.get("metadata") or {}).get("deletionTimestamp") else ""


def _of_container(one: Mapping[str, Any]) -> str:
    state, name = one.get("state") or {}, one.get("name")
    waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
    if waiting.get("reason") in _PULL:
        return _say(
            f"the image {one.get('image')!r} of {name} cannot be pulled",
            waiting.get("message") or waiting["reason"],
        )
    if waiting.get("reason") in _BROKEN:
        return _say(f"{name} cannot be started", waiting.get("message") or waiting["reason"])
    if ended.get("reason") == "OOMKilled":
        return f"{name} used more memory than it may (sandbox.memory_bytes) and was killed"
    return (
        _say(
            f"{name} ended with {ended.get('exitCode')}",
            ended.get("message") or ended.get("reason"),
        )
        if ended
        else ""
    )


def of_waiting(pod: Mapping[str, Any]) -> str:
    """Return what a pod that is not running yet waits for, where it says so."""
    for one in (pod.get("status") or {}).get("conditions") or ():
        if one.get("type") == "PodScheduled" and one.get("status") == "False":
            return _say("no node takes it", one.get("message"))
    return ""


def of_event(event: Mapping[str, Any]) -> str:
    """Return why a Job gets no pod (a quota, pod security, what else an admission refuses), or why
    its node evicts the one that it has.
    """
    evicted = event.get("reason") == "Evicted"
    return _say(
        "its pod was ended: Evicted" if evicted else "the cluster refuses its pod",
        event.get("message"),
    )


def _say(what: str, why: object) -> str:
    return f"{what}: {str(why)[:_SHOWN]}" if why else what


log = get_logger(__name__)

CALL_SECONDS = 20
_WATCH_SECONDS, _AGAIN_SECONDS = 300, 1.0
_GONE, _MISSING = 410, 404
_REFUSED = "involvedObject.kind=Job,reason=FailedCreate"
# the pod itself says it only when its last container has ended
_EVICTED = "involvedObject.kind=Pod,reason=Evicted"
FAILURES = (client.ApiException, HTTPError, OSError, ValueError)
"""What a call of the client raises, of a document that is none too; `words` says what of it is
worth reading.
"""


class Cluster:
    """An async context manager: what it made is removed when it ends. `host` names this process in
    labels, `app` those who share its bus.
    """

    def __init__(self, jobs: JobSettings, host: str, app: str = "") -> None:
        self._jobs, self.host, self._app = jobs, host, app
        self._made: set[str] = set()
        self._wrong: dict[str, asyncio.Future[str]] = {}
        self._waits: dict[str, str] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watches: list[watch.Watch] = []
        self._closed = threading.Event()

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(self._connect)
        of_ours = {"label_selector": f"{LABEL}={NAME},{HOST}={self.host}"}
        for what, listing, saw, select in (
            ("pods", self._core.list_namespaced_pod, self._saw_pod, of_ours),
            (
                "refusals",
                self._core.list_namespaced_event,
                self._saw_event,
                {"field_selector": _REFUSED},
            ),
            (
                "evictions",
                self._core.list_namespaced_event,
                self._saw_event,
                {"field_selector": _EVICTED},
            ),
        ):
            threading.Thread(
                target=self._watch,
                args=(listing, saw),
                kwargs=select,
                name=f"kubernetes-{what}",
                daemon=True,
            ).start()
        return self

    async def __aexit__(self, *details: object) -> None:
        await asyncio.gather(*(self.remove(name) for name in tuple(self._made)))
        self._closed.set()
        for one in self._watches:
            one.stop()
        await asyncio.to_thread(self._api.close)

    def _connect(self) -> None:
        self._api = connect(self._jobs)
        self._batch, self._core = client.BatchV1Api(self._api), client.CoreV1Api(self._api)
        try:
            self._batch.list_namespaced_job(
                self._jobs.namespace, limit=1, _request_timeout=CALL_SECONDS
            )
        except FAILURES as error:
            raise ConfigurationError(
                f"Jobs cannot be made in the namespace {self._jobs.namespace!r}: {words(error)}"
            ) from error

    @property
    def labels(self) -> dict[str, str]:
        """What the Jobs of this process are known by."""
        return {LABEL: NAME, HOST: self.host, HOUSE: self._app}

    def made(self, name: str) -> bool:
        """Whether a Job is one of this process that it has not removed yet."""
        return name in self._made

    async def hosts(self) -> dict[str, str]:
        """Return the host of each Job that there is of this server, by the Job's name. Raises
        `SandboxUnavailable`.
        """
        try:
            answer: Any = await asyncio.to_thread(
                self._batch.list_namespaced_job,
                self._jobs.namespace,
                label_selector=f"{LABEL}={NAME},{HOUSE}={self._app}",
                _preload_content=False,
                _request_timeout=CALL_SECONDS,
            )
            about = [one["metadata"] for one in json.loads(answer.data)["items"]]
        except FAILURES as error:
            raise SandboxUnavailable(f"Jobs cannot be listed: {words(error)}") from error
        return {one["name"]: one["labels"].get(HOST, "") for one in about}

    async def create(self, manifest: dict[str, Any]) -> None:
        """Make a Job. Raises `SandboxUnavailable`."""
        name, body = (
            manifest["metadata"]["name"],
            cast("client.V1Job", manifest),
        )  # the client takes a document as it is
        self._wrong[name] = asyncio.get_running_loop().create_future()
        self._made.add(name)
        try:
            await asyncio.to_thread(
                self._batch.create_namespaced_job,
                self._jobs.namespace,
                body,
                _request_timeout=CALL_SECONDS,
            )
        except FAILURES as error:
            await self.remove(name)
            raise SandboxUnavailable(
                f"no Job can be made for a workspace: {words(error)}"
            ) from error

    async def label(self, name: str, labels: Mapping[str, str]) -> None:
        """Add labels to a Job. They are for people: without the right to patch Jobs, nothing else
        changes.
        """
        ways = {key: key.replace("~", "~0").replace("/", "~1") for key in labels}
        patch = [
            {"op": "add", "path": f"/metadata/labels/{ways[key]}", "value": value}
            for key, value in labels.items()
        ]
        try:
            await asyncio.to_thread(
                self._batch.patch_namespaced_job,
                name,
                self._jobs.namespace,
                patch,
                _request_timeout=CALL_SECONDS,
            )
        except FAILURES as error:
            log.info("a workspace's Job does not say whose it is", job=name, reason=words(error))

    def wait_for_failure(self, name: str) -> asyncio.Future[str]:
        """Return what is done once the Job's pod will never answer, or answers no more, with the
        reason.
        """
        return self._wrong[name]

    def waiting_reason(self, name: str) -> str:
        """Return what a pod that is not there yet waits for, as far as it is known."""
        return self._waits.get(name, "")

    async def remove(self, name: str) -> None:
        """Delete a Job and its pod. One that cannot be deleted ends by itself when its link hears
        nobody.
        """
        try:
            await asyncio.to_thread(
                self._batch.delete_namespaced_job,
                name,
                self._jobs.namespace,
                propagation_policy="Background",
                grace_period_seconds=0,
                _request_timeout=CALL_SECONDS,
            )
        except FAILURES as error:
            if getattr(error, "status", 0) != _MISSING:
                log.warning(
                    "a workspace's Job could not be deleted; it ends by itself",
                    job=name,
                    reason=words(error),
                )
        self._made.discard(name)
        self._waits.pop(name, None)
        if (future := self._wrong.pop(name, None)) is not None and not future.done():
            future.cancel()

    def _watch(
        self,
        listing: Callable[..., Any],
        saw: Callable[[str, Mapping[str, Any]], None],
        **select: str,
    ) -> None:
        """Follow what happens until closed; what was missed meanwhile is listed first."""
        while not self._closed.is_set():
            watching = watch.Watch()
            self._watches.append(watching)
            try:
                for event in watching.stream(
                    listing,
                    self._jobs.namespace,
                    timeout_seconds=_WATCH_SECONDS,
                    _request_timeout=_WATCH_SECONDS + 10,
                    **select,
                ):
                    if self._loop is None or self._closed.is_set():
                        return
                    self._loop.call_soon_threadsafe(saw, event["type"], event["raw_object"])
            except FAILURES as error:
                if not self._closed.is_set() and getattr(error, "status", 0) != _GONE:
                    log.warning("the cluster is not heard; trying again", reason=words(error))
            except RuntimeError:
                return  # the loop is closed: so is the process
            finally:
                self._watches.remove(watching)
            self._closed.wait(_AGAIN_SECONDS)

    def _saw_pod(self, kind: str, pod: Mapping[str, Any]) -> None:
        name = str(((pod.get("metadata") or {}).get("labels") or {}).get("job-name"))
        if name in self._wrong:
            self._waits[name] = of_waiting(pod)
        self._say(name, of_pod(pod) or ("its pod was deleted" if kind == "DELETED" else ""))

    def _saw_event(self, _kind: str, event: Mapping[str, Any]) -> None:
        of = event.get("involvedObject") or {}
        name = str(of.get("name"))
        # A Job's controller puts five characters of its own behind the name of each pod.
        self._say(name.rpartition("-")[0] if of.get("kind") == "Pod" else name, of_event(event))

    def _say(self, name: str, failure: str) -> None:
        future = self._wrong.get(name)
        if failure and future is not None and not future.done():
            future.set_result(failure)


def connect(jobs: JobSettings) -> client.ApiClient:
    """Return a client of the cluster that settings mean; nothing is asked yet. Raises
    `ConfigurationError`.
    """
    try:
        if jobs.context or jobs.kubeconfig:
            file = str(jobs.kubeconfig) if jobs.kubeconfig else None
            return cast(
                "client.ApiClient",
                config.new_client_from_config(config_file=file, context=jobs.context or None),
            )
        return _default_client()
    except config.ConfigException as error:
        raise ConfigurationError(
            f"workspace.kind is kubernetes and no cluster is known: {error}; give jobs.kubeconfig, "
            "or run in a pod with a service account"
        ) from error


def _default_client() -> client.ApiClient:
    """In a pod its service account, else what kubectl would take."""
    own = client.Configuration()
    with suppress(config.ConfigException):
        config.load_incluster_config(client_configuration=own)
        return client.ApiClient(own)
    return cast("client.ApiClient", config.new_client_from_config())


def words(error: BaseException) -> str:
    """Return what the API server, or the way to it, said."""
    if body := getattr(error, "body", None):
        with suppress(ValueError, TypeError, AttributeError):
            return str(json.loads(body).get("message"))[:400]
    return str(getattr(error, "reason", None) or error)[:400]
