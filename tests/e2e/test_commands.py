"""The smaller commands, as processes."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from command import Command, git
from moothall.app.bus import open_log
from moothall.app.repositories import trusted_repositories
from moothall.config import LlmSettings
from moothall.domain.ids import LOCAL
from moothall.domain.task import DeliberationRequest
from moothall.orchestrator.request_planning import Defaults
from moothall.orchestrator.service import DeliberationService
from moothall.settings import load_settings
from moothall.testing.servers import SERVERS, served

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]


async def test_doctor_lists_every_part_and_isolation_layer(command: Command) -> None:
    result = await command("doctor", "--json")
    assert result.code == 0, result.out
    parts = {finding["part"]: finding for finding in result.document}
    for layer in (
        "bubblewrap",
        "network",
        "seccomp",
        "landlock",
        "memory",
        "processes",
        "disk",
        "files",
    ):
        assert parts[f"sandbox {layer}"]["ok"], parts[f"sandbox {layer}"]
    assert parts["bus"]["ok"]
    assert "replies as json" in parts["model"]["detail"]
    assert result.err == ""


async def test_doctor_shows_what_each_model_server_accepts(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        names = ("openai", "anthropic", "vllm", "bare")
        servers = [
            await stack.enter_async_context(served(SERVERS[name], lambda _b, _h: "Hello."))
            for name in names
        ]
        models = {
            name: {"base_url": server.base_url} for name, server in zip(names, servers, strict=True)
        }
        command = Command(
            tmp_path / "data", servers[2].base_url, {"MOOTHALL_MODELS": json.dumps(models)}
        )
        result = await command("doctor", "--json")
    parts = {finding["part"]: finding["detail"] for finding in result.document}
    assert (
        "native tool calls; window of 8,192 tokens (assumed, since the server does not report "
        "it: set "
        "MOOTHALL_LLM__CONTEXT_TOKENS)" in (parts["model openai"])
    )
    assert "API: /v1/responses" in parts["model openai server"]
    assert "JSON schema: the strict subset only" in parts["model openai server"]
    assert "not sent: temperature" in parts["model openai server"]
    assert "JSON schema: ignored" in parts["model anthropic server"]
    assert "not sent: temperature" in parts["model anthropic server"]
    assert (
        "window of 32,768 tokens (the server's list of models); replies of up to 8,192 tokens"
        in parts["model vllm"]
    )
    assert "reasoning: in reasoning" in parts["model vllm server"]
    assert "replies as blocks; window of 4,096 tokens" in parts["model bare"]
    assert "native tool calls: no; JSON schema: refused" in parts["model bare server"]
    assert "system role: joined with the first message" in parts["model bare server"]


async def test_doctor_names_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    models = {
        "MOOTHALL_MODELS": json.dumps({"large": {"base_url": "http://KEY-of-it@127.0.0.1:9/v1"}})
    }
    result = await Command(tmp_path / "file/below", "http://127.0.0.1:9/v1", models)(
        "doctor", "--json"
    )
    assert result.code == 1
    parts = {finding["part"]: finding for finding in result.document}
    assert not parts["data directory"]["ok"]
    assert "MOOTHALL_DATA_DIR" in parts["data directory"]["mend"]
    assert not parts["model"]["ok"]
    assert not parts["model large"]["ok"]
    assert parts["model large"]["mend"] == "check base_url and model of [models.large]"
    assert "KEY-of-it" not in result.out


async def test_the_log_and_the_audit_show_what_happened(command: Command) -> None:
    deliberated = await command("deliberate", "--text", "--agents", "1", "--json", "Write a HAIKU")
    task_id = deliberated.document["task_id"]
    result = await command("log", "tail", "--task", task_id, "--json")
    events = [json.loads(line) for line in result.out.splitlines()]
    assert [event["type"] for event in events][:2] == [
        "moothall.deliberation.requested",
        "moothall.deliberation.started",
    ]
    assert events[-1]["type"] == "moothall.deliberation.decided"
    whole_log = await command("log", "tail")
    assert whole_log.code == 0, whole_log.err
    assert task_id in whole_log.out
    late = await command("log", "tail", "--task", task_id, "--after", str(events[-1]["seq"]))
    assert (late.code, late.out) == (0, "")
    unknown = await command("log", "tail", "--task", "task-unknown")
    assert (unknown.code, unknown.out) == (2, "")
    assert "no events of task 'task-unknown'" in unknown.err
    assert (await command("log", "dead")).out.strip().endswith("dead letters")
    audit = await command("audit", "verify")
    assert audit.code == 0, audit.out
    assert audit.out.strip().endswith("whole")


async def test_a_changed_audit_record_is_detected(
    command: Command, repo: Path, tmp_path: Path
) -> None:
    own_command = Command(tmp_path / "data", command.model_url)
    assert (
        await own_command(
            "deliberate", "--repo", str(repo), "--agents", "1", "--json", "Add hello_world()"
        )
    ).code == 0
    chain = next((own_command.data_dir / "audit").rglob("*.jsonl"))
    text = chain.read_text(encoding="utf-8")
    assert "files.append" in text
    chain.write_text(text.replace("files.append", "files.delete", 1), encoding="utf-8")
    result = await own_command("audit", "verify")
    assert result.code == 1
    assert result.out.strip().endswith("NOT whole")


async def test_an_older_genuine_audit_restored_from_a_copy_is_detected(
    command: Command, repo: Path, tmp_path: Path
) -> None:
    own_command = Command(tmp_path / "data", command.model_url)
    arguments = ("deliberate", "--repo", str(repo), "--agents", "1", "--json")
    assert (await own_command(*arguments, "Add hello_world()")).code == 0
    audit, older = own_command.data_dir / "audit", tmp_path / "older"
    shutil.copytree(audit, older)
    assert (await own_command(*arguments, "Add hello_world(), again")).code == 0
    verified = await own_command("audit", "verify")
    assert verified.code == 0, verified.out
    shutil.rmtree(audit)
    older.rename(audit)
    result = await own_command("audit", "verify")
    assert result.code == 1, result.out
    assert "an older file put back" in result.out


async def test_settings_are_shown_without_secrets(tmp_path: Path) -> None:
    result = await Command(tmp_path, extra={"MOOTHALL_LLM__API_KEY": "sk-very-secret"})(
        "config", "--json"
    )
    assert result.document["llm"]["retries"] == LlmSettings().retries
    assert "very-secret" not in result.out


@pytest.mark.parametrize("args", [("demo",), ("repo", "list"), ("deliberate", "x")])
async def test_an_unusable_data_directory_is_reported_as_a_broken_part(
    command: Command, args: tuple[str, ...]
) -> None:
    result = await Command(Path("/proc/nope"), command.model_url)(*args)
    assert result.code == 2 or args == ("repo", "list")
    assert "Traceback" not in result.err
    assert result.code == 0 or "/proc/nope" in result.err


async def test_a_disabled_tool_stays_disabled_until_it_is_enabled(command: Command) -> None:
    off = await command("tools", "disable", "git.log", "--reason", "not needed")
    assert (off.code, off.out.strip()) == (0, "git.log is disabled for tenant local"), off.err
    listed = {
        tool["id"]: tool["enabled"] for tool in (await command("tools", "list", "--json")).document
    }
    assert [name for name, enabled in listed.items() if not enabled] == ["git.log"]
    offered = (
        await command("tools", "list", "--role", "dev", "--category", "git", "--json")
    ).document
    assert {tool["id"] for tool in offered}.isdisjoint({"git.log", "git.push"})
    details = (await command("tools", "show", "git.log", "--json")).document
    assert (details["enabled"], details["danger"], details["output_schema"]["type"]) == (
        False,
        "read",
        "object",
    )
    assert (await command("tools", "enable", "git.log")).code == 0
    assert (await command("tools", "show", "git.log", "--json")).document["enabled"]
    assert (await command("tools", "requeue", "list", "--json")).document == []
    missing_request = await command("tools", "requeue", "allow", "r-1")
    assert (missing_request.code, "no parked request 'r-1'" in missing_request.err) == (2, True)
    assert (await command("tools", "revoke", "ws-1")).out.strip() == "ws-1 is revoked"
    refused = await command("tools", "disable", "git.lag")
    assert refused.code == 2
    assert "there is no tool 'git.lag'" in refused.err


async def test_a_task_is_listed_shown_applied_and_deleted(command: Command, repo: Path) -> None:
    deliberated = await command(
        "deliberate", "--agents", "1", "--json", "Add hello_world()", cwd=repo
    )
    assert deliberated.code == 0, deliberated.err
    task_id = deliberated.document["task_id"]
    listed = (await command("list", "--json")).document
    assert listed["tasks"][0]["task_id"] == task_id
    assert (listed["version"], listed["served"]) == (1, True)
    details = await command("show", task_id)
    assert "Winner: agent-dev-001" in details.out, details.err
    assert (await command("show", task_id, "--json")).document == deliberated.document
    diff = await command("diff", task_id, "1")
    assert diff.out == deliberated.document["results"][0]["diff"]
    applied = await command("apply", task_id, cwd=repo)
    assert applied.code == 0, applied.err
    assert "hello_world" in (repo / "src/utils.py").read_text(encoding="utf-8")
    second_apply = await command("apply", task_id, cwd=repo)
    assert (second_apply.code, "uncommitted changes in src/utils.py" in second_apply.err) == (
        2,
        True,
    )
    assert (await command("cancel", task_id)).out.strip() == f"{task_id}: COMPLETED"
    not_removed = await command("rm", task_id)
    assert (not_removed.code, "is merged nowhere" in not_removed.err) == (2, True)
    removed = await command("rm", task_id, "--force")
    assert removed.out.strip() == f"{task_id} is removed, with its branch moothall/{task_id}", (
        removed.err
    )
    assert "moothall" not in git(repo, "branch", "--list")
    assert (await command("show", task_id)).code == 2
    refused = await command("clean", "--all")
    assert (refused.code, "nothing was removed: process" in refused.err) == (1, True)


async def test_an_unassigned_task_is_listed_and_cancelled(tmp_path: Path, repo: Path) -> None:
    own_command = Command(tmp_path / "data", "http://127.0.0.1:9/v1")
    settings = load_settings(data_dir=own_command.data_dir)
    async with open_log(settings, lambda _: None) as bus:
        deliberations = DeliberationService(
            bus, trusted_repositories(settings), Defaults(settings.limits)
        )
        await deliberations.submit(
            DeliberationRequest("Add hello_world()", "dev", "task-left", about_text=True), LOCAL
        )
    listed = await own_command("list")
    assert listed.out.startswith("task-left  at 0 %"), listed.err
    assert "no process works on 1 of them now" in listed.err
    assert (await own_command("cancel", "task-l")).out.strip() == "task-left: CANCELLED"
    assert [task["status"] for task in (await own_command("list", "--json")).document["tasks"]] == [
        "CANCELLED"
    ]


async def test_a_repository_is_checked_and_the_detected_settings_are_written(
    tmp_path: Path, repo: Path
) -> None:
    own_command = Command(tmp_path / "data")
    result = await own_command("check", "--json", "--write", cwd=repo)
    assert result.code == 0, result.err
    (row,) = result.document["checks"]
    assert (row["check"], row["green"], row["red"]) == (
        "tests",
        1,
        ["tests/test_utils.py::test_hello_world"],
    )
    profile_text = (repo / ".moothall.toml").read_text(encoding="utf-8")
    assert profile_text == result.document["profile"]
    second_check = await own_command("check", "--json", "--profile", ".moothall.toml", cwd=repo)
    assert (second_check.code, second_check.document["commands"]) == (
        0,
        result.document["commands"],
    )
    assert second_check.document["unseen"] == "", "the written profile is used as it is"
    (repo / "none.toml").write_text('[checks]\ntests = "no-such-runner"\n', encoding="utf-8")
    broken = await own_command("check", "--profile", "none.toml", cwd=repo)
    assert (broken.code, "no-such-runner was not found" in " ".join(broken.out.split())) == (
        2,
        True,
    ), broken.err
    cleaned = await own_command("clean", "--all", "--json")
    assert {item["kind"] for item in cleaned.document["removed"]} >= {
        "checkout",
        "clone",
        "environment",
    }
    assert cleaned.document["kept"] == []


async def test_a_repository_is_set_up_with_the_commands_given_at_registration(
    tmp_path: Path, repo: Path
) -> None:
    own_command = Command(tmp_path / "data")
    options = ("--setup", "pip install pytest", "--check", "units=python -m pytest -q tests")
    added = await own_command("repo", "add", str(repo), "--id", "app", *options)
    assert added.code == 0, added.err
    result = await own_command("check", "app", "--json")
    assert result.code == 0, result.err
    assert [row["check"] for row in result.document["checks"]] == ["units"]
    assert "pip install pytest" in result.document["profile"]
    removed = await own_command("repo", "remove", "app")
    assert (removed.code, removed.out.strip()) == (
        0,
        f"app is removed; {repo} itself is untouched",
    ), removed.err
    assert (await own_command("check", "app")).code == 2
    assert git(repo, "status", "--porcelain") == ""


async def test_colours_can_be_disabled(tmp_path: Path, repo: Path) -> None:
    """Bold is a weight, not a colour."""
    colours = re.compile(r"\x1b\[[0-9;]*(?:3[0-9]|4[0-9]|9[0-9])[0-9;]*m")
    forced = Command(tmp_path / "data", extra={"FORCE_COLOR": "1", "TERM": "xterm-256color"})
    assert colours.search((await forced("check", cwd=repo)).out)
    assert not colours.search((await forced("--no-color", "check", cwd=repo)).out)
    without_colour = replace(forced, extra={**forced.extra, "NO_COLOR": "1"})
    assert not colours.search((await without_colour("check", cwd=repo)).out)


async def test_the_settings_file_in_the_users_folder_is_read(tmp_path: Path) -> None:
    own_command = Command(tmp_path / "data")
    file = tmp_path / "data" / "config" / "moothall" / "config.toml"
    assert f"no file was read; {file} would be" in (await own_command("config")).out
    file.parent.mkdir(parents=True)
    file.write_text("[llm]\nmax_tokens = 321\n", encoding="utf-8")
    read = await own_command("config")
    assert f"# read from {file}" in read.out, read.err
    assert "MOOTHALL_LLM__MAX_TOKENS=321 " in read.out
    file.write_text("[llm]\nmax_token = 321\n", encoding="utf-8")
    refused = await own_command("config")
    assert (refused.code, "max_token" in refused.err) == (2, True)


async def test_a_council_outside_a_repository_requires_an_explicit_choice_of_text(
    command: Command, tmp_path: Path
) -> None:
    result = await command("deliberate", "Fix the tests", cwd=tmp_path)
    assert (result.code, "name one with --repo, or pass --text" in result.err) == (2, True)
