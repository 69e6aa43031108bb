"""`/openapi.json` describes `/api/v1` as it is served."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator

from moothall.api.http.stories import story_operations
from moothall.domain.ids import LOCAL
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.domain.task import DeliberationRequest
from support.callers import TOKEN, api_dependencies
from support.deliberation_service import MemoryDeliberations
from support.rest import Web, serving_http

STORY = {
    "title": "Export invoices as CSV",
    "brief": "As a clerk, I want CSV, so that I can book.",
    "ac": ["Given a, when b, then c"],
}


@pytest.fixture
async def web(deliberations: MemoryDeliberations) -> AsyncIterator[Web]:
    async with serving_http(api_dependencies(deliberations)) as server:
        yield server


@pytest.fixture
async def openapi(web: Web) -> dict[str, Any]:
    answer = await web("GET", "/openapi.json", token=None)
    assert answer.status == 200
    document: dict[str, Any] = answer.json
    return document


def check(openapi: dict[str, Any], schema: dict[str, Any], value: object) -> None:
    """Raise `ValidationError` if a value violates a schema of the document."""
    complete_schema = {**schema, "components": openapi["components"]}
    Draft202012Validator(complete_schema).validate(value)


async def test_every_operation_of_the_api_is_described(
    openapi: dict[str, Any], deliberations: MemoryDeliberations
) -> None:
    assert openapi["openapi"] == "3.1.0"
    served = {
        (operation.path, operation.method.lower())
        for operation in story_operations(api_dependencies(deliberations))
    }
    described = {(path, method) for path, methods in openapi["paths"].items() for method in methods}
    assert described == served
    assert all(
        operation["summary"]
        for methods in openapi["paths"].values()
        for operation in methods.values()
    )
    named = [
        operation["operationId"]
        for methods in openapi["paths"].values()
        for operation in methods.values()
    ]
    assert len(set(named)) == len(named)


async def test_responses_match_the_openapi_schemas(
    web: Web, openapi: dict[str, Any], deliberations: MemoryDeliberations
) -> None:
    async def ask(method: str, path: str, at: str, body: Any = None) -> Any:
        operation = openapi["paths"][path][method.lower()]
        if body is not None:
            check(openapi, operation["requestBody"]["content"]["application/json"]["schema"], body)
        answer = await web(method, at, body)
        response = operation["responses"][str(answer.status)]
        if "content" in response:
            check(openapi, response["content"]["application/json"]["schema"], answer.json)
        return answer.json

    story_path = "/api/v1/stories/{id}"
    story = await ask("POST", "/api/v1/stories", "/api/v1/stories", STORY)
    at = f"/api/v1/stories/{story['story_id']}"
    await ask("POST", f"{story_path}/comments", f"{at}/comments", {"comment": "soon"})
    await ask("POST", f"{story_path}/transitions", f"{at}/transitions", {"event": "refine"})
    await ask("GET", "/api/v1/stories", "/api/v1/stories")
    await ask("GET", f"{story_path}/plan", f"{at}/plan")
    assert (await ask("GET", story_path, at))["moves"]
    draft = {"title": "Export", "description": "it", "ac": []}
    assert (await ask("POST", "/api/v1/coach/score", "/api/v1/coach/score", draft))["findings"]
    await deliberations.submit(DeliberationRequest("do it", "dev", task_id="task-1"), LOCAL)
    await ask(
        "POST",
        "/api/v1/deliberations/{id}/steer",
        "/api/v1/deliberations/task-1/steer",
        {"message": "In French."},
    )
    await ask("POST", "/api/v1/deliberations/{id}/pause", "/api/v1/deliberations/task-1/pause")
    await ask("POST", "/api/v1/deliberations/{id}/resume", "/api/v1/deliberations/task-1/resume")
    await deliberations.decide(Outcome("task-1", DeliberationStatus.COMPLETED, role="dev"))
    await ask("GET", "/api/v1/deliberations/{id}", "/api/v1/deliberations/task-1")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/api/v1/stories/nope", None),
        ("POST", "/api/v1/stories", {"title": 7}),
        ("POST", "/api/v1/stories", {"titel": "x"}),
        ("POST", "/api/v1/stories/nope/comments", {"comment": ""}),
        ("POST", "/api/v1/coach/score", []),
    ],
)
async def test_errors_match_the_problem_schema(
    web: Web, openapi: dict[str, Any], method: str, path: str, body: Any
) -> None:
    answer = await web(method, path, body)
    assert 400 <= answer.status < 500
    check(openapi, {"$ref": "#/components/schemas/Problem"}, answer.json)


@pytest.mark.e2e
async def test_schemathesis_finds_no_undocumented_behaviour(web: Web, tmp_path: Path) -> None:
    """Schemathesis generates valid and invalid requests and chains of them. It does not know rules
    beyond the schema, such as that a story needs a title.
    """
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).with_name("st")),
        "run",
        f"http://127.0.0.1:{web.port}/openapi.json",
        "--header",
        f"Authorization: Bearer {TOKEN}",
        "--exclude-path",
        "/api/v1/events",  # a stream that never ends
        "--max-examples",
        "20",
        "--generation-deterministic",
        "--exclude-checks",
        "positive_data_acceptance",
        "--no-color",
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(120):
        response, _ = await process.communicate()
    assert process.returncode == 0, response.decode()
    assert "Tested: 15" in response.decode(), response.decode()
