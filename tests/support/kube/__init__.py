"""A real Kubernetes on one machine, for tests, without a container engine or an image registry:
only Debian's packages and Go's modules.

A node is a set of namespaces (mount, network, host name, processes) in which containerd, kubelet
and kube-proxy run, as kind does with a container. Requires root. `scripts/cluster` is its command.
"""

import os

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
"""The name of this worker among those that share the cluster, for the names of its own objects."""
