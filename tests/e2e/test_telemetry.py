"""Spans and metrics over real processes: serve, a host in a process of its own, and a span
collector on loopback.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import grpc.aio
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from command import Command, answer_turns_with, by_task
from moothall.cli.demo import make_sample_repository
from moothall.pb.moothall.v1 import common_pb2
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as pb
from moothall.pb.orchestrator.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from moothall.testing.model import ScriptedModel, scripted_model
from support.documents import table

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

TASK = "Add hello_world() function to src/utils.py"
TRACE, CALLER_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRET = "hunter2-hunter2-hunter2"


@dataclass(frozen=True, slots=True)
class ReceivedSpan:
    """A span as a collector receives it."""

    name: str
    trace: str
    id: str
    parent: str
    process: str
    attributes: dict[str, Any]
    links: tuple[str, ...]


@dataclass(slots=True)
class Receiver(trace_service_pb2_grpc.TraceServiceServicer):
    """A span collector."""

    spans: dict[str, ReceivedSpan] = field(default_factory=dict)
    headers: set[str] = field(default_factory=set)
    raw: bytes = b""

    async def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - the RPC's name
        self.headers |= {f"{key}={value}" for key, value in context.invocation_metadata()}
        self.raw += request.SerializeToString()
        for resource in request.resource_spans:
            about = _attributes(resource.resource.attributes)
            for span in (span for scope in resource.scope_spans for span in scope.spans):
                self.spans[span.span_id.hex()] = ReceivedSpan(
                    name=span.name,
                    trace=span.trace_id.hex(),
                    id=span.span_id.hex(),
                    parent=span.parent_span_id.hex(),
                    process=about["service.instance.id"],
                    attributes=_attributes(span.attributes),
                    links=tuple(link.trace_id.hex() for link in span.links),
                )
        return trace_service_pb2.ExportTraceServiceResponse()

    def named(self, name: str) -> list[ReceivedSpan]:
        return [span for span in self.spans.values() if span.name == name]

    def path_to_root(self, span: ReceivedSpan) -> list[str]:
        """Return the names from a span up to the one without a parent here."""
        names = [span.name]
        while (above := self.spans.get(span.parent)) is not None:
            span = above
            names.append(span.name)
        return names

    async def until(self, *names: str) -> None:
        """Wait until spans with these names have arrived."""
        async with asyncio.timeout(60):
            while not all(self.named(name) for name in names):
                await asyncio.sleep(0.1)


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


@asynccontextmanager
async def receiving() -> AsyncIterator[tuple[Receiver, grpc.aio.Server, str]]:
    receiver, server = Receiver(), grpc.aio.server()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(receiver, server)  # type: ignore[no-untyped-call]  # generated
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield receiver, server, f"http://127.0.0.1:{port}"
    finally:
        await server.stop(0)


@asynccontextmanager
async def run_server(command: Command) -> AsyncIterator[str]:
    """Run `serve`; yield the URL of its metrics."""
    process = await command.start("serve", "--port", "0")
    assert process.stderr is not None
    figures, lines = "", []
    async with asyncio.timeout(180):
        while line := (await process.stderr.readline()).decode():
            lines.append(line)
            if line.startswith("metrics for Prometheus: "):
                figures = line.split()[-1]
            if line.startswith("serving gRPC on"):
                command.served_at = line.split()[3].rstrip(";")
                break
        else:
            pytest.fail("serve ended: " + "".join(lines))
    drain = asyncio.ensure_future(process.stderr.read())
    try:
        yield figures
    finally:
        process.terminate()
        async with asyncio.timeout(90):
            await process.wait()
            tail = (await drain).decode()
    assert process.returncode == 130, tail


async def read_metrics(url: str, token: str) -> dict[tuple[str, ...], float]:
    """Read the page: (name, process, other label values in the order of their names) → value."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(url, headers={"Authorization": f"Bearer {token}"}) as response,
    ):
        assert response.status == 200
        page = await response.text()
    samples = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = dict(sample.labels)
            process = labels.pop("process")
            samples[(sample.name, process, *(labels[name] for name in sorted(labels)))] = (
                sample.value
            )
    return samples


async def deliberate(command: Command, **request: Any) -> pb.DeliberateResponse:
    token = (command.data_dir / "token").read_text(encoding="ascii").strip()
    metadata = (
        ("authorization", f"Bearer {token}"),
        ("traceparent", f"00-{TRACE}-{CALLER_SPAN}-01"),
    )
    async with grpc.aio.insecure_channel(command.served_at) as channel:
        message = pb.DeliberateRequest(role="DEV", num_agents=2, **request)
        response: pb.DeliberateResponse = await OrchestratorServiceStub(channel).Deliberate(
            message, metadata=metadata, timeout=180
        )
    return response


async def test_one_trace_covers_a_call_and_each_model_and_tool_call(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    await make_sample_repository(repo)
    (tmp_path / "headers").write_text(f"x-key={SECRET}\n", encoding="utf-8")
    async with (
        scripted_model(answer_turns_with(by_task)) as model,
        receiving() as (receiver, server, endpoint),
    ):
        extra = {
            "MOOTHALL_TRACE__EXPORTER": "otlp",
            "MOOTHALL_TRACE__ENDPOINT": endpoint,
            "MOOTHALL_TRACE__HEADERS_FILE": str(tmp_path / "headers"),
            "MOOTHALL_MODELS": (
                '{"cool": {"temperature": 0, "roles": ["dev"]}, "away": {"base_url": '
                '"http://127.0.0.1:9/v1"}}'
            ),
            "MOOTHALL_METRICS__PORT": "0",
            "MOOTHALL_METRICS__TOKEN": "scraper-scraper",
        }
        command = Command(tmp_path / "data", model.base_url, extra)
        registered = (await command("repo", "add", str(repo), "--json")).document["id"]
        async with run_server(command) as figures:
            response = await deliberate(
                command,
                task_description=f"{TASK} {SECRET}",
                repository=common_pb2.Repository(id=registered),
            )
            assert response.winner_id
            assert {call.body["temperature"] for call in model.requests} == {0}, (
                "hosts know the model of a role"
            )
            await receiver.until(
                "decide",
                "deliver",
                "deliberation",
                "orchestrator.v1.OrchestratorService/Deliberate",
            )
            _assert_one_trace(receiver, model)
            await _assert_figures(figures)
            # A collector that goes away causes no failure and stops nothing, and the shutdown does
            # not wait for it for long.
            await server.stop(0)
            assert (await deliberate(command, task_description="Write a HAIKU")).winner_id


def _assert_one_trace(receiver: Receiver, model: ScriptedModel) -> None:
    assert {span.trace for span in receiver.spans.values()} == {TRACE}
    names = {
        "<package>.<Service>/<Method>" if "/" in span.name else span.name
        for span in receiver.spans.values()
    }
    documented = {name.strip("`") for name, _ in table("telemetry.md", "span")}
    assert names == documented - {"<METHOD> <route>"}  # this caller uses gRPC
    call = receiver.named("orchestrator.v1.OrchestratorService/Deliberate")[0]
    assert call.parent == CALLER_SPAN
    root = ["deliberation", "submit", call.name]
    chats = receiver.named("chat")
    assert {span.attributes["moothall.call_id"] for span in chats} == {
        model_call.call_id for model_call in model.requests
    }
    for span in chats:
        assert receiver.path_to_root(span) in (["chat", "turn", "seat", *root], ["chat", *root])
    tools = receiver.named("execute_tool")
    assert len(tools) >= 2
    for span in tools:
        assert receiver.path_to_root(span) == ["execute_tool", "turn", "seat", *root]
    assert receiver.path_to_root(receiver.named("decide")[0]) == ["decide", "submit", call.name]
    assert receiver.named("decide")[0].links == (TRACE,)
    assert receiver.path_to_root(receiver.named("deliver")[0]) == [
        "deliver",
        "decide",
        "submit",
        call.name,
    ]
    assert {span.process.split("-")[0] for span in (call, *receiver.named("decide"))} == {"serve"}
    assert {span.process.split("-")[0] for span in (*chats, *tools)} == {"host"}
    for model_call in model.requests:  # the model server's own spans join the call that they answer
        assert model_call.headers["traceparent"].split("-")[2] in {span.id for span in chats}
    assert f"x-key={SECRET}" in receiver.headers
    assert SECRET.encode() not in receiver.raw


async def _assert_figures(url: str) -> None:
    async with aiohttp.ClientSession() as session, session.get(url) as refused:
        assert refused.status == 401
    async with asyncio.timeout(30):
        while True:
            metrics = await read_metrics(url, "scraper-scraper")
            if (
                metrics.get(("moothall_tool_calls_total", "host-1", "success", "files.append"), 0)
                >= 2
            ):
                break
            await asyncio.sleep(0.2)
    assert metrics["moothall_model_calls_total", "host-1", "scripted", "ok"] >= 3
    assert metrics["moothall_model_tokens_total", "host-1", "prompt", "scripted"] > 0
    assert (
        metrics["moothall_deliberations_requested_total", "serve", "tests_then_verify", "dev"] == 1
    )
    assert (
        metrics["moothall_deliberations_decided_total", "serve", "committed", "dev", "COMPLETED"]
        == 1
    )
    assert (
        metrics[
            "moothall_grpc_calls_total",
            "serve",
            "OK",
            "orchestrator.v1.OrchestratorService/Deliberate",
        ]
        == 1
    )
    assert {
        name: metrics["moothall_model_up", "serve", name] for name in ("default", "cool", "away")
    } == {
        "default": 1,
        "cool": 1,
        "away": 0,
    }
    assert metrics["moothall_bus_lag_messages", "serve", "collector"] >= 0
    assert metrics["moothall_collector_under_way", "serve"] == 0
    assert {name[2] for name in metrics if name[0] == "moothall_sandbox_layer"} >= {"seccomp"}
    for process in ("serve", "host-1"):
        assert metrics["moothall_process_resident_memory_bytes", process] > 1e6
