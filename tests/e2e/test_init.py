"""`moothall init` against a scripted model server."""

from __future__ import annotations

import stat
import tomllib
from pathlib import Path

import pytest

from command import Command
from moothall.testing.model import ScriptedModel, scripted_model
from support.servers import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]


async def test_commands_use_the_settings_written_by_init(
    model: ScriptedModel, tmp_path: Path
) -> None:
    command = Command(tmp_path)
    result = await command("init", "--url", model.base_url, "--price-in", "0.5")
    assert result.code == 0, result.err
    assert f"scripted at {model.base_url} answers" in result.out
    assert "$0.5 for a million prompt tokens" in result.out
    file = tmp_path / "config" / "moothall" / "config.toml"
    assert tomllib.loads(file.read_text(encoding="utf-8")) == {
        "llm": {"base_url": model.base_url, "price_in": 0.5, "model": "scripted"}
    }
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    answer = await command("ask", "--text", "--json", "a HAIKU, please")
    assert answer.code == 0, answer.err
    assert "An old silent pond" in answer.out
    second_init = await command("init", "--url", model.base_url)
    assert (second_init.code, "already has a section [llm]" in second_init.err) == (2, True)


async def test_a_key_is_copied_into_a_separate_file_and_other_settings_are_kept(
    tmp_path: Path,
) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("# mine\n[limits]\nturns = 7\n", encoding="utf-8")
    async with scripted_model(lambda _body, _headers: "{}") as server:
        server.api_key = "sk-1"
        command = Command(tmp_path / "data", extra={"THE_KEY": "sk-1"})
        options = ("--url", server.base_url, "--model", "scripted", "--json")
        refused = await command("--config", str(file), "init", *options)
        assert refused.code == 2
        assert tomllib.loads(file.read_text(encoding="utf-8")) == {"limits": {"turns": 7}}
        result = await command("--config", str(file), "init", *options, "--key-env", "THE_KEY")
    assert result.code == 0, result.err
    key_file = tmp_path / "mine.api_key"
    assert result.document["price"].startswith("no known price, so costs are 0")
    assert result.document["llm"] == {
        "base_url": server.base_url,
        "model": "scripted",
        "api_key_file": str(key_file),
    }
    assert key_file.read_text(encoding="utf-8") == "sk-1\n"
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    assert "sk-1" not in file.read_text(encoding="utf-8") + result.out
    assert file.read_text(encoding="utf-8").startswith("# mine\n[limits]\nturns = 7\n")
    assert tomllib.loads(file.read_text(encoding="utf-8"))["llm"] == result.document["llm"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "name a server: --url URL, or --provider with one of openai, anthropic"),
        (("--url", "nonsense"), "'nonsense' is not an http or https URL"),
        (("--url", "http://127.0.0.1:{port}/v1"), "[MODEL_UNAVAILABLE]"),
        (("--url", "{served}", "--model", "gpt-9"), "has no model 'gpt-9'; it has: scripted"),
        (("--url", "{served}", "--key-env", "UNSET_KEY"), "variable UNSET_KEY is not set"),
        (
            ("--url", "{served}", "--key-env", "HOME", "--key-file", "/dev/null"),
            "name --key-env or --key-file, not both",
        ),
        (("--url", "{served}", "--key-file", "/nowhere"), "key file /nowhere cannot be read"),
        (("--provider", "acme"), "is not one of 'openai'"),
    ],
)
async def test_an_invalid_setting_is_reported_and_nothing_is_written(
    model: ScriptedModel, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    values = {"served": model.base_url, "port": free_port()}
    result = await Command(tmp_path)("init", *(option.format(**values) for option in options))
    assert result.code == 2
    assert message in result.err
    assert not (tmp_path / "config").exists()
