from __future__ import annotations

from dataclasses import replace

import pytest

from moothall.config import SandboxSettings, WorkspaceSettings
from moothall.domain.evidence import CheckRun, Verdict
from moothall.domain.repository import Base, Prepared, Profile
from moothall.sandbox.cgroups import cores, memory
from moothall.workspace.limits import CheckLimit, describe_limit, describe_shell_limit, limit
from moothall.workspace.pool import concurrent_commands

SETTINGS = WorkspaceSettings(check_seconds=100, check_floor_seconds=12)


def prepared_with(**run: object) -> Prepared:
    check_run = CheckRun("tests", Verdict.PASSED, **{"duration_ms": 1000, **run})  # type: ignore[arg-type]
    return Prepared(
        Base("r", "0" * 40, Profile(checks={"tests": ("x",)})), "key", (), {"tests": check_run}
    )


@pytest.mark.parametrize(
    ("command", "seconds", "setting"),
    [
        ("python -m pytest", 100, "workspace.check_seconds"),
        ("go test ./...", 100, "workspace.check_seconds"),
        ("npm test", 100, "workspace.check_seconds"),
        ("make test", 48, "4 times workspace.check_floor_seconds"),
        ("./run-tests", 48, "4 times workspace.check_floor_seconds"),
    ],
)
def test_the_base_gets_the_maximum_time_and_triple_the_limit_per_case(
    command: str, seconds: float, setting: str
) -> None:
    profile = Profile(checks={"tests": tuple(command.split())})
    bare = Prepared(Base("r", "0" * 40, profile), "key", ())
    assert limit(SETTINGS, bare, "tests") == CheckLimit(seconds, 6, setting)
    with_reports = replace(profile, reports={"tests": ("out/*.xml",)})
    assert (
        limit(
            SETTINGS, replace(bare, base=replace(bare.base, profile=with_reports)), "tests"
        ).seconds
        == 100
    )
    assert (
        limit(SETTINGS.model_copy(update={"check_floor_seconds": 50.0}), bare, "tests").seconds
        == 100
    )


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        ({}, (12, 2, "workspace.check_floor_seconds")),
        (
            {"duration_ms": 10_000},
            (50, 2, "5 times the 10.0 s of the untouched base"),
        ),
        ({"duration_ms": 90_000}, (100, 2, "workspace.check_seconds")),
        ({"durations": {"a": 3000}}, (12, 12, "workspace.check_floor_seconds")),
        (
            {
                "duration_ms": 9000,
                "durations": {"a": 8000, "b": 100},
                "details": {"a": "hit the limit of 8 s"},
            },
            (12, 2, "workspace.check_floor_seconds"),
        ),
        (
            {"duration_ms": 99_000, "status": "timeout", "durations": {"a": 100}},
            (12, 2, "workspace.check_floor_seconds"),
        ),
    ],
)
def test_limits_are_derived_from_the_base_run(
    run: dict[str, object], expected: tuple[float, float, str]
) -> None:
    assert limit(SETTINGS, prepared_with(**run), "tests") == CheckLimit(*expected)


def test_a_reached_limit_is_named_with_its_setting() -> None:
    check_limit = CheckLimit(42, 2, "workspace.check_floor_seconds")
    assert (
        describe_limit("tests", "timeout", check_limit, SandboxSettings())
        == "tests hit the limit of 42 s (workspace.check_floor_seconds)"
    )
    assert "sandbox.memory_bytes = 2e+09" in describe_limit(
        "tests", "memory", check_limit, SandboxSettings()
    )


@pytest.mark.parametrize(
    ("status", "seconds", "requested_seconds", "words"),
    [
        ("success", 120, 120, ""),
        (
            "timeout",
            119.9,
            120,
            (
                "stopped after 120 s; timeout_seconds gives a command up to 600 s "
                "(workspace.check_seconds)"
            ),
        ),
        (
            "timeout",
            599.9,
            9000,
            "stopped after 600 s; a command may take at most 600 s (workspace.check_seconds)",
        ),
        ("timeout", 37.2, 120, "stopped after 37 s; no time was left for it"),
        ("memory", 120, 120, "the limit of memory and was stopped (sandbox.memory_bytes = 2e+09)"),
        ("cpu", 120, 120, "a limit of CPU time"),
        ("cancelled", 120, 120, "the command was stopped: cancelled"),
    ],
)
def test_the_reason_for_stopping_a_shell_command_is_reported(
    status: str, seconds: float, requested_seconds: float, words: str
) -> None:
    description = describe_shell_limit(status, seconds, requested_seconds, 600.0, SandboxSettings())
    assert words in description
    assert bool(description) is bool(words)


def test_no_more_commands_run_at_a_time_than_fit_into_memory() -> None:
    assert concurrent_commands(SandboxSettings(memory_bytes=64_000_000)) == cores() + 1
    assert concurrent_commands(SandboxSettings(memory_bytes=memory() // 2 + 1)) == 1
    assert concurrent_commands(SandboxSettings(memory_bytes=2 * memory())) == 1
    assert concurrent_commands(SandboxSettings(memory_bytes=2 * memory(), cores=7)) == 7
