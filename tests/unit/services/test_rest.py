"""The HTTP door: a real server on a free port; behind it a real gate, and rooms that answer from a function."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from moothall import config
from moothall.domain.overview import Condition
from moothall.domain.tool import ToolStatus
from moothall.errors import ConfigurationError, ModelUnavailable
from moothall.guard.policy import Policy
from moothall.guard.seat import SeatContext
from moothall.guard.steps import Checked
from moothall.services.checkup import Checkup, Probe
from moothall.services.rest.server import http_server
from moothall.telemetry import metrics
from moothall.testing.bus import MemoryBus
from moothall.testing.callers import OTHER, TOKEN, TOKENS, doors_of
from moothall.testing.desk import MemoryDesk
from moothall.testing.rest import Answer, Web, serving_http
from moothall.testing.visits import Visiting, visiting

SAMPLE = {"repository": {"id": "sample"}, "role": "DEV"}
EVERYWHERE = "0.0.0.0"  # noqa: S104 - refused


@pytest.fixture
async def behind(tmp_path: Path) -> AsyncIterator[Visiting]:
    async with visiting(tmp_path, MemoryBus(), limits={"visits": 3}) as found:
        yield found


@pytest.fixture
async def web(behind: Visiting) -> AsyncIterator[Web]:
    doors = replace(doors_of(MemoryDesk()), visits=behind.visits, parking=behind.parking)
    async with serving_http(doors, body_bytes=20_000) as found:
        yield found


async def opened(web: Web, **more: Any) -> dict[str, Any]:
    answer = await web("POST", "/v1/workspaces", {**SAMPLE, **more})
    assert answer.status == 201, answer.json
    found: dict[str, Any] = answer.json
    return found


def call(opened: dict[str, Any], request_id: str = "r-1", **arguments: Any) -> dict[str, Any]:
    return {
        "request_id": request_id,
        "workspace_id": opened["workspace_id"],
        "capability_token": opened["capability_token"],
        "arguments": arguments,
    }


def problem(answer: Answer) -> tuple[int, str, str]:
    assert answer.headers["Content-Type"].startswith("application/problem+json")
    assert answer.json["status"] == answer.status
    assert answer.json["type"] == f"urn:moothall:error:{answer.json['code']}"
    return answer.status, answer.json["code"], answer.json["detail"]


async def test_open_call_close(web: Web, behind: Visiting) -> None:
    room = await opened(web, ttl_seconds=60)
    answer = await web("POST", "/v1/tools/files.read", call(room, path="a.py"))
    assert (answer.status, answer.json["status"], answer.json["request_id"]) == (200, "success", "r-1")
    assert answer.json["output"]["path"] == "a.py"
    assert answer.json["audit_id"]
    again = await web("POST", "/v1/tools/files.read", call(room, path="a.py"))
    assert again.json == answer.json
    assert len(behind.rooms.rooms[room["workspace_id"]].calls) == 1  # the same request runs once
    assert problem(await web("POST", "/v1/tools/files.read", call(room, path="b.py")))[:2] == (409, "ALREADY_EXISTS")
    refused = await web("POST", "/v1/tools/git.push", call(room, "r-2", branch="main"))
    assert (refused.status, refused.json["status"]) == (200, "blocked")
    assert (await web("DELETE", f"/v1/workspaces/{room['workspace_id']}")).status == 204
    assert behind.rooms.closed == [room["workspace_id"]]
    assert problem(await web("POST", "/v1/tools/files.read", call(room, "r-3", path="a.py")))[:2] == (404, "NOT_FOUND")


@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "Bearer nobody"}, {"Authorization": "Basic YTpi"}, {"Authorization": ""}]
)
async def test_without_a_valid_token_nothing_is_answered(web: Web, headers: dict[str, str]) -> None:
    for method, path in (("POST", "/v1/workspaces"), ("GET", "/v1/tools"), ("GET", "/tasks"), ("GET", "/nowhere")):
        answer = await web(method, path, token=None, headers=headers)
        assert problem(answer)[:2] == (401, "UNAUTHENTICATED")
        assert answer.headers["WWW-Authenticate"] == "Bearer"


async def test_a_stolen_capability_is_worth_nothing_to_another_tenant(web: Web) -> None:
    room = await opened(web)
    stolen = await web("POST", "/v1/tools/files.read", call(room, path="a.py"), token=OTHER)
    assert problem(stolen)[:2] == (403, "REFUSED")
    assert problem(await web("DELETE", f"/v1/workspaces/{room['workspace_id']}", token=OTHER))[0] == 404


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ({}, "repository"),
        ({**SAMPLE, "role": 7}, "role"),
        ({**SAMPLE, "tenant": "other"}, "tenant: Extra inputs are not permitted"),
        ({**SAMPLE, "repository": {}}, "repository is empty"),
        ({**SAMPLE, "role": "wizard"}, "unknown role 'wizard'"),
        ({**SAMPLE, "ttl_seconds": 999_999}, "ttl_seconds is 999999"),
        ([], "body"),
    ],
)
async def test_what_is_wrong_is_named(web: Web, body: Any, wanted: str) -> None:
    status, code, said = problem(await web("POST", "/v1/workspaces", body))
    assert (status, code) == (400, "INVALID_REQUEST")
    assert wanted in said


async def test_bodies_are_json_bounded_and_not_too_deep(web: Web) -> None:
    url = f"http://127.0.0.1:{web.port}/v1/workspaces"
    carried = {"Authorization": f"Bearer {next(iter(TOKENS))}"}
    for data, kind, wanted in (
        (b"a=b", "application/x-www-form-urlencoded", 415),
        (b"{}", "text/plain", 415),
        (b"{", "application/json", 400),
        (b"\xff\xfe", "application/json", 400),
        (b'{"repository": ' + b"[" * 9_000, "application/json", 400),
        (b'{"role": "' + b"x" * 30_000 + b'"}', "application/json", 413),
    ):
        async with web.session.post(url, data=data, headers={**carried, "Content-Type": kind}) as response:
            assert response.status == wanted, data[:40]
            assert response.content_type == "application/problem+json"


@pytest.mark.parametrize("path", ["/v1/nowhere", "/v1/tools/files.read/x"])
async def test_what_is_not_here_is_a_problem_too(web: Web, path: str) -> None:
    nowhere = await web("GET", path)
    assert problem(nowhere)[:2] == (404, "NOT_FOUND")
    assert path in nowhere.json["detail"]
    wrong = await web("PUT", "/v1/workspaces", {})
    assert problem(wrong)[:2] == (405, "METHOD_NOT_ALLOWED")
    assert wrong.json["detail"] == "/v1/workspaces takes POST, not PUT"
    assert wrong.headers["Allow"] == "POST"


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Host": "evil.example:8080"}, "WRONG_HOST"),  # DNS rebinding: their name, our address
        ({"Host": "127.0.0.1.evil.example"}, "WRONG_HOST"),
        ({"Host": "[::1"}, "WRONG_HOST"),
        ({"Origin": "https://evil.example"}, "WRONG_ORIGIN"),
        ({"Origin": "null"}, "WRONG_ORIGIN"),
        ({"Origin": "http://127.0.0.1:1"}, "WRONG_ORIGIN"),
    ],
)
async def test_pages_of_others_reach_nothing(web: Web, headers: dict[str, str], code: str) -> None:
    for path in ("/v1/tools", "/health"):
        answer = await web("GET", path, headers=headers)
        assert problem(answer)[:2] == (403, code)
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]


async def test_our_own_names_and_pages_are_answered(behind: Visiting) -> None:
    doors = replace(doors_of(MemoryDesk()), visits=behind.visits)
    async with serving_http(doors, hosts=("moothall.internal",)) as web:
        for host in ("127.0.0.1", f"localhost:{web.port}", "[::1]:80", "moothall.internal:8080"):
            headers = {"Host": host, "Origin": f"http://{host}"}
            assert (await web("GET", "/v1/tools", headers=headers)).status == 200
        preflight = await web(
            "OPTIONS", "/v1/tools", headers={"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
        )
        assert preflight.status == 403


async def test_a_request_that_dies_with_its_client_stops_its_tool(web: Web, behind: Visiting) -> None:
    room = await opened(web)
    inside = behind.rooms.rooms[room["workspace_id"]]
    inside.open.clear()
    asking = asyncio.ensure_future(web("POST", "/v1/tools/files.read", call(room, path="a.py")))
    await inside.entered.wait()
    asking.cancel()
    async with asyncio.timeout(20):
        while not any(record.get("status") == "cancelled" for record in behind.house.records()):
            await asyncio.sleep(0.01)
    inside.open.set()
    assert (await web("POST", "/v1/tools/files.read", call(room, "r-2", path="a.py"))).json["status"] == "success"


async def test_who_repeats_a_request_that_died_with_its_client_gets_it_made(web: Web, behind: Visiting) -> None:
    room = await opened(web)
    inside = behind.rooms.rooms[room["workspace_id"]]
    inside.open.clear()
    first = asyncio.ensure_future(web("POST", "/v1/tools/files.read", call(room, path="a.py")))
    await inside.entered.wait()
    again = asyncio.ensure_future(web("POST", "/v1/tools/files.read", call(room, path="a.py")))
    await asyncio.sleep(0.1)
    assert len(inside.calls) == 1
    first.cancel()
    async with asyncio.timeout(20):
        while len(inside.calls) < 2:
            await asyncio.sleep(0.01)
    inside.open.set()
    answer = await again
    assert (answer.status, answer.json["status"]) == (200, "success")


async def test_discovery_shows_what_the_tenant_has(tmp_path: Path) -> None:
    async with (
        visiting(tmp_path, off=lambda tenant: ("files.delete",) if tenant == "local" else ()) as behind,
        serving_http(replace(doors_of(MemoryDesk()), visits=behind.visits)) as web,
    ):
        found = (await web("GET", "/v1/tools?category=files&safe=true")).json["tools"]
        assert {tool["category"] for tool in found} == {"files"}
        names = {tool["id"] for tool in found}
        assert "files.read" in names
        assert "files.delete" not in names
        theirs = (await web("GET", "/v1/tools?query=delete&limit=1", token=OTHER)).json["tools"]
        assert [tool["id"] for tool in theirs] == ["files.delete"]
        granted = {tool["id"] for tool in (await web("GET", "/v1/tools?role=QA")).json["tools"]}
        assert "git.push" not in granted
        for wrong, said in (
            ("colour=red", "the filters are"),
            ("limit=-1", "whole number"),
            ("safe=yes", "true or false"),
            ("role=x", "unknown role"),
        ):
            assert said in problem(await web("GET", f"/v1/tools?{wrong}"))[2]


async def test_a_parked_request_that_is_allowed_runs_once(tmp_path: Path) -> None:
    class Parks(Policy):
        async def check(self, seat: SeatContext, checked: Checked) -> None:
            from moothall.guard.seat import Stopped

            if checked.spec.name == "files.delete":
                raise Stopped(ToolStatus.BLOCKED, "ask first", may_be_allowed=True)

    async with visiting(tmp_path, MemoryBus(), policy=Parks("off", None)) as behind:
        doors = replace(doors_of(MemoryDesk()), visits=behind.visits, parking=behind.parking)
        async with serving_http(doors) as web, asyncio.TaskGroup() as group:
            assert behind.parking is not None
            following = group.create_task(behind.parking.run())
            room = await opened(web)
            parked = await web("POST", "/v1/tools/files.delete", call(room, path="a.py"))
            assert parked.json["status"] == "parked"
            (waiting,) = (await web("GET", "/v1/parked")).json["parked"]
            assert (waiting["request_id"], waiting["arguments"]) == ("r-1", {"path": "a.py"})
            assert "grant" not in waiting
            for method, path, body in (("GET", "/v1/parked", None), ("POST", "/v1/parked/r-1", {"allow": True})):
                assert problem(await web(method, path, body, token=OTHER))[:2] == (403, "REFUSED")
            said = await web("POST", f"/v1/parked/{waiting['id']}", {"allow": True, "reason": "fine"})
            assert said.json["state"] == "allowed"
            inside = behind.rooms.rooms[room["workspace_id"]]
            async with asyncio.timeout(20):
                while not inside.calls:
                    await asyncio.sleep(0.01)
            done = await web("POST", "/v1/tools/files.delete", call(room, path="a.py"))
            assert done.json["status"] == "success"
            assert len(inside.calls) == 1
            assert problem(await web("POST", "/v1/parked/r-1", {"allow": True}))[2].endswith("it was allowed already")
            assert problem(await web("POST", "/v1/parked/nothing", {"allow": True}))[0] == 404
            following.cancel()


async def test_health_is_503_where_a_needed_part_is_down(behind: Visiting) -> None:
    said = {"model": Condition.HEALTHY, "graph": Condition.HEALTHY}

    def probe(name: str) -> Any:
        async def look() -> tuple[Condition, str]:
            if said[name] is Condition.DOWN:
                raise ModelUnavailable("nobody answers on 10.1.2.3")
            return said[name], "fine"

        return look

    checkup = Checkup({"model": Probe(probe("model")), "graph": Probe(probe("graph"), needed=False)}, keep_seconds=0)
    async with serving_http(replace(doors_of(MemoryDesk()), visits=behind.visits, checkup=checkup)) as web:
        answer = await web("GET", "/health", token=None)
        assert (answer.status, answer.json["status"]) == (200, "healthy")
        assert [part["detail"] for part in answer.json["parts"]] == ["", ""]  # details are for callers with a token
        said["graph"] = Condition.DOWN
        assert (await web("GET", "/health")).json["status"] == "degraded"
        said["model"] = Condition.DOWN
        answer = await web("GET", "/health")
        assert (answer.status, answer.json["status"]) == (503, "down")
        assert {part["name"]: part["detail"] for part in answer.json["parts"]}[
            "model"
        ] == "nobody answers on 10.1.2.3 [MODEL_UNAVAILABLE]"


async def test_a_part_that_does_not_answer_is_down_and_whoever_asks_often_costs_nothing() -> None:
    looked = 0

    async def silent() -> tuple[Condition, str]:
        nonlocal looked
        looked += 1
        await asyncio.Event().wait()
        raise AssertionError

    checkup = Checkup({"bus": Probe(silent)}, patience_seconds=0.05, keep_seconds=60)
    found = await asyncio.gather(*(checkup.look() for _ in range(20)))
    assert {health.status for health in found} == {Condition.DOWN}
    assert "no answer within" in found[0].parts[0].detail
    assert looked == 1


async def test_figures_and_spans_know_routes_and_no_paths(web: Web) -> None:
    before = metrics.REGISTRY.snapshot()
    await web("GET", "/v1/tools")
    await web("GET", "/v1/secret-path")
    await web("POST", "/v1/tools/files.read", {})
    after = {tuple(labels): value for labels, value in metrics.REGISTRY.snapshot()["moothall_http_requests_total"]}
    known = {tuple(labels): value for labels, value in before.get("moothall_http_requests_total", [])}
    grown = {labels for labels, value in after.items() if value > known.get(labels, 0)}
    assert grown == {("/v1/tools", "200"), ("other", "404"), ("/v1/tools/{name}", "400")}


async def test_over_tls_with_a_certificate(behind: Visiting, tmp_path: Path) -> None:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([*made, *subject, "-keyout", key, "-out", cert], check=True, capture_output=True)
    doors = replace(doors_of(MemoryDesk()), visits=behind.visits)
    async with serving_http(doors, host=EVERYWHERE, tls_key=key, tls_cert=cert) as web:
        trusted = ssl.create_default_context(cafile=str(cert))
        url = f"https://localhost:{web.port}/v1/tools"
        async with web.session.get(url, ssl=trusted, headers={"Authorization": f"Bearer {TOKEN}"}) as response:
            assert response.status == 200
        with pytest.raises(aiohttp.ClientConnectionError):
            await web("GET", "/v1/tools")  # in plain text


async def test_more_requests_than_allowed_are_refused(behind: Visiting) -> None:
    async with serving_http(replace(doors_of(MemoryDesk()), visits=behind.visits), calls=1) as web:
        room = await opened(web)
        inside = behind.rooms.rooms[room["workspace_id"]]
        inside.open.clear()
        asking = asyncio.ensure_future(web("POST", "/v1/tools/files.read", call(room, path="a.py")))
        await inside.entered.wait()
        refused = await web("GET", "/v1/tools")
        assert problem(refused)[:2] == (429, "RATE_LIMITED")
        assert refused.headers["Retry-After"] == "1"
        inside.open.set()
        assert (await asking).status == 200


@pytest.mark.parametrize(
    ("settings", "configured", "wanted"),
    [
        ({"host": EVERYWHERE}, False, r"set grpc\.token"),
        ({"host": EVERYWHERE}, True, r"set web\.tls_cert"),
        ({"tls_cert": "x"}, True, "belong together"),
        ({"tls_cert": "/nowhere", "tls_key": "/nowhere"}, True, "no PEM certificate"),
    ],
)
async def test_no_start_beyond_loopback_without_walls(settings: dict[str, Any], *, configured: bool, wanted: str) -> None:
    with pytest.raises(ConfigurationError, match=wanted):
        async with http_server(config.Web(port=0, **settings), doors_of(MemoryDesk()), TOKENS, configured=configured):
            pass


async def test_a_chosen_port_that_is_taken_is_an_error_and_tokens_are_needed() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigurationError, match=r"choose another web\.port"):
            async with http_server(config.Web(port=taken.getsockname()[1]), doors_of(MemoryDesk()), TOKENS, configured=True):
                pass
    with pytest.raises(ConfigurationError, match="needs a token"):
        async with http_server(config.Web(port=0), doors_of(MemoryDesk()), {}, configured=True):
            pass


async def test_connections_that_ask_for_nothing_are_closed_and_others_are_not(behind: Visiting) -> None:
    doors = replace(doors_of(MemoryDesk()), visits=behind.visits, parking=behind.parking)
    async with serving_http(doors, head_seconds=0.3) as web:
        silent = [await asyncio.open_connection("127.0.0.1", web.port) for _ in range(20)]
        for _, writer in silent[10:]:
            writer.write(b"GET /tasks HTTP/1.1\r\nHost: ")
        kept_reader, kept = await asyncio.open_connection("127.0.0.1", web.port)
        ask = f"GET /v1/tools?limit=1 HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
        for pause in (0.0, 0.6):
            await asyncio.sleep(pause)
            kept.write(ask)
            assert b"200 OK" in await kept_reader.readuntil(b"\r\n\r\n")
            await kept_reader.readuntil(b"]}")
        async with asyncio.timeout(10):
            assert [await reader.read() for reader, _ in silent] == [b""] * 20
        for _, writer in (*silent, (None, kept)):
            writer.close()


@pytest.mark.parametrize("header", ["Authorization: Bearer SECRET\x01WORD", "Authorization : Bearer SECRET", "A: SECRET" * 2000])
async def test_what_is_no_http_is_in_no_log(web: Web, header: str, caplog: pytest.LogCaptureFixture) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", web.port)
    writer.write(f"GET /tasks HTTP/1.1\r\nHost: 127.0.0.1\r\n{header}\r\n\r\n".encode())
    assert b" 400 " in await reader.read(100)
    writer.close()
    assert "SECRET" not in caplog.text
