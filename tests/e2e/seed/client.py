"""A client of the first protocol version, generated from `orchestrator.proto` beside it,
independent of this program.

    python client.py HOST:PORT TOKEN FOLDER

Prints the answer as JSON. It runs in a process of its own because its messages have the same names
as ours.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.json_format import MessageToJson
from grpc_tools import protoc


def main(address: str, token: str, folder: str) -> None:
    seed_folder = Path(__file__).parent
    arguments = [
        f"-I{seed_folder}",
        f"--python_out={folder}",
        f"--grpc_python_out={folder}",
        "orchestrator.proto",
    ]
    if protoc.main(["protoc", *arguments]) != 0:
        raise SystemExit("protoc failed")
    sys.path.insert(0, folder)
    messages: Any = importlib.import_module("orchestrator_pb2")
    services: Any = importlib.import_module("orchestrator_pb2_grpc")
    request = messages.DeliberateRequest(
        task_description="Write a HAIKU", role="DEV", rounds=1, num_agents=2
    )
    with grpc.insecure_channel(address) as channel:
        stub = services.OrchestratorServiceStub(channel)
        answer = stub.Deliberate(
            request, metadata=(("authorization", f"Bearer {token}"),), timeout=120
        )
    sys.stdout.write(MessageToJson(answer, preserving_proto_field_name=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
