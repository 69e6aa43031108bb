from __future__ import annotations

import asyncio
import gc
import stat
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from moothall.cli.runtime import report_errors, result_of, settings_of, with_settings
from moothall.config import Settings


def test_the_data_directory_is_created_for_its_owner_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOOTHALL_DATA_DIR", str(tmp_path / "deep" / "data"))
    settings = settings_of(click.Context(click.Command("any")))
    assert stat.S_IMODE(settings.data_dir.stat().st_mode) == 0o700


def test_a_long_wait_is_explained_and_a_short_one_is_silent(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def wait_for_stderr() -> str:
        async with asyncio.timeout(30):
            while not (stderr := capsys.readouterr().err):
                await asyncio.sleep(0.005)
        return stderr

    async def at_once() -> int:
        return 3

    assert result_of(wait_for_stderr(), "reading the log", after=0.01) == "reading the log …\n"
    assert result_of(at_once(), "reading the log", after=3600) == 3
    assert capsys.readouterr().err == ""


def test_garbage_collection_is_enabled_when_a_command_runs() -> None:
    async def is_collecting() -> bool:
        return gc.isenabled()

    gc.disable()
    try:
        assert result_of(is_collecting())
    finally:
        gc.enable()


def test_a_bug_is_reported_with_its_cause_at_any_depth(
    capsys: pytest.CaptureFixture[str],
) -> None:
    error: Exception = ValueError("the cause")
    for _ in range(20):
        error = ExceptionGroup("unhandled errors", [error])

    @report_errors
    def run_into_bug() -> None:
        raise error

    with pytest.raises(SystemExit) as exit_error:
        run_into_bug()
    assert exit_error.value.code == 2
    assert "ValueError: the cause" in capsys.readouterr().err


def test_a_command_gets_the_settings_and_returns_the_exit_code(tmp_path: Path) -> None:
    @click.command()
    @click.argument("code", type=int)
    @with_settings()
    async def command(settings: Settings, *, code: int) -> int | None:
        click.echo(settings.data_dir)
        return code or None

    for code in (0, 3):
        result = CliRunner().invoke(command, [str(code)], env={"MOOTHALL_DATA_DIR": str(tmp_path)})
        assert (result.exit_code, result.output) == (code, f"{tmp_path}\n")


def test_a_wrong_parameter_is_reported_in_clicks_form(
    tmp_path: Path,
) -> None:
    @click.command()
    @with_settings()
    async def command(settings: Settings) -> None:
        raise click.BadParameter(f"no place below {settings.data_dir}", param_hint="--line")

    result = CliRunner().invoke(command, [], env={"MOOTHALL_DATA_DIR": str(tmp_path)})
    assert result.exit_code == 2
    assert f"Error: Invalid value for --line: no place below {tmp_path}" in result.output
    assert "Traceback" not in result.output
