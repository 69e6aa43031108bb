"""Hosts in child processes."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
from pathlib import Path

import pytest

from moothall.concurrency import loop_factory
from moothall.errors import FleetUnavailable
from moothall.workers.subprocesses import hosting, starting
from support import host_programs

pytestmark = pytest.mark.e2e


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the children import the tests' hosts."""
    tests = Path(host_programs.__file__).parents[1]
    monkeypatch.setenv("PYTHONPATH", str(tests), prepend=os.pathsep)


async def test_hosts_run_in_child_processes_until_the_end(tmp_path: Path) -> None:
    async with hosting(2, functools.partial(host_programs.write_pid, tmp_path)) as alive:
        assert await alive() == (2, 2)
        pids = {int(file.read_text()) for file in tmp_path.iterdir()}
        assert len(pids - {os.getpid()}) == 2
    assert list(tmp_path.iterdir()) == [], "the hosts were cancelled, not killed"
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_prestarted_processes_are_used_and_the_others_end(
    tmp_path: Path,
) -> None:
    async with starting(2, host_programs.__name__) as processes:
        pids = {process.pid for process in processes}
        main = functools.partial(host_programs.write_pid, tmp_path)
        async with hosting(1, main, started=processes):
            (left,) = processes
            assert {int((tmp_path / "host-1").read_text()), left.pid} == pids
            os.kill(left.pid, 0)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_killed_prestarted_process_is_replaced(tmp_path: Path) -> None:
    async def main() -> None:
        async with starting(1, host_programs.__name__) as processes:
            os.kill(processes[0].pid, signal.SIGKILL)
            await processes[0].wait()
            program = functools.partial(host_programs.write_pid, tmp_path)
            async with hosting(1, program, started=processes) as alive:
                assert await alive() == (1, 1)

    with asyncio.Runner(loop_factory=loop_factory()) as runner:  # uvloop raises errors of its own
        runner.run(main())


async def test_a_process_whose_server_is_gone_ends_without_an_error() -> None:
    async with starting(1, host_programs.__name__) as [process]:
        assert process.stdin is not None
        process.stdin.close()
        assert await process.wait() == 0


async def test_a_killed_host_is_restarted(tmp_path: Path) -> None:
    file = tmp_path / "host-1"
    async with hosting(1, functools.partial(host_programs.write_pid, tmp_path)) as alive:
        first = file.read_text()
        os.kill(int(first), signal.SIGKILL)
        async with asyncio.timeout(60):
            while await alive() == (1, 1):
                await asyncio.sleep(0.01)
            while await alive() != (1, 1):
                await asyncio.sleep(0.01)
        assert file.read_text() != first


async def test_a_failing_host_ends_the_body() -> None:
    async def body() -> None:
        async with hosting(1, host_programs.fail):
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as caught:
        await body()
    assert caught.group_contains(LookupError, match="host-1 has a bug")


async def test_a_host_that_returns_ends_the_body() -> None:
    async def body() -> None:
        async with hosting(1, host_programs.end), asyncio.timeout(30):
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as caught:
        await body()
    assert caught.group_contains(FleetUnavailable, match="host-1 ended with exit code 0")


async def test_an_error_that_cannot_be_unpickled_is_raised_as_its_text() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with hosting(1, host_programs.fail_oddly):
            pytest.fail("nothing hosts")
    assert caught.group_contains(RuntimeError, match="OddError: an odd bug")


async def test_a_host_that_ends_by_itself_is_not_restarted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", "")  # so that the child cannot import the test's host
    with pytest.raises(ExceptionGroup) as caught:
        async with hosting(1, host_programs.never_ready):
            pytest.fail("nothing hosts")
    assert caught.group_contains(FleetUnavailable, match="host-1 ended with exit code 1")


async def test_hosts_that_start_too_slowly_are_an_error() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with hosting(1, host_programs.never_ready, ready_seconds=0.5):
            pytest.fail("nothing hosts")
    assert caught.group_contains(FleetUnavailable, match=r"not ready within 0\.5 s")


async def test_modules_of_the_working_folder_are_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "moothall.py").write_text("raise SystemExit(1)")
    (tmp_path / "asyncio.py").write_text("raise SystemExit(1)")
    (tmp_path / "pids").mkdir()
    monkeypatch.chdir(tmp_path)
    main = functools.partial(host_programs.write_pid, tmp_path / "pids")
    async with hosting(1, main) as alive:
        assert await alive() == (1, 1)
