"""A NetworkPolicy enforcer for tests: it turns the API server's policies into one nftables table in
each node's network.

No common network plugin is available from the registries. This one is small, polls, and knows pod
and namespace selectors, IP blocks, protocols and numeric ports. The node itself always reaches its
pods, for its probes.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from kubernetes import client

from support.kube.node import nodes
from support.kube.programs import Home

_POLL_SECONDS = 0.5


def rules(
    pods: Sequence[Any], namespaces: Mapping[str, Mapping[str, str]], policies: Sequence[Any]
) -> str:
    """Return the table, as `nft -f` reads it. Each of `pods` has an address; `namespaces` holds
    their labels by name.
    """
    chains, ways = [], []
    for number, pod in enumerate(pods):
        of_it = [
            policy
            for policy in policies
            if policy.metadata.namespace == pod.metadata.namespace
            and _selects(policy.spec.pod_selector, pod.metadata.labels or {})
        ]
        for direction, kind, field in (("in", "Ingress", "daddr"), ("out", "Egress", "saddr")):
            applicable = [
                policy for policy in of_it if kind in (policy.spec.policy_types or ["Ingress"])
            ]
            if not applicable:
                continue
            name = f"{direction}{number}"
            lines = sorted(
                {
                    line
                    for policy in applicable
                    for line in _allowed_connections(policy, direction, pods, namespaces)
                }
            )
            chains.append(
                f"chain {name} {{\n"
                + "".join(f"{line} return\n" for line in lines)
                + "counter reject\n}\n"
            )
            ways.append((direction, f"ip {field} {pod.status.pod_ip} jump {name}\n"))
    outward = "".join(line for direction, line in ways if direction == "out")
    forward = outward + "".join(line for direction, line in ways if direction == "in")
    head = "policy accept;\nct state established,related accept\n"
    hooks = f"chain forward {{ type filter hook forward priority -5; {head}{forward}}}\n"
    hooks += f"chain input {{ type filter hook input priority -5; {head}{outward}}}\n"
    return (
        "table ip moothall-policies\ndelete table ip moothall-policies\ntable ip "
        f"moothall-policies {{\n{''.join(chains)}{hooks}}}\n"
    )


def _selects(selector: Any, labels: Mapping[str, str]) -> bool:
    if selector is None:
        return False
    if any(labels.get(key) != value for key, value in (selector.match_labels or {}).items()):
        return False
    operators = {
        "In": lambda expression: labels.get(expression.key) in expression.values,
        "NotIn": lambda expression: labels.get(expression.key) not in expression.values,
        "Exists": lambda expression: expression.key in labels,
        "DoesNotExist": lambda expression: expression.key not in labels,
    }
    return all(
        operators[expression.operator](expression)
        for expression in selector.match_expressions or []
    )


def _allowed_connections(
    policy: Any, direction: str, pods: Sequence[Any], namespaces: Mapping[str, Mapping[str, str]]
) -> Iterator[str]:
    """Yield the connections that a policy allows, as conditions of a rule."""
    for rule in (policy.spec.ingress if direction == "in" else policy.spec.egress) or []:
        peers = rule._from if direction == "in" else rule.to
        field = "saddr" if direction == "in" else "daddr"
        hosts = (
            [_hosts(peer, policy.metadata.namespace, field, pods, namespaces) for peer in peers]
            if peers
            else [""]
        )
        ports = [_port(peer) for peer in rule.ports] if rule.ports else [""]
        yield from (f"{host} {port}" for host in hosts if host is not None for port in ports)


def _hosts(
    peer: Any,
    namespace: str,
    field: str,
    pods: Sequence[Any],
    namespaces: Mapping[str, Mapping[str, str]],
) -> str | None:
    """Return the condition of a peer, None if it matches nobody."""
    if peer.ip_block:
        but = ", ".join(peer.ip_block._except or [])
        return (f"ip {field} != {{ {but} }} " if but else "") + f"ip {field} {peer.ip_block.cidr}"
    selected = {namespace}
    if peer.namespace_selector is not None:
        selected = {
            name for name, labels in namespaces.items() if _selects(peer.namespace_selector, labels)
        }
    addresses = [
        pod.status.pod_ip
        for pod in pods
        if pod.metadata.namespace in selected
        and (peer.pod_selector is None or _selects(peer.pod_selector, pod.metadata.labels or {}))
    ]
    return f"ip {field} {{ {', '.join(sorted(set(addresses)))} }}" if addresses else None


def _port(port: Any) -> str:
    protocol = (port.protocol or "TCP").lower()
    if port.port is None:
        return f"meta l4proto {protocol}"
    return f"{protocol} dport {port.port}" + (f"-{port.end_port}" if port.end_port else "")


@contextmanager
def enforce_policies(api: client.ApiClient, home: Home, *spaces: str) -> Iterator[None]:
    """Enforce the policies of these namespaces until the context ends, and leave other namespaces
    alone. Errors are raised at the end.
    """
    over, first, failed = threading.Event(), threading.Event(), list[Exception]()

    def hold() -> None:
        last = ""
        while not over.wait(0 if not last else _POLL_SECONDS):
            try:
                last = _apply(api, home, spaces, last)
            except Exception as error:  # noqa: BLE001 - reported to the waiting caller
                failed.append(error)
                over.set()
            first.set()

    thread = threading.Thread(target=hold, name="policies", daemon=True)
    thread.start()
    try:
        first.wait()
        if failed:
            raise failed[0]
        yield
    finally:
        over.set()
        thread.join()
        for node in nodes(home):
            subprocess.run(
                node.command_line("nft", "delete", "table", "ip", "moothall-policies"),
                capture_output=True,
                check=False,
            )
    if failed:
        raise failed[0]


def _apply(api: client.ApiClient, home: Home, spaces: Collection[str], last: str) -> str:
    core: Any = client.CoreV1Api(api)
    pods = [
        pod
        for pod in core.list_pod_for_all_namespaces().items
        if pod.status.pod_ip
        and not pod.spec.host_network
        and pod.status.phase in {"Pending", "Running"}
    ]
    namespaces = {
        pod.metadata.name: pod.metadata.labels or {} for pod in core.list_namespace().items
    }
    policies: Any = client.NetworkingV1Api(api).list_network_policy_for_all_namespaces()
    table = rules(
        pods, namespaces, [pod for pod in policies.items if pod.metadata.namespace in spaces]
    )
    if table != last:
        for node in nodes(home):
            subprocess.run(
                node.command_line("nft", "-f", "-"),
                input=table,
                text=True,
                capture_output=True,
                check=True,
            )
    return table
