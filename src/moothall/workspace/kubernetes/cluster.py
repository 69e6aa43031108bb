"""The Jobs of one process in a cluster: created, watched and removed with the official client. It
blocks and therefore runs in threads. Errors describe why a pod did not start or ended.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Self, cast

from kubernetes import client, config, watch
from urllib3.exceptions import HTTPError
from urllib3.util.ssl_ import create_urllib3_context

from moothall.config import JobSettings, environment
from moothall.errors import ConfigurationError, SandboxUnavailable
from moothall.telemetry import get_logger
from moothall.workspace.kubernetes.manifest import APP_LABEL, HOST, LABEL, NAME

log = get_logger(__name__)

_PULL_ERRORS = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
)
_START_ERRORS = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
)
_REASON_CHARS = 400
CALL_SECONDS = 20
_WATCH_SECONDS, _RETRY_SECONDS = 300, 1.0
_GONE, _MISSING = 410, 404
_REFUSED = "involvedObject.kind=Job,reason=FailedCreate"
# The pod itself reports its eviction only after its last container has ended.
_EVICTED = "involvedObject.kind=Pod,reason=Evicted"
FAILURES = (client.ApiException, HTTPError, OSError, ValueError)
"""The errors of calls to the client, also for malformed responses; `error_text` returns the useful
part of one.
"""


def pod_failure(pod: Mapping[str, Any]) -> str:
    """Return why a pod will never answer or no longer answers; '' if it may answer."""
    status = pod.get("status") or {}
    if reason := status.get("reason"):  # Evicted, DeadlineExceeded, NodeLost, …
        return _with_detail(f"its pod was ended: {reason}", status.get("message"))
    for container_status in status.get("containerStatuses") or ():
        if failure := _container_failure(container_status):
            return failure
    return "its pod was deleted" if (pod.get("metadata") or {}).get("deletionTimestamp") else ""


def _container_failure(container_status: Mapping[str, Any]) -> str:
    state, name = container_status.get("state") or {}, container_status.get("name")
    waiting, terminated = state.get("waiting") or {}, state.get("terminated") or {}
    if waiting.get("reason") in _PULL_ERRORS:
        return _with_detail(
            f"the image {container_status.get('image')!r} of {name} cannot be pulled",
            waiting.get("message") or waiting["reason"],
        )
    if waiting.get("reason") in _START_ERRORS:
        return _with_detail(
            f"{name} cannot be started", waiting.get("message") or waiting["reason"]
        )
    if terminated.get("reason") == "OOMKilled":
        return f"{name} exceeded its memory limit (sandbox.memory_bytes) and was killed"
    return (
        _with_detail(
            f"{name} ended with {terminated.get('exitCode')}",
            terminated.get("message") or terminated.get("reason"),
        )
        if terminated
        else ""
    )


def pod_waiting_reason(pod: Mapping[str, Any]) -> str:
    """Return what a pod that is not running yet waits for, or ''."""
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return _with_detail("no node accepts it", condition.get("message"))
    return ""


def event_failure(event: Mapping[str, Any]) -> str:
    """Return why a Job gets no pod (a quota, pod security, another admission rule), or why its node
    evicts its pod.
    """
    is_evicted = event.get("reason") == "Evicted"
    return _with_detail(
        "its pod was ended: Evicted" if is_evicted else "the cluster refuses its pod",
        event.get("message"),
    )


def _with_detail(summary: str, detail: object) -> str:
    return f"{summary}: {str(detail)[:_REASON_CHARS]}" if detail else summary


class Cluster:
    """The Jobs of this process, as an async context manager that removes them at its end.

    host: names this process in labels.
    app: names the processes that share its bus.
    """

    def __init__(self, jobs: JobSettings, host: str, app: str = "") -> None:
        self._jobs, self.host, self._app = jobs, host, app
        self._created: set[str] = set()
        self._failures: dict[str, asyncio.Future[str]] = {}
        self._waiting_reasons: dict[str, str] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watches: list[watch.Watch] = []
        self._closed = threading.Event()

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(self._connect)
        own_pods = {"label_selector": f"{LABEL}={NAME},{HOST}={self.host}"}
        for kind, listing, handler, selector in (
            ("pods", self._core.list_namespaced_pod, self._handle_pod, own_pods),
            (
                "refusals",
                self._core.list_namespaced_event,
                self._handle_event,
                {"field_selector": _REFUSED},
            ),
            (
                "evictions",
                self._core.list_namespaced_event,
                self._handle_event,
                {"field_selector": _EVICTED},
            ),
        ):
            threading.Thread(
                target=self._watch,
                args=(listing, handler),
                kwargs=selector,
                name=f"kubernetes-{kind}",
                daemon=True,
            ).start()
        return self

    async def __aexit__(self, *details: object) -> None:
        await asyncio.gather(*(self.remove(name) for name in tuple(self._created)))
        self._closed.set()
        for watcher in self._watches:
            watcher.stop()
        await asyncio.to_thread(self._api.close)

    def _connect(self) -> None:
        self._api = connect()
        self._batch, self._core = client.BatchV1Api(self._api), client.CoreV1Api(self._api)
        try:
            self._batch.list_namespaced_job(
                self._jobs.namespace, limit=1, _request_timeout=CALL_SECONDS
            )
        except FAILURES as error:
            raise ConfigurationError(
                f"Jobs cannot be created in the namespace {self._jobs.namespace!r}: "
                f"{error_text(error)}"
            ) from error

    @property
    def labels(self) -> dict[str, str]:
        """The labels of all Jobs of this process."""
        return {LABEL: NAME, HOST: self.host, APP_LABEL: self._app}

    def created_here(self, name: str) -> bool:
        """Return whether a Job was created by this process and not removed yet."""
        return name in self._created

    async def hosts(self) -> dict[str, str]:
        """Return the hosts of all Jobs of this server by the names of the Jobs. Raises
        `SandboxUnavailable`.
        """
        try:
            response: Any = await asyncio.to_thread(
                self._batch.list_namespaced_job,
                self._jobs.namespace,
                label_selector=f"{LABEL}={NAME},{APP_LABEL}={self._app}",
                _preload_content=False,
                _request_timeout=CALL_SECONDS,
            )
            metadata = [job["metadata"] for job in json.loads(response.data)["items"]]
        except FAILURES as error:
            raise SandboxUnavailable(f"Jobs cannot be listed: {error_text(error)}") from error
        return {job["name"]: job["labels"].get(HOST, "") for job in metadata}

    async def create(self, manifest: dict[str, Any]) -> None:
        """Create a Job. Raises `SandboxUnavailable`."""
        name = manifest["metadata"]["name"]
        body = cast("client.V1Job", manifest)  # the client accepts a plain document
        self._failures[name] = asyncio.get_running_loop().create_future()
        self._created.add(name)
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
                f"no Job can be created for a workspace: {error_text(error)}"
            ) from error

    async def label(self, name: str, labels: Mapping[str, str]) -> None:
        """Add labels to a Job. They are informative: without the right to patch Jobs, everything
        else works.
        """
        escaped_keys = {key: key.replace("~", "~0").replace("/", "~1") for key in labels}
        patch = [
            {"op": "add", "path": f"/metadata/labels/{escaped_keys[key]}", "value": value}
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
            log.info(
                "a workspace's Job could not be labelled with its owner",
                job=name,
                reason=error_text(error),
            )

    def wait_for_failure(self, name: str) -> asyncio.Future[str]:
        """Return a future of the reason why the Job's pod will never answer or no longer
        answers.
        """
        return self._failures[name]

    def waiting_reason(self, name: str) -> str:
        """Return what a pod that has not started waits for, or ''."""
        return self._waiting_reasons.get(name, "")

    async def remove(self, name: str) -> None:
        """Delete a Job and its pod. If that fails, the Job ends by itself once its link gets no
        messages.
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
                    reason=error_text(error),
                )
        self._created.discard(name)
        self._waiting_reasons.pop(name, None)
        if (future := self._failures.pop(name, None)) is not None and not future.done():
            future.cancel()

    def _watch(
        self,
        listing: Callable[..., Any],
        handler: Callable[[str, Mapping[str, Any]], None],
        **selector: str,
    ) -> None:
        """Follow a listing until closed. After an interruption, the current state is listed
        first.
        """
        while not self._closed.is_set():
            watcher = watch.Watch()
            self._watches.append(watcher)
            try:
                for event in watcher.stream(
                    listing,
                    self._jobs.namespace,
                    timeout_seconds=_WATCH_SECONDS,
                    _request_timeout=_WATCH_SECONDS + 10,
                    **selector,
                ):
                    if self._loop is None or self._closed.is_set():
                        return
                    self._loop.call_soon_threadsafe(handler, event["type"], event["raw_object"])
            except FAILURES as error:
                if not self._closed.is_set() and getattr(error, "status", 0) != _GONE:
                    log.warning(
                        "the watch of the cluster was interrupted; trying again",
                        reason=error_text(error),
                    )
            except RuntimeError:
                return  # the event loop is closed, so the process ends
            finally:
                self._watches.remove(watcher)
            self._closed.wait(_RETRY_SECONDS)

    def _handle_pod(self, kind: str, pod: Mapping[str, Any]) -> None:
        name = str(((pod.get("metadata") or {}).get("labels") or {}).get("job-name"))
        if name in self._failures:
            self._waiting_reasons[name] = pod_waiting_reason(pod)
        self._report_failure(
            name, pod_failure(pod) or ("its pod was deleted" if kind == "DELETED" else "")
        )

    def _handle_event(self, _kind: str, event: Mapping[str, Any]) -> None:
        involved_object = event.get("involvedObject") or {}
        name = str(involved_object.get("name"))
        # The controller of a Job appends five characters to the name of each pod.
        self._report_failure(
            name.rpartition("-")[0] if involved_object.get("kind") == "Pod" else name,
            event_failure(event),
        )

    def _report_failure(self, name: str, failure: str) -> None:
        future = self._failures.get(name)
        if failure and future is not None and not future.done():
            future.set_result(failure)


def connect() -> client.ApiClient:
    """Return a client of the configured cluster, without a call to it: that of KUBECONFIG, of the
    pod's service account, or of kubectl's default file. Raises `ConfigurationError`.
    """
    try:
        if file := environment().get("KUBECONFIG"):
            api = cast("client.ApiClient", config.new_client_from_config(config_file=file))
        else:
            api = _default_client()
    except config.ConfigException as error:
        raise ConfigurationError(
            f"workspace.kind is kubernetes, but no cluster is configured: {error}; set "
            "KUBECONFIG, or run in a pod with a service account"
        ) from error
    _accept_minimal_certificates(api)
    return api


def _accept_minimal_certificates(api: client.ApiClient) -> None:
    """Accept certificates of an API server without key identifiers.

    Python 3.13 refuses them by default (`VERIFY_X509_STRICT`), but the authorities of many clusters
    do not set them, among them older ones of EKS. The chain, the dates and the host name are still
    verified.
    """
    if not api.configuration.verify_ssl:
        return
    context = create_urllib3_context()
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    api.rest_client.pool_manager.connection_pool_kw["ssl_context"] = context


def _default_client() -> client.ApiClient:
    """Return a client of the pod's service account, or of kubectl's default file."""
    configuration = client.Configuration()
    with suppress(config.ConfigException):
        config.load_incluster_config(client_configuration=configuration)
        return client.ApiClient(configuration)
    return cast("client.ApiClient", config.new_client_from_config())


def error_text(error: BaseException) -> str:
    """Return the message of the API server or of the connection."""
    if body := getattr(error, "body", None):
        with suppress(ValueError, TypeError, AttributeError):
            return str(json.loads(body).get("message"))[:400]
    return str(getattr(error, "reason", None) or error)[:400]
