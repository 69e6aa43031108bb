#!/usr/bin/env python3
"""Deliberate on a pool of candidates as given, with all judging agents played by hand.

    .venv/bin/python tests/strong/judge_pool.py FOLDER CLONES NAME [--wrong-only] [--protocol NAME]
    .venv/bin/python tests/strong/judge_pool.py FOLDER POOL.toml

The pool brings no tests, and its candidates are dealt to the seats at random. Answer the requests
in FOLDER/relay (see relay.py). The result is FOLDER/out.json, errors are in FOLDER/err.txt, and
FOLDER/outcome.json says whether the winner is right and which tokens the agents used. The player
opens no other file of FOLDER before the end, and no recipe.

With --wrong-only the right candidates are left out: reviews, revisions and a second wave, which are
played too, have to find a right one. The winner is right if it passes upstream's tests.

POOL.toml is a pool of tests/e2e/pools. Its candidates keep their order, and the replies are
recorded in tests/recordings/pools.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[0] = str(HERE.parent)  # instead of this folder

from moothall.app.workspaces import open_workspace_services  # noqa: E402
from moothall.config import WorkspaceSettings  # noqa: E402
from moothall.settings import load_settings  # noqa: E402
from support.pools import Pool, dealt_candidates, read_pool  # noqa: E402
from support.selection import (  # noqa: E402
    NO_TEST,
    UPSTREAM,
    Pools,
    Recipe,
    check_out_parent,
    pool_of,
    read_recipe,
)

_RELAY_START_SECONDS = 2


@dataclass(frozen=True, slots=True)
class Play:
    """A prepared pool.

    candidates: the diffs by name, in the order of the seats.
    right: the names of the right candidates.
    passes: True if another diff, of a revision or a second wave, is right.
    """

    name: str
    language: str
    task: str
    candidates: Mapping[str, str]
    right: frozenset[str]
    passes: Callable[[str], bool] = lambda _: False


def main() -> None:
    """Deal the candidates, run the deliberation, and write which of them won."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("clones", type=Path)
    parser.add_argument("name", nargs="?", default="")
    parser.add_argument("--wrong-only", action="store_true", help="deal no right candidate")
    parser.add_argument("--protocol", default="", help="of the council")
    options = parser.parse_args()
    folder = options.folder.resolve()
    (folder / "relay").mkdir(parents=True)
    if options.clones.suffix == ".toml":
        pool = read_pool(options.clones)
        play = prepare_small_pool(pool, folder / "repo")
        outcome = judge(play, folder, options.protocol)
        record(pool, folder / "relay")
    else:
        recipe = read_recipe(HERE / "corpus" / f"{options.name}.toml")
        clone = options.clones / recipe.repository.replace("/", "+") / "repo"
        play = prepare_recipe(recipe, clone, folder / "repo", wrong_only=options.wrong_only)
        outcome = judge(play, folder, options.protocol)
    text = json.dumps(outcome, indent=1)
    (folder / "outcome.json").write_text(text, encoding="utf-8")
    sys.stdout.write(f"{text}\n")


def prepare_small_pool(pool: Pool, repository: Path) -> Play:
    """Create the repository of a pool of tests/e2e/pools."""
    pool.create_repository(repository)
    return Play(
        pool.name,
        pool.program,
        pool.task,
        {item.name: pool.diff(repository, item) for item in dealt_candidates(pool)},
        frozenset(item.name for item in pool.candidates if item.right),
    )


def prepare_recipe(recipe: Recipe, clone: Path, repository: Path, *, wrong_only: bool) -> Play:
    """Create a repository at the parent of a recipe's commit."""
    right = {UPSTREAM, *(item.name for item in recipe.variants if item.right)}
    with check_out_parent(recipe, clone) as sources:
        candidates = list(pool_of(recipe, sources, NO_TEST).items())
        git("clone", "--quiet", "--no-tags", str(sources.folder), str(repository))
        git("-C", str(repository), "checkout", "--quiet", "-B", "parent", sources.parent())
    git("-C", str(repository), "remote", "remove", "origin")
    random.shuffle(candidates)
    return Play(
        recipe.name,
        recipe.language,
        recipe.task,
        {name: diff for name, diff in candidates if not (wrong_only and name in right)},
        frozenset(right),
        lambda diff: asyncio.run(passes_upstream_tests(recipe, clone, diff)),
    )


def judge(play: Play, folder: Path, protocol: str) -> dict[str, Any]:
    """Run the deliberation and return its outcome."""
    relay, dealt = folder / "relay", folder / "seats.json"
    names = {f"agent-dev-{number:03d}": name for number, name in enumerate(play.candidates, 1)}
    diffs = {seat: play.candidates[name] for seat, name in names.items()}
    dealt.write_text(json.dumps(diffs), encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, str(HERE / "relay.py"), str(relay), str(port), str(dealt)]
    )
    began = time.monotonic()
    try:
        time.sleep(_RELAY_START_SECONDS)
        code = deliberate(folder, port, len(names), play.task, protocol)
    finally:
        server.terminate()
        server.wait()
    out = json.loads((folder / "out.json").read_text(encoding="utf-8"))
    winner = out.get("winner_id") or ""
    diff = ""
    if winner:
        diff = git("-C", str(folder / "repo"), "diff", "--binary", "parent", out["branch"])
    was_dealt = diff.strip() == diffs.get(winner, "").strip()
    name = names.get(winner, "") if was_dealt else "a revision or a proposal of the second wave"
    results = reversed(out.get("results", []))  # the best answer of a seat last
    return {
        "pool": play.name,
        "language": play.language,
        "exit": code,
        "winner": name,
        "right": name in play.right or (bool(diff) and play.passes(diff)),
        "undecided": out.get("undecided"),
        "levels": {names[item["seat"]]: item.get("evidence_level") for item in results},
        "tokens": tokens(relay),
        "seconds": round(time.monotonic() - began),
    }


def git(*argv: str) -> str:
    """Run git and return its output. Raises `CalledProcessError` if it fails."""
    return subprocess.run(["git", *argv], check=True, capture_output=True).stdout.decode()


def record(pool: Pool, relay: Path) -> None:
    """Write the replies by the last parts of their call ids to tests/recordings/pools."""
    replies = {}
    for path in sorted(
        relay.glob("*.request.json"), key=lambda path: int(path.name.partition(".")[0])
    ):
        call_id = json.loads(path.read_text(encoding="utf-8"))["call_id"]
        reply = path.with_name(path.name.replace("request", "reply"))
        if reply.exists():
            replies[call_id.partition("/")[2]] = json.loads(reply.read_text(encoding="utf-8"))
    path = HERE.parent / "recordings" / "pools" / f"{pool.name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"{json.dumps(replies, indent=1, ensure_ascii=False)}\n", encoding="utf-8")


def report(line: str) -> None:
    """Print a line of progress."""
    sys.stderr.write(f"{line}\n")


async def passes_upstream_tests(recipe: Recipe, clone: Path, diff: str) -> bool:
    """Return whether a diff passes the tests that upstream added, as the product runs them."""
    settings = load_settings(
        data_dir=Path("/tmp/moothall-corpus"), workspace=WorkspaceSettings(warm=0)
    )
    async with open_workspace_services(settings) as services:
        pools = Pools(services, report)
        return await pools.passes_upstream_tests(recipe, clone, diff)


def deliberate(folder: Path, port: int, agents: int, task: str, protocol: str) -> int:
    """Run `moothall deliberate` on the pool and return its exit code."""
    settings = {
        "MOOTHALL_LLM__BASE_URL": f"http://127.0.0.1:{port}/v1",
        "MOOTHALL_DATA_DIR": str(folder / "data"),
        "MOOTHALL_LLM__CALL_SECONDS": "43200",
        "MOOTHALL_LIMITS__DELIBERATION_SECONDS": "7200",
    }
    argv = [
        str(Path(sys.executable).with_name("moothall")),
        "deliberate",
        "--repo",
        str(folder / "repo"),
    ]
    argv += [
        "--agents",
        str(agents),
        *(["--protocol", protocol] if protocol else []),
        "--json",
        task,
    ]
    with (folder / "out.json").open("wb") as out, (folder / "err.txt").open("wb") as err:
        return subprocess.run(
            argv, stdout=out, stderr=err, env={**os.environ, **settings}, check=False
        ).returncode


def tokens(relay: Path) -> dict[str, int]:
    """Return the tokens of each played agent, prompts and replies, at four characters a token."""
    spent: Counter[str] = Counter()
    for path in relay.glob("*.request.json"):
        request = json.loads(path.read_text(encoding="utf-8"))
        body, reply = request["body"], path.with_name(path.name.replace("request", "reply"))
        parts: list[str] = request["call_id"].split("/")
        named = len(parts) > 1 and parts[1] != "-"
        name = parts[1] if named else re.sub(r"[\W\d]*(\w+).*", r"\1", parts[-1])
        size = len(json.dumps(body["messages"])) + len(json.dumps(body.get("tools", [])))
        spent[name] += (
            size + (len(reply.read_text(encoding="utf-8")) if reply.exists() else 0)
        ) // 4
    return dict(spent)


if __name__ == "__main__":
    main()
