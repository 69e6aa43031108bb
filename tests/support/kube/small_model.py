"""The small local model as a model server in the cluster: a pod of our image beside the server,
with the weights of this machine.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from moothall.llm.serve_local import ServerParameters
from support.kube.deployment import CLASS, SPACE

KEY, NAME, TOKENS = "key-of-the-small-model", "small", 4096
URL = f"http://{NAME}.{SPACE}:8000/v1"
VOLUME = f"{SPACE}-weights"
_ON = {"app.kubernetes.io/name": NAME}
_FRONT = """
import asyncio, json, os, sys
from asyncio.subprocess import PIPE

async def copy(source, sink):
    try:
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    finally:
        sink.close()

async def main():
    child = await asyncio.create_subprocess_exec(sys.executable, "-m", "moothall.llm.serve_local", stdin=PIPE, stdout=PIPE)
    child.stdin.write((os.environ["SERVE"] + "\\n").encode())
    port = json.loads(await child.stdout.readline())["port"]

    async def forward(reader, writer):
        there, back = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(copy(reader, back), copy(there, writer), return_exceptions=True)

    async with await asyncio.start_server(forward, "0.0.0.0", 8000) as server:
        await server.serve_forever()

asyncio.run(main())
"""  # the model listens on the loopback alone  # noqa: E501 - a line of embedded text


def objects(weights: Path) -> str:
    """Return the pod, its Service and the volume of its weights, for `kubectl apply` in the
    server's namespace.
    """
    parameters = ServerParameters(
        model=f"/models/{weights.name}",
        name=NAME,
        threads=2,
        slots=1,
        context_tokens=TOKENS,
        api_key=KEY,
        states="/tmp/states",
    )
    volume = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadOnlyMany"],
        "storageClassName": CLASS,
        "claimRef": {"namespace": SPACE, "name": "weights"},
        "hostPath": {"path": str(weights.parent)},
    }
    claim = {
        "accessModes": ["ReadOnlyMany"],
        "storageClassName": CLASS,
        "resources": {"requests": {"storage": "1Gi"}},
    }
    container = {
        "name": "model",
        "image": "registry.local/moothall:dev",
        "command": ["python", "-c", _FRONT],
        "env": [
            {"name": "SERVE", "value": json.dumps(asdict(parameters))},
            {"name": "HOME", "value": "/tmp"},
        ],
        "ports": [{"containerPort": 8000}],
        "readinessProbe": {"tcpSocket": {"port": 8000}, "periodSeconds": 2},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"memory": "3Gi"}},
        "volumeMounts": [
            {"name": "weights", "mountPath": "/models", "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }
    pod = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsUser": 1000,
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [
            {"name": "weights", "persistentVolumeClaim": {"claimName": "weights"}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }
    items = [
        _object("v1", "PersistentVolume", VOLUME, spec=volume),
        _object("v1", "PersistentVolumeClaim", "weights", SPACE, spec=claim),
        _object("v1", "Service", NAME, SPACE, spec={"selector": _ON, "ports": [{"port": 8000}]}),
        _object(
            "apps/v1",
            "Deployment",
            NAME,
            SPACE,
            spec={
                "selector": {"matchLabels": _ON},
                "template": {"metadata": {"labels": _ON}, "spec": pod},
            },
        ),
    ]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def _object(version: str, kind: str, name: str, space: str = "", **fields: Any) -> dict[str, Any]:
    placement = {"namespace": space} if space else {}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, **placement}, **fields}
