"""A seat that uses a tool of an MCP server: the tool is accepted, granted, run on the seat's files,
and visible in the winner's diff.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from command import SOLVED, Command, answer_turns_with, git, turn
from moothall.authorization.rules import policies_folder
from moothall.cli.demo import make_sample_repository
from moothall.testing.model import Answer, Fault, scripted_model

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

SUPPORT = Path(__file__).parents[1] / "support"
TASK = "Add hello_world() function to src/utils.py"


def writing(text: str) -> Answer:
    """Reply as a seat that requests the whole file repeatedly until this is refused."""

    def answer(body: dict[str, Any], headers: Mapping[str, str]) -> str | Fault:
        del headers
        if any(
            "is not granted to this seat" in str(message["content"]) for message in body["messages"]
        ):
            return '{"thought": "", "finish": "I may not."}'
        return turn("mcp.notes.put", path="src/utils.py", text=text)

    return answer


async def test_changes_made_by_an_mcp_tool_are_in_the_winners_diff(tmp_path: Path) -> None:
    tools, policies, repo = tmp_path / "tools", tmp_path / "policies", tmp_path / "repo"
    tools.mkdir()
    shutil.copy(SUPPORT / "mcp_server.py", tools)
    await make_sample_repository(repo)
    shutil.copytree(policies_folder(), policies)
    server = {
        "command": ["python", f"{tools}/mcp_server.py"],
        "files": "write",
        "tools": {"get": {"danger": "read"}},
    }
    async with scripted_model(
        answer_turns_with(writing((repo / "src/utils.py").read_text(encoding="utf-8") + SOLVED))
    ) as model:
        command = Command(tmp_path / "data", model.base_url)
        command.extra = {
            "MOOTHALL_MCP__SERVERS": json.dumps({"notes": server}),
            "MOOTHALL_SANDBOX__TOOLCHAINS": json.dumps([sys.prefix, str(tools)]),
            "MOOTHALL_GUARD__POLICIES": str(policies),
        }
        listing = await command("tools", "take", "notes", "--look")
        assert (listing.code, "mcp.notes.put" in listing.out, "new" in listing.out) == (
            0,
            True,
            True,
        ), listing.err
        assert "mcp." not in (await command("tools", "list")).out, "reading requires no grant"
        acceptance = await command("tools", "take", "notes")
        assert "8 tools accepted" in acceptance.err, acceptance
        second_look = await command("tools", "take", "notes", "--look")
        assert "new" not in second_look.out.split()
        listed = {
            record["id"]: record
            for record in (await command("tools", "list", "--category", "mcp", "--json")).document
        }
        assert listed["mcp.notes.put"]["danger"] == "execute"
        assert listed["mcp.notes.get"]["danger"] == "read"
        details = await command("tools", "show", "mcp.notes.put")
        assert details.out.startswith(
            "mcp.notes.put(path, text, times?, model_kind?)\nof an MCP server, which says of it:"
        ), details.out
        assert "mcp." not in (await command("tools", "list", "--role", "dev")).out, (
            "the tool is granted to nobody"
        )

        refused = await command(
            "deliberate",
            TASK,
            "--repo",
            str(repo),
            "--task-id",
            "not-granted",
            "--agents",
            "1",
            "--json",
        )
        assert refused.code == 1, refused.out
        table = yaml.safe_load((policies / "roles.yaml").read_text(encoding="utf-8"))
        table["roles"]["dev"]["tools"]["mcp.notes.*"] = ["read", "execute"]
        (policies / "roles.yaml").write_text(yaml.safe_dump(table), encoding="utf-8")
        assert "mcp.notes.put" in (await command("tools", "list", "--role", "dev")).out
        won = await command(
            "deliberate",
            TASK,
            "--repo",
            str(repo),
            "--task-id",
            "granted",
            "--agents",
            "1",
            "--json",
        )
    assert won.code == 0, (won.out, won.err)
    assert won.document["status"] == "COMPLETED"
    assert "hello_world" in git(repo, "show", f"{won.document['branch']}:src/utils.py")
    records = [
        json.loads(line)
        for file in (tmp_path / "data" / "audit" / "local").glob("*.jsonl")
        for line in file.read_text(encoding="utf-8").splitlines()
    ]
    ends = {
        (record["task_id"], record["status"])
        for record in records
        if record.get("tool") == "mcp.notes.put" and record["phase"] == "finish"
    }
    assert ("granted", "success") in ends
    assert {status for task, status in ends if task == "not-granted"} == {"blocked"}
    assert (await command("audit", "verify")).code == 0
