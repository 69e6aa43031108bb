"""A real Kubernetes on one machine, for tests: no container engine and no image hub, only Debian's
packages and Go's modules.

A node is a set of namespaces (mount, network, host name, processes) in which containerd, kubelet
and kube-proxy run, as kind does it with a container. Root is needed. `scripts/cluster` is its door.
"""

import os

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
"""Which of the workers that share the cluster this is, for the names of what each has of its own.
"""
