"""A council of three with default settings ends with a winner, whichever kind of model server it is given."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from house import SOLVED, Command
from moothall.repositories.sample import make_sample_repository
from moothall.testing.model import NativeReply, Reply, phase_of
from moothall.testing.servers import SERVERS, ServerKind, served

pytestmark = pytest.mark.e2e

KINDS = ("openai", "anthropic", "vllm", "lm studio", "vllm without a tool parser", "bare")
"""Those whose seats work differently: Responses, chat completions, reasoning, a small window without a shell, JSON, and blocks."""


def solve(body: Mapping[str, Any], headers: Mapping[str, str]) -> Reply:
    """Solve the sample's task in whichever way the seat may call tools."""
    phase = phase_of(headers)
    if phase == "plan":
        return json.dumps({"approaches": ["append the function", "rewrite the file", "edit in place"]})
    if phase in {"critique", "verify"}:
        return json.dumps({"comment": "fine", "met": [], "unmet": [], "score": 8})
    if body.get("tools"):
        names = {tool.get("name") or tool["function"]["name"] for tool in body["tools"]}
        append = ("files_append", {"path": "src/utils.py", "content": SOLVED})
        if "bash" in names:
            append = ("bash", {"command": f"cat >> src/utils.py <<'EOF'\n{SOLVED}EOF"})
        return NativeReply((append, ("submit", {"summary": "Added hello_world()."})))
    action = {"path": "src/utils.py", "content": SOLVED}
    if body.get("response_format"):
        return json.dumps({"thought": "add it", "actions": [{"tool": "files.append", "args": action}]})
    return f"I add it.\n<tool>{json.dumps({'name': 'files.append', 'args': action})}</tool>"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One data directory for all: the environment of the repository is made once."""
    return tmp_path_factory.mktemp("servers") / "data"


@pytest.mark.parametrize("kind", [SERVERS[name] for name in KINDS], ids=KINDS)
async def test_a_council_ends_with_a_winner(kind: ServerKind, data: Path, tmp_path: Path) -> None:
    await make_sample_repository(tmp_path / "repo")
    async with served(kind, solve) as server:
        command = Command(data, server.base_url)
        task = "Add hello_world() function to src/utils.py"
        done = await command("deliberate", "--repo", str(tmp_path / "repo"), "--agents", "3", "--json", task, seconds=600)
        checked = await command("doctor")
    assert done.code == 0, done.err
    assert done.document["proven"] is True
    model = next(line for line in checked.out.splitlines() if "model" in line)
    assert kind.expect in checked.out, model
