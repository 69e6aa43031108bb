"""The HTTP API: a real server on a free port; behind it a real tool gateway, and workspaces that
answer from a function.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from moothall.api.dependencies import HealthCheck, Probe
from moothall.authorization.checks import CallContext, CheckedCall
from moothall.authorization.rules import Policy
from moothall.domain.status import Condition
from moothall.domain.tool import ToolStatus
from moothall.errors import ModelUnavailable
from moothall.testing.bus import MemoryBus
from support.callers import OTHER, TOKENS, api_dependencies, with_parts
from support.deliberation_service import MemoryDeliberations
from support.rest import Web, call, open_workspace, problem, serving_http
from support.session_manager import SessionsFixture, open_session_manager

SAMPLE = {"repository": {"id": "sample"}, "role": "DEV"}
EVERYWHERE = "0.0.0.0"  # noqa: S104 - refused


async def test_a_workspace_is_opened_used_and_closed(web: Web, backend: SessionsFixture) -> None:
    workspace = await open_workspace(web, ttl_seconds=60)
    answer = await web("POST", "/v1/tools/files.read", call(workspace, path="a.py"))
    assert (answer.status, answer.json["status"], answer.json["request_id"]) == (
        200,
        "success",
        "r-1",
    )
    assert answer.json["output"]["path"] == "a.py"
    assert answer.json["audit_id"]
    repeated_answer = await web("POST", "/v1/tools/files.read", call(workspace, path="a.py"))
    assert repeated_answer.json == answer.json
    assert (
        len(backend.fake_workspaces.fake_workspaces[workspace["workspace_id"]].calls) == 1
    )  # the same request runs once
    assert problem(await web("POST", "/v1/tools/files.read", call(workspace, path="b.py")))[:2] == (
        409,
        "ALREADY_EXISTS",
    )
    refused = await web("POST", "/v1/tools/git.push", call(workspace, "r-2", branch="main"))
    assert (refused.status, refused.json["status"]) == (200, "blocked")
    assert (await web("DELETE", f"/v1/workspaces/{workspace['workspace_id']}")).status == 204
    assert backend.fake_workspaces.closed == [workspace["workspace_id"]]
    assert problem(await web("POST", "/v1/tools/files.read", call(workspace, "r-3", path="a.py")))[
        :2
    ] == (404, "NOT_FOUND")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer nobody"},
        {"Authorization": "Basic YTpi"},
        {"Authorization": ""},
    ],
)
async def test_requests_without_a_valid_token_are_refused(
    web: Web, headers: dict[str, str]
) -> None:
    for method, path in (
        ("POST", "/v1/workspaces"),
        ("GET", "/v1/tools"),
        ("GET", "/tasks"),
        ("GET", "/nowhere"),
    ):
        answer = await web(method, path, token=None, headers=headers)
        assert problem(answer)[:2] == (401, "UNAUTHENTICATED")
        assert answer.headers["WWW-Authenticate"] == "Bearer"


async def test_a_stolen_capability_is_useless_to_another_tenant(web: Web) -> None:
    workspace = await open_workspace(web)
    stolen = await web("POST", "/v1/tools/files.read", call(workspace, path="a.py"), token=OTHER)
    assert problem(stolen)[:2] == (403, "REFUSED")
    assert (
        problem(await web("DELETE", f"/v1/workspaces/{workspace['workspace_id']}", token=OTHER))[0]
        == 404
    )


@pytest.mark.parametrize(
    ("body", "message"),
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
async def test_the_invalid_field_is_named(web: Web, body: Any, message: str) -> None:
    status, code, detail = problem(await web("POST", "/v1/workspaces", body))
    assert (status, code) == (400, "INVALID_REQUEST")
    assert message in detail


async def test_bodies_must_be_json_within_size_and_depth_limits(web: Web) -> None:
    url = f"http://127.0.0.1:{web.port}/v1/workspaces"
    carried = {"Authorization": f"Bearer {next(iter(TOKENS))}"}
    for data, kind, status in (
        (b"a=b", "application/x-www-form-urlencoded", 415),
        (b"{}", "text/plain", 415),
        (b"{", "application/json", 400),
        (b"\xff\xfe", "application/json", 400),
        (b'{"repository": ' + b"[" * 9_000, "application/json", 400),
        (b'{"role": "' + b"x" * 30_000 + b'"}', "application/json", 413),
    ):
        async with web.session.post(
            url, data=data, headers={**carried, "Content-Type": kind}
        ) as response:
            assert response.status == status, data[:40]
            assert response.content_type == "application/problem+json"


@pytest.mark.parametrize("path", ["/v1/nowhere", "/v1/tools/files.read/x"])
async def test_an_unknown_path_is_a_problem_document(web: Web, path: str) -> None:
    not_found = await web("GET", path)
    assert problem(not_found)[:2] == (404, "NOT_FOUND")
    assert path in not_found.json["detail"]
    refused = await web("PUT", "/v1/workspaces", {})
    assert problem(refused)[:2] == (405, "METHOD_NOT_ALLOWED")
    assert refused.json["detail"] == "/v1/workspaces allows POST, not PUT"
    assert refused.headers["Allow"] == "POST"


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
async def test_requests_from_other_sites_are_refused(
    web: Web, headers: dict[str, str], code: str
) -> None:
    for path in ("/v1/tools", "/health"):
        answer = await web("GET", path, headers=headers)
        assert problem(answer)[:2] == (403, code)
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]


async def test_requests_with_our_host_and_origin_are_answered(backend: SessionsFixture) -> None:
    dependencies = with_parts(
        api_dependencies(MemoryDeliberations()), sessions=backend.session_manager
    )
    async with serving_http(dependencies, hosts=("moothall.internal",)) as web:
        for host in ("127.0.0.1", f"localhost:{web.port}", "[::1]:80", "moothall.internal:8080"):
            headers = {"Host": host, "Origin": f"http://{host}"}
            assert (await web("GET", "/v1/tools", headers=headers)).status == 200
        preflight = await web(
            "OPTIONS",
            "/v1/tools",
            headers={"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"},
        )
        assert preflight.status == 403


async def test_a_request_of_a_disconnected_client_stops_its_tool(
    web: Web, backend: SessionsFixture
) -> None:
    workspace = await open_workspace(web)
    fake_workspace = backend.fake_workspaces.fake_workspaces[workspace["workspace_id"]]
    fake_workspace.open.clear()
    requesting = asyncio.ensure_future(
        web("POST", "/v1/tools/files.read", call(workspace, path="a.py"))
    )
    await fake_workspace.entered.wait()
    requesting.cancel()
    async with asyncio.timeout(20):
        while not any(record.get("status") == "cancelled" for record in backend.app.records()):
            await asyncio.sleep(0.01)
    fake_workspace.open.set()
    assert (await web("POST", "/v1/tools/files.read", call(workspace, "r-2", path="a.py"))).json[
        "status"
    ] == "success"


async def test_a_repeated_request_runs_after_the_first_clients_disconnect(
    web: Web, backend: SessionsFixture
) -> None:
    workspace = await open_workspace(web)
    fake_workspace = backend.fake_workspaces.fake_workspaces[workspace["workspace_id"]]
    fake_workspace.open.clear()
    first = asyncio.ensure_future(web("POST", "/v1/tools/files.read", call(workspace, path="a.py")))
    await fake_workspace.entered.wait()
    repeated_call = asyncio.ensure_future(
        web("POST", "/v1/tools/files.read", call(workspace, path="a.py"))
    )
    await asyncio.sleep(0.1)
    assert len(fake_workspace.calls) == 1
    first.cancel()
    async with asyncio.timeout(20):
        while len(fake_workspace.calls) < 2:
            await asyncio.sleep(0.01)
    fake_workspace.open.set()
    answer = await repeated_call
    assert (answer.status, answer.json["status"]) == (200, "success")


async def test_discovery_shows_the_tools_of_the_tenant(tmp_path: Path) -> None:
    async with (
        open_session_manager(
            tmp_path, off=lambda tenant: ("files.delete",) if tenant == "local" else ()
        ) as backend,
        serving_http(
            with_parts(api_dependencies(MemoryDeliberations()), sessions=backend.session_manager)
        ) as web,
    ):
        tools = (await web("GET", "/v1/tools?category=files&safe=true")).json["tools"]
        assert {tool["category"] for tool in tools} == {"files"}
        names = {tool["id"] for tool in tools}
        assert "files.read" in names
        assert "files.delete" not in names
        theirs = (await web("GET", "/v1/tools?query=delete&limit=1", token=OTHER)).json["tools"]
        assert [tool["id"] for tool in theirs] == ["files.delete"]
        granted = {tool["id"] for tool in (await web("GET", "/v1/tools?role=QA")).json["tools"]}
        assert "git.push" not in granted
        for query, message in (
            ("colour=red", "the filters are"),
            ("limit=-1", "whole number"),
            ("safe=yes", "true and false"),
            ("role=x", "unknown role"),
        ):
            assert message in problem(await web("GET", f"/v1/tools?{query}"))[2]


async def test_an_allowed_parked_request_runs_once(tmp_path: Path) -> None:
    class Parks(Policy):
        async def check(self, seat: CallContext, checked: CheckedCall) -> None:
            from moothall.authorization.checks import Stopped

            if checked.spec.name == "files.delete":
                raise Stopped(ToolStatus.BLOCKED, "ask first", may_be_allowed=True)

    async with open_session_manager(tmp_path, MemoryBus(), policy=Parks("off", None)) as backend:
        dependencies = with_parts(
            api_dependencies(MemoryDeliberations()),
            sessions=backend.session_manager,
            approvals=backend.parking,
        )
        async with serving_http(dependencies) as web, asyncio.TaskGroup() as group:
            assert backend.parking is not None
            following = group.create_task(backend.parking.run())
            workspace = await open_workspace(web)
            parked = await web("POST", "/v1/tools/files.delete", call(workspace, path="a.py"))
            assert parked.json["status"] == "parked"
            (waiting,) = (await web("GET", "/v1/parked")).json["parked"]
            assert (waiting["request_id"], waiting["arguments"]) == ("r-1", {"path": "a.py"})
            assert "grant" not in waiting
            for method, path, body in (
                ("GET", "/v1/parked", None),
                ("POST", "/v1/parked/r-1", {"allow": True}),
            ):
                assert problem(await web(method, path, body, token=OTHER))[:2] == (403, "REFUSED")
            decision = await web(
                "POST", f"/v1/parked/{waiting['id']}", {"allow": True, "reason": "fine"}
            )
            assert decision.json["state"] == "allowed"
            fake_workspace = backend.fake_workspaces.fake_workspaces[workspace["workspace_id"]]
            async with asyncio.timeout(20):
                while not fake_workspace.calls:
                    await asyncio.sleep(0.01)
            answer = await web("POST", "/v1/tools/files.delete", call(workspace, path="a.py"))
            assert answer.json["status"] == "success"
            assert len(fake_workspace.calls) == 1
            assert problem(await web("POST", "/v1/parked/r-1", {"allow": True}))[2].endswith(
                "it was allowed already"
            )
            assert problem(await web("POST", "/v1/parked/nothing", {"allow": True}))[0] == 404
            following.cancel()


async def test_health_is_503_if_a_required_part_is_down(backend: SessionsFixture) -> None:
    conditions = {"model": Condition.HEALTHY, "graph": Condition.HEALTHY}

    def probe(name: str) -> Any:
        async def check() -> tuple[Condition, str]:
            if conditions[name] is Condition.DOWN:
                raise ModelUnavailable("nobody answers on 10.1.2.3")
            return conditions[name], "fine"

        return check

    checkup = HealthCheck(
        {"model": Probe(probe("model")), "graph": Probe(probe("graph"), needed=False)},
        cache_seconds=0,
    )
    dependencies = with_parts(
        api_dependencies(MemoryDeliberations()),
        sessions=backend.session_manager,
        health_check=checkup,
    )
    dependencies.serving.accepting_calls.set()
    async with serving_http(dependencies) as web:
        answer = await web("GET", "/health", token=None)
        assert (answer.status, answer.json["status"]) == (200, "healthy")
        assert [part["detail"] for part in answer.json["parts"]] == [
            "",
            "",
        ]  # details are for callers with a token
        conditions["graph"] = Condition.DOWN
        assert (await web("GET", "/health")).json["status"] == "degraded"
        conditions["model"] = Condition.DOWN
        answer = await web("GET", "/health")
        assert (answer.status, answer.json["status"]) == (503, "down")
        assert {part["name"]: part["detail"] for part in answer.json["parts"]}[
            "model"
        ] == "nobody answers on 10.1.2.3 [MODEL_UNAVAILABLE]"
        assert (await web("GET", "/ready", token=None)).status == 200, (
            "its other APIs are not affected"
        )


async def test_an_unresponsive_part_is_down_and_probed_once_for_many_callers() -> None:
    probe_count = 0

    async def silent() -> tuple[Condition, str]:
        nonlocal probe_count
        probe_count += 1
        await asyncio.Event().wait()
        raise AssertionError

    checkup = HealthCheck({"bus": Probe(silent)}, patience_seconds=0.05, cache_seconds=60)
    health_reports = await asyncio.gather(*(checkup.check() for _ in range(20)))
    assert {health.status for health in health_reports} == {Condition.DOWN}
    assert "no answer within" in health_reports[0].parts[0].detail
    assert probe_count == 1
