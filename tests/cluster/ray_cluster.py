"""Start Ray nodes on loopback, two by default, and print their address and the last one's raylet.

Each line of standard input adds a node; its end stops all of them.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ.update(
    RAY_USAGE_STATS_ENABLED="0",
    RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0",  # otherwise Ray uses the machine's external address
    RAY_enable_worker_prestart="0",
    RAY_raylet_start_wait_time_s="120",
    RAY_agent_register_timeout_ms="120000",  # a busy machine starts its agents slowly
)

from ray.cluster_utils import Cluster

_NODE = {"num_cpus": 1, "object_store_memory": 80_000_000, "node_ip_address": "127.0.0.1"}


def main(folder: str, nodes: str = "2") -> None:
    """Serve until the input ends. All of Ray's files are below `folder`."""
    os.environ["RAY_TMPDIR"] = folder
    # Ray writes its address there for other processes, and expects a folder.
    (Path(folder) / "ray").mkdir()
    cluster = Cluster(
        initialize_head=True,
        connect=False,
        head_node_args={**_NODE, "include_dashboard": False, "temp_dir": folder},
    )
    try:
        members = [
            cluster.head_node,
            *(cluster.add_node(wait=True, **_NODE) for _ in range(int(nodes) - 1)),
        ]
        raylet = members[-1].all_processes["raylet"][0].process.pid
        sys.stdout.write(json.dumps({"address": cluster.address, "raylet": raylet}) + "\n")
        sys.stdout.flush()
        for _ in sys.stdin:
            cluster.add_node(wait=True, **_NODE)
    finally:
        cluster.shutdown()  # type: ignore[no-untyped-call]  # Ray publishes no type


if __name__ == "__main__":
    main(*sys.argv[1:])
