"""What a pod that does not come, or ends, says of itself, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PULL = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
_BROKEN = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_SHOWN = 400


def of_pod(pod: Mapping[str, Any]) -> str:
    """Return why a pod will never answer, or answers no more; '' while it may yet."""
    status = pod.get("status") or {}
    if reason := status.get("reason"):  # Evicted, DeadlineExceeded, NodeLost, …
        return _say(f"its pod was ended: {reason}", status.get("message"))
    for one in status.get("containerStatuses") or ():
        if wrong := _of_container(one):
            return wrong
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
