"""Ray cannot start because the paths of its sockets would be too long."""

from __future__ import annotations

from pathlib import Path

import pytest

from command import QUICK, Command

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]


@pytest.fixture
def without_ray(command: Command, tmp_path: Path) -> Command:
    temporary = tmp_path / ("long" * 30)
    temporary.mkdir()
    return Command(
        tmp_path / "data",
        command.model_url,
        {**QUICK, "TMPDIR": str(temporary), "MOOTHALL_RAY__MODE": "ray"},
    )


async def test_a_single_command_works_without_ray_and_reports_it(without_ray: Command) -> None:
    result = await without_ray(
        "deliberate", "--text", "--agents", "1", "Write a HAIKU", seconds=400
    )
    assert result.code == 3, result.err
    assert (
        result.err.count(
            "hosts run in this process instead of Ray: Ray did not start on this machine"
        )
        == 1
    )


async def test_a_server_without_ray_names_the_setting(without_ray: Command) -> None:
    result = await without_ray("serve", "--port", "0", seconds=400)
    assert result.code == 2
    assert "Set MOOTHALL_RAY__MODE=subprocess" in result.err
    assert result.err.strip().endswith("[RAY_UNAVAILABLE]")
