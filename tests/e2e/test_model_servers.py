"""Councils of three on servers configured as their makers document, with default settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from command import SOLVED, Command, turn
from moothall.testing.model import NativeReply, phase_of
from moothall.testing.servers import SERVERS, served

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

TASK = "Add hello_world() function to src/utils.py"


def answer(body: Mapping[str, Any], headers: Mapping[str, str]) -> NativeReply | str:
    """Reply in the requested format: native tool calls, JSON or blocks."""
    phase = phase_of(headers)
    if phase == "plan":
        return json.dumps(
            {"approaches": ["append the function", "rewrite the whole file", "edit it in place"]}
        )
    if phase in {"critique", "verify"}:
        return json.dumps({"comment": "reads well", "met": [], "unmet": [], "score": 7})
    tools = {tool["function"]["name"] for tool in body.get("tools", ())}
    if tools:
        if any(message["role"] == "tool" for message in body["messages"]):
            return NativeReply((("submit", {"summary": "Added hello_world."}),))
        last = "    return a + b\n"
        edit = {"path": "src/utils.py", "old": last, "new": last + SOLVED}
        return NativeReply(
            (("view", {"path": "src/utils.py"}), ("edit", edit)), text="I add the function."
        )
    prompt = "\n".join(str(message["content"]) for message in body["messages"])
    if "<tool>" in prompt:
        call = {"name": "files.append", "args": {"path": "src/utils.py", "content": SOLVED}}
        return f"<tool>{json.dumps(call)}</tool>"
    return turn("files.append", path="src/utils.py", content=SOLVED)


@pytest.mark.parametrize(
    "name", ["openai", "anthropic", "vllm", "vllm without a tool parser", "bare"]
)
async def test_a_council_of_three_ends_with_a_winner(name: str, repo: Path, tmp_path: Path) -> None:
    async with served(SERVERS[name], answer) as server:
        command = Command(tmp_path / "data", server.base_url)
        result = await command("deliberate", "--repo", str(repo), "--agents", "3", "--json", TASK)
    assert result.code == 0, f"{result.out}\n{result.err}"
    assert result.document["proven"] is True
    assert {seat["error_code"] for seat in result.document["seats"]} == {""}
    paths = {path for path, body in server.requests if body.get("tools")}
    assert paths <= {"/v1/responses" if name == "openai" else "/v1/chat/completions"}
    assert bool(paths) == (SERVERS[name].expect == "tools")


async def test_each_seat_replies_in_the_format_its_model_supports(
    repo: Path, tmp_path: Path
) -> None:
    """One council with a model that calls tools natively, one that obeys schemas, and one that
    offers neither.
    """
    async with (
        served(SERVERS["vllm"], answer) as native,
        served(SERVERS["vllm without a tool parser"], answer) as schema,
        served(SERVERS["bare"], answer) as plain,
    ):
        models = {"schema": {"base_url": schema.base_url}, "plain": {"base_url": plain.base_url}}
        command = Command(
            tmp_path / "data", native.base_url, {"MOOTHALL_MODELS": json.dumps(models)}
        )
        options = ("--agents", "3", "--model", "default,schema,plain", "--peer-review")
        result = await command("deliberate", "--repo", str(repo), *options, TASK)
        details = await command("show", "--json")
    header = " ".join(f"{result.out} {result.err}".split())
    assert result.code == 0, header
    assert {(seat["status"], seat["error_code"]) for seat in details.document["seats"]} == {
        ("proposed", "")
    }
    assert "coder: native tool calls, window 32,768 tokens" in header
    assert "schema coder: replies in JSON, window 8,192 tokens" in header
    assert "plain coder: replies in tagged blocks, window 4,096 tokens" in header
    called, obeyed, wrote = (
        [body for _, body in server.requests] for server in (native, schema, plain)
    )
    assert any(message["role"] == "tool" for body in called for message in body["messages"])
    assert all("response_format" in body for body in obeyed)
    assert not any("tools" in body or "response_format" in body for body in wrote)
    assert any("<tool>" in body["messages"][0]["content"] for body in wrote)
