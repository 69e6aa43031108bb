"""Released projects, each broken by a script and repaired by a council:
`scripts/test-repositories`.

Exits with 1 if a right answer did not win, was not proven or left anything behind, or if a wrong
one won.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fetch import PROGRAMS, Project, make_repository, projects
from moothall.config import Settings
from moothall.settings import load_settings
from moothall.testing.model import scripted_model
from scripted import Player, Riddle
from search import Found, search
from support.repos import Repo
from table import Row, show, write

_TASK = (
    "Some tests fail since the last change. Mend the code, so that all tests pass that passed "
    "before."
)
_SECONDS = 600


async def play(project: Project, settings: Settings, player: Player, url: str, folder: Path) -> Row:
    """Break one project, let a council repair it, and judge the result. Raises `AssertionError` if
    the result is wrong.
    """
    repo = await asyncio.to_thread(make_repository, project, folder)
    released = repo.git("rev-parse", "HEAD^{tree}")
    search_result = await search(settings, folder, project.name)
    task_id = f"{project.name}-{'half' if player.chance else 'wrong'}"
    riddle = _break(repo, search_result)
    player.riddles[task_id] = riddle
    head_before = repo.head
    started = time.monotonic()
    code, document = await _deliberate(settings, url, folder, task_id)
    row = Row(project, search_result, time.monotonic() - started, len(player.right_seats(task_id)))
    _judge(
        repo,
        document,
        code,
        right=player.right_seats(task_id),
        released=released,
        head_before=head_before,
    )
    return row


def _break(repo: Repo, search_result: Found) -> Riddle:
    paths = {search_result.first.path, search_result.second.path}
    texts = {path: (repo.path / path).read_bytes().decode() for path in paths}
    tests = {case.split("::")[1] for case in search_result.failed if "::" in case}
    riddle = Riddle(
        texts,
        search_result.first,
        search_result.second,
        tuple(sorted(test for test in tests if (repo.path / test).is_file())),
    )
    repo.commit({search_result.first.path: riddle.broken}, f"Change {search_result.first.function}")
    return riddle


async def _deliberate(
    settings: Settings, url: str, folder: Path, task_id: str
) -> tuple[int, dict[str, Any]]:
    """Run the command as a user does; return its exit code and its document."""
    command = (
        "deliberate",
        "--repo",
        str(folder),
        "--agents",
        "3",
        "--timeout",
        str(_SECONDS),
        "--task-id",
        task_id,
        "--json",
        _TASK,
    )
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("MOOTHALL_")
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "moothall",
        *command,
        env={
            **inherited,
            "MOOTHALL_DATA_DIR": str(settings.data_dir),
            "MOOTHALL_LLM__BASE_URL": url,
            "MOOTHALL_LLM__MODEL": "",
        },
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_SECONDS + 60):
            out, err = await process.communicate()
    except TimeoutError:
        process.terminate()
        await process.wait()
        raise AssertionError(f"took longer than {_SECONDS + 60} s") from None
    try:
        return process.returncode or 0, json.loads(out)
    except ValueError:
        raise AssertionError(
            f"exit {process.returncode}, no document: {err.decode()[-3000:]}"
        ) from None


def _judge(
    repo: Repo,
    document: Mapping[str, Any],
    code: int,
    *,
    right: frozenset[str],
    released: str,
    head_before: str,
) -> None:
    assert repo.head == head_before, "HEAD was moved"
    assert repo.git("status", "--porcelain") == "", "the checked-out files were touched"
    assert repo.git("worktree", "list").count("\n") == 0, "a worktree was left"
    places = [
        (result["seat"], result["passed_gates"], result["proven"], result["reasons"])
        for result in document["results"]
    ]
    summary = json.dumps(
        {
            "exit": code,
            "right": sorted(right),
            "error": document["error_message"],
            "places": places,
        },
        indent=1,
    )
    assert all(seat in right for seat, gates, proven, _ in places if gates and proven), (
        f"a wrong answer is proven: {summary}"
    )
    if not right:
        assert (code, document["winner_id"]) == (1, ""), f"a wrong answer won: {summary}"
        return
    assert document["winner_id"] in right, f"no right answer won: {summary}"
    assert (code, document["proven"]) == (0, True), f"it is not proven: {summary}"
    assert repo.git("rev-parse", f"{document['branch']}^{{tree}}") == released, (
        "the branch changes more than the repaired function"
    )


async def main(
    selected: Sequence[Project], *, chance: float, data: Path, keep: bool = False
) -> tuple[list[Row], list[str]]:
    """Play every project, one after the other; return the rows and the failures. `keep`: write each
    row into the page at once.
    """
    settings = load_settings().model_copy(update={"data_dir": data})
    player, rows, failed = Player(chance), list[Row](), list[str]()
    async with scripted_model(player.answer()) as server:
        for project in selected:
            programs = {
                PROGRAMS[ecosystem]
                for ecosystem in (
                    project.ecosystem,
                    *(package.ecosystem for package in project.packages),
                )
            }
            if missing := sorted(program for program in programs if shutil.which(program) is None):
                print(f"SKIPPED {project.name}: {', '.join(missing)} is not installed")
                continue
            started = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                try:
                    row = await play(
                        project, settings, player, server.base_url, Path(folder) / "repository"
                    )
                    rows.append(replace(row, seconds=time.monotonic() - started))
                    print(show(rows[-1]), flush=True)
                    if keep:
                        write(rows, [item.name for item in projects()])
                except Exception as error:  # noqa: BLE001 - a failed project; the others are tried too
                    failed.append(project.name)
                    print(
                        f"WRONG {project.name}, {time.monotonic() - started:.0f} s: "
                        f"{type(error).__name__}: {error}",
                        flush=True,
                    )
    return rows, failed


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/test-repositories", description=__doc__)
    parser.add_argument(
        "names", nargs="*", help="projects of tests/repositories/projects.toml; all by default"
    )
    parser.add_argument(
        "--part", metavar="N/M", default="1/1", help="every M-th project from the N-th on"
    )
    parser.add_argument(
        "--wrong-only", action="store_true", help="no seat is right: nothing may win"
    )
    parser.add_argument(
        "--write", action="store_true", help="write their lines in docs/repositories.md"
    )
    parser.add_argument(
        "--data", type=Path, help="a data directory to keep; a fresh one by default"
    )
    return parser.parse_args()


if __name__ == "__main__":
    options = _arguments()
    part, parts = (int(number) for number in options.part.split("/"))
    listed = projects()
    if unknown := set(options.names) - {project.name for project in listed}:
        sys.exit(
            f"unknown: {', '.join(sorted(unknown))}; there are "
            f"{', '.join(project.name for project in listed)}"
        )
    chosen = (
        [project for project in listed if project.name in options.names]
        if options.names
        else listed[(part - 1) % parts :: parts]
    )
    with tempfile.TemporaryDirectory(prefix="moothall-") as fresh:
        passed, failed = asyncio.run(
            main(
                chosen,
                chance=0.0 if options.wrong_only else 0.5,
                data=options.data or Path(fresh),
                keep=options.write,
            )
        )
    print(
        f"{len(passed)} of {len(chosen)} as they must be"
        + (f"; wrong: {', '.join(failed)}" if failed else "")
    )
    sys.exit(1 if failed else 0)
