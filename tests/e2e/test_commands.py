"""The smaller commands, as processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from house import Command
from moothall.config import Llm

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]


async def test_doctor_lists_every_part_and_wall(command: Command) -> None:
    done = await command("doctor", "--json")
    assert done.code == 0, done.out
    parts = {finding["part"]: finding for finding in done.document}
    for wall in ("bubblewrap", "network", "seccomp", "landlock", "memory", "processes", "disk", "files"):
        assert parts[f"sandbox {wall}"]["ok"], parts[f"sandbox {wall}"]
    assert parts["bus"]["ok"]
    assert parts["model"]["detail"].endswith("replies as json")


async def test_doctor_says_what_would_mend_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    done = await Command(tmp_path / "file/below", "http://127.0.0.1:9/v1")("doctor", "--json")
    assert done.code == 1
    parts = {finding["part"]: finding for finding in done.document}
    assert not parts["data directory"]["ok"]
    assert "MOOTHALL_DATA_DIR" in parts["data directory"]["mend"]
    assert not parts["model"]["ok"]


async def test_the_log_and_the_audit_tell_what_happened(command: Command) -> None:
    asked = await command("deliberate", "--text", "--agents", "1", "--json", "Write a HAIKU")
    task_id = asked.document["task_id"]
    done = await command("log", "tail", "--task", task_id, "--json")
    events = [json.loads(line) for line in done.out.splitlines()]
    assert [event["type"] for event in events][:2] == ["moothall.deliberation.requested", "moothall.deliberation.started"]
    assert events[-1]["type"] == "moothall.deliberation.decided"
    everything = await command("log", "tail")
    assert everything.code == 0, everything.err
    assert task_id in everything.out
    assert (await command("log", "dead")).out.strip().endswith("dead letters")
    audit = await command("audit", "verify")
    assert audit.code == 0, audit.out
    assert audit.out.strip().endswith("whole")


async def test_a_changed_audit_record_is_found(command: Command, repo: Path, tmp_path: Path) -> None:
    alone = Command(tmp_path / "data", command.model_url)
    assert (await alone("deliberate", "--repo", str(repo), "--agents", "1", "--json", "Add hello_world()")).code == 0
    chain = next((alone.data_dir / "audit").rglob("*.jsonl"))
    text = chain.read_text(encoding="utf-8")
    assert "files.append" in text
    chain.write_text(text.replace("files.append", "files.delete", 1), encoding="utf-8")
    done = await alone("audit", "verify")
    assert done.code == 1
    assert done.out.strip().endswith("NOT whole")


async def test_settings_are_shown_without_secrets(tmp_path: Path) -> None:
    done = await Command(tmp_path, extra={"MOOTHALL_LLM__API_KEY": "sk-very-secret"})("config", "--json")
    assert done.document["llm"]["retries"] == Llm().retries
    assert "very-secret" not in done.out


@pytest.mark.parametrize("args", [("demo",), ("repo", "list"), ("deliberate", "x")])
async def test_a_data_directory_that_cannot_be_used_is_a_broken_part(args: tuple[str, ...]) -> None:
    done = await Command(Path("/proc/nope"), "http://127.0.0.1:9/v1")(*args)
    assert done.code == 2 or args == ("repo", "list")
    assert "Traceback" not in done.err
    assert done.code == 0 or "/proc/nope" in done.err


async def test_a_disabled_tool_is_off_until_it_is_enabled(command: Command) -> None:
    off = await command("tools", "disable", "git.log", "--reason", "not needed")
    assert (off.code, off.out.strip()) == (0, "git.log is disabled for tenant local"), off.err
    listed = {tool["id"]: tool["enabled"] for tool in (await command("tools", "list", "--json")).document}
    assert [name for name, enabled in listed.items() if not enabled] == ["git.log"]
    offered = (await command("tools", "list", "--role", "dev", "--category", "git", "--json")).document
    assert {tool["id"] for tool in offered}.isdisjoint({"git.log", "git.push"})
    shown = (await command("tools", "show", "git.log", "--json")).document
    assert (shown["enabled"], shown["danger"], shown["output_schema"]["type"]) == (False, "read", "object")
    assert (await command("tools", "enable", "git.log")).code == 0
    assert (await command("tools", "show", "git.log", "--json")).document["enabled"]
    assert (await command("tools", "requeue", "list", "--json")).document == []
    nothing = await command("tools", "requeue", "allow", "r-1")
    assert (nothing.code, "no parked request 'r-1'" in nothing.err) == (2, True)
    assert (await command("tools", "revoke", "ws-1")).out.strip() == "ws-1 is revoked"
    wrong = await command("tools", "disable", "git.lag")
    assert wrong.code == 2
    assert "there is no tool 'git.lag'" in wrong.err
