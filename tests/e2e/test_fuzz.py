"""Ten thousand malformed messages on every RPC and on every subject that we read, from a fixed
seed.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import grpc
import grpc.aio
import nats
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from served import ALICE, EVE, Served, make_command, run_server

from moothall.app import preflight
from moothall.config import BusSettings
from moothall.domain.codec import dump
from moothall.domain.event import EventType, new_event
from moothall.domain.ids import ROLES
from moothall.events import codec
from moothall.events.nats.jetstream import JetStreamBus, open_bus
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as pb
from moothall.testing.model import ScriptedModel
from support.processes import command_line, descendants
from support.story import deliberation, full

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

SEED = 20_261_122
ON_GRPC, ON_BUS = 10_000, 4_000
AT_ONCE = 48
# These start slow work; the fuzz test is about what they refuse.
WORKING = {"Deliberate", "SubmitDeliberation", "StreamDeliberation", "Orchestrate"}
SERVICE = pb.DESCRIPTOR.services_by_name["OrchestratorService"]
TEXTS = (
    "",
    "dev",
    "QA",
    "architect",
    "task-1",
    "story-1",
    "plan-1",
    "council-dev",
    "agent-dev-001",
    "vote",
    "single",
    "all",
    "../../etc/passwd",
    "\x00",
    "é\U0001f4a9",
    "A" * 3000,
    "a.b.>",
    "*",
    "$KV.x",
    "-1",
    "true",
    "planning",
    "{}",
    "\r\n",
    "' OR 1",
)
NUMBERS = (0, 1, 2, 3, -1, 7, 1000, 2**31 - 1, -(2**31))
WIDE = (*NUMBERS, 2**63 - 1, -(2**63), 1_700_000_000_000)
REFUSALS = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}


async def test_the_server_survives_ten_thousand_malformed_messages(
    model: ScriptedModel, tmp_path: Path
) -> None:
    command = make_command(tmp_path, model.base_url)
    command.extra["MOOTHALL_LIMITS__DELIBERATION_SECONDS"] = "20"
    async with run_server(command) as app:
        processes_before = _processes(app.pid)
        address = preflight.find(command.data_dir)
        assert address is not None
        statuses = await _fuzz_grpc(app)
        async with open_bus(BusSettings(), address.bus_url) as bus:
            await _fuzz_bus(bus, address.bus_url)
            await _wait_until_idle(bus)
            assert (await bus.state("DEAD")).messages > 100
        assert statuses.total() == ON_GRPC
        assert set(statuses) <= REFUSALS | {
            grpc.StatusCode.OK,
            grpc.StatusCode.DEADLINE_EXCEEDED,
        }, statuses
        assert statuses[grpc.StatusCode.INVALID_ARGUMENT] > 1000
        assert processes_before <= _processes(app.pid), "a process ended and was restarted"
        valid_request = pb.DeliberateRequest(
            task_description="Write a HAIKU", role="dev", num_agents=2
        )
        answer = await app.stub(EVE).Deliberate(valid_request)
        assert answer.winner_id.startswith("agent-dev-")
        listed = await app.stub(EVE).GetStatus(pb.GetStatusRequest(include_stats=True))
        assert listed.stats.total_deliberations == 1


def _processes(pid: int) -> set[int]:
    """Return the server's own processes: the server, its bus and its hosts."""
    pids = {pid}
    for child in descendants(pid):
        line = command_line(child)
        if "nats-server" in line or "moothall.workers.subprocesses" in line:
            pids.add(child.pid)
    return pids


# ---- gRPC


async def _fuzz_grpc(app: Served) -> Counter[grpc.StatusCode]:
    dice = random.Random(SEED)  # noqa: S311 - repeatable
    statuses: Counter[grpc.StatusCode] = Counter()
    slots = asyncio.Semaphore(AT_ONCE)

    async def send_one(method: Any, name: str, data: bytes) -> None:
        async with slots:
            statuses[await _status(app, method, name, data)] += 1

    methods = list(SERVICE.methods)
    async with asyncio.TaskGroup() as group:
        for number in range(ON_GRPC):
            method = methods[number % len(methods)]
            group.create_task(send_one(method, method.name, _request(dice, method)))
    return statuses


def _request(dice: random.Random, method: Any) -> bytes:
    """Return random bytes, a message with random fields, or a damaged message."""
    kind = dice.random()
    if kind < 0.3 or (method.name in WORKING and kind < 0.9):
        return dice.randbytes(dice.choice((0, 1, 3, 9, 40, 200, 3000)))
    data = bytearray(_random_message(dice, method.input_type).SerializeToString())
    if kind > 0.65 and data:
        for _ in range(dice.randint(1, 4)):
            data[dice.randrange(len(data))] = dice.randrange(256)
    if kind > 0.9:
        del data[dice.randrange(len(data) + 1) :]
    return bytes(data)


def _random_message(dice: random.Random, kind: Descriptor, depth: int = 0) -> Message:
    message = GetMessageClass(kind)()
    for field in kind.fields:
        if dice.random() < 0.35 or depth > 3:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            value = field.message_type.fields_by_name["value"]
            if value.message_type is None:
                getattr(message, field.name)[dice.choice(TEXTS)] = _scalar(dice, value)
        elif field.is_repeated:
            for _ in range(dice.choice((1, 2, 5))):
                if field.message_type is not None:
                    getattr(message, field.name).append(
                        _random_message(dice, field.message_type, depth + 1)
                    )
                else:
                    getattr(message, field.name).append(_scalar(dice, field))
        elif field.message_type is not None:
            getattr(message, field.name).CopyFrom(
                _random_message(dice, field.message_type, depth + 1)
            )
        else:
            setattr(message, field.name, _scalar(dice, field))
    return message


def _scalar(dice: random.Random, field: FieldDescriptor) -> Any:
    draw: dict[int, Callable[[], Any]] = {
        FieldDescriptor.CPPTYPE_STRING: lambda: dice.choice(TEXTS),
        FieldDescriptor.CPPTYPE_INT32: lambda: dice.choice(NUMBERS),
        FieldDescriptor.CPPTYPE_INT64: lambda: dice.choice(WIDE),
        FieldDescriptor.CPPTYPE_DOUBLE: lambda: dice.choice(
            (0.0, -1.0, 1e308, float("nan"), float("inf"))
        ),
        FieldDescriptor.CPPTYPE_BOOL: lambda: dice.random() < 0.5,
        FieldDescriptor.CPPTYPE_ENUM: lambda: dice.choice((0, 1)),
    }
    return draw[field.cpp_type]()


async def _status(app: Served, method: Any, name: str, data: bytes) -> grpc.StatusCode:
    """Send bytes and return the status of the call. Refusals have a reason."""
    try:
        await _send_raw(app, method, data)
    except grpc.aio.AioRpcError as error:
        refusal = error
    else:
        return grpc.StatusCode.OK
    code = refusal.code()
    if code is not grpc.StatusCode.DEADLINE_EXCEEDED:
        assert code in REFUSALS, (name, code, refusal.details(), data)
        status, info = (
            rpc_status.from_call(cast("grpc.Call", refusal)),
            error_details_pb2.ErrorInfo(),
        )
        assert status is not None, (name, code, refusal.details(), data)
        assert any(detail.Unpack(info) and info.reason for detail in status.details), (
            name,
            refusal.details(),
        )
    return code


async def _send_raw(app: Served, method: Any, data: bytes) -> None:
    channel: Any = app.channel
    path = f"/{SERVICE.full_name}/{method.name}"
    options: dict[str, Any] = {"metadata": (("authorization", f"Bearer {ALICE}"),), "timeout": 30}
    if method.server_streaming:
        async for _ in channel.unary_stream(path)(data, **options):
            pass
    else:
        await channel.unary_unary(path)(data, **options)


# ---- the bus


async def _fuzz_bus(bus: JetStreamBus, url: str) -> None:
    dice = random.Random(SEED)  # noqa: S311 - repeatable
    client = await nats.connect(url)
    try:
        for number, (subject, data) in zip(range(ON_BUS), _malformed_messages(dice), strict=False):
            if subject.startswith("agent.cancel."):
                await client.publish(subject, data)
            else:
                await bus.put_raw(subject, data, message_id=f"fuzz-{number}")
    finally:
        await client.close()


def _malformed_messages(dice: random.Random) -> Iterator[tuple[str, bytes]]:
    """Yield subjects that we read with random bytes, random JSON, and events with altered parts."""
    honest = [(event.type, dict(event.data)) for event in full().events]
    request = dump(deliberation("task-fuzz", text=True, seats=("agent-dev-001",))) | {
        "request_digest": "x"
    }
    other_events: dict[EventType, dict[str, Any]] = {
        EventType.PLAN_DERIVED: {
            "story_id": "story-1",
            "plan_id": "p",
            "publish": True,
            "tasks": [{"task_id": "t", "role": "dev"}],
        },
        EventType.STORY_TRANSITIONED: {
            "story_id": "story-1",
            "to_state": "planning",
            "metadata": {"roles": "dev"},
            "title": "x",
        },
        EventType.COUNCIL_CREATED: {"role": "dev", "agents": [{"id": "a"}], "config": {}},
        EventType.AGENT_REGISTERED: {"role": "dev", "agent": {"id": "a"}},
        EventType.AGENT_PROGRESS: {"agent_id": "a", "progress": 0.5},
    }
    honest += [(kind, {"task_id": "task-fuzz", **data}) for kind, data in other_events.items()]
    for number in range(10**9):
        task = f"task-fuzz-{dice.randrange(40)}"
        subject = dice.choice(
            (
                *(
                    f"agent.{kind}.{task}"
                    for kind in ("results", "responses", "progress", "cancel")
                ),
                *(f"agent.requests.{role}" for role in ROLES[:3]),
                "agile.events.story-1",
                "council.team-a",
            )
        )
        match dice.random():
            case chance if chance < 0.25:
                yield subject, dice.randbytes(dice.choice((0, 1, 20, 400)))
            case chance if chance < 0.35:
                yield subject, json.dumps(_junk(dice)).encode()
            case _:
                kind, data = dice.choice(honest)
                if subject.startswith("agent.requests"):
                    kind, data = EventType.DELIBERATION_REQUESTED, request
                data = _damage(dice, {**data, "task_id": task})
                event = new_event(
                    kind,
                    task,
                    data,
                    ordinal=number,
                    tenant=dice.choice(("team-a", "local", "a.b", "")),
                )
                document = json.loads(codec.encode(event))
                yield (
                    subject,
                    json.dumps(
                        _damage(dice, document) if dice.random() < 0.2 else document
                    ).encode(),
                )


def _damage(dice: random.Random, value: dict[str, Any]) -> dict[str, Any]:
    """Return the object with a random part removed or altered."""
    changed = dict(value)
    for name in dice.sample(sorted(changed), min(len(changed), dice.choice((0, 1, 1, 2)))):
        inner = changed[name]
        if isinstance(inner, dict) and dice.random() < 0.6:
            changed[name] = _damage(dice, inner)
        elif dice.random() < 0.3:
            del changed[name]
        else:
            changed[name] = _junk(dice)
    return changed


def _junk(dice: random.Random) -> Any:
    return dice.choice(
        (
            None,
            True,
            -1,
            2**70,
            1e300,
            [],
            {},
            [[]],
            {"$blob": "x"},
            {"a": {"b": [1]}},
            *TEXTS,
            ["x"] * 50,
            "9999-99-99T00:00:00Z",
        )
    )


async def _wait_until_idle(bus: JetStreamBus) -> None:
    """Wait until no work is left: malformed items are in the dead-letter queue, and real work is
    done.
    """
    async with asyncio.timeout(120):
        while (await bus.state("WORK")).messages:
            await asyncio.sleep(0.2)
