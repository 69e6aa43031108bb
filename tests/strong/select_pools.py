#!/usr/bin/env python3
"""Judge the pools of the selection corpus.

    .venv/bin/python tests/strong/select_pools.py CLONES OUT.jsonl [--only NAME,...] [--data FOLDER]

CLONES has a folder OWNER+NAME/repo for each repository. A line for each pool and mode is added to
OUT.jsonl; pools that are in it are not judged again. At the end a table is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[0] = str(HERE.parent)  # instead of this folder

from moothall.app.workspaces import open_workspace_services  # noqa: E402
from moothall.config import WorkspaceSettings  # noqa: E402
from moothall.settings import load_settings  # noqa: E402
from support.selection import MODES, Pools, as_row, from_row, read_recipe, table  # noqa: E402


def report(line: str) -> None:
    """Print a line of progress."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {line}\n")


async def main() -> None:
    """Judge what is missing, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("clones", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default="", help="names of recipes, with commas")
    parser.add_argument("--modes", default=",".join(MODES), help="modes, with commas")
    parser.add_argument(
        "--data", type=Path, default=Path("/tmp/moothall-corpus"), help="where bases are kept"
    )
    options = parser.parse_args()
    selected = set(filter(None, options.only.split(",")))
    recipes = [
        read_recipe(path)
        for path in sorted((HERE / "corpus").glob("*.toml"))
        if not selected or path.stem in selected
    ]
    outcomes = (
        [from_row(json.loads(line)) for line in options.out.read_text().splitlines()]
        if options.out.exists()
        else []
    )
    settings = load_settings(data_dir=options.data, workspace=WorkspaceSettings(warm=0))
    failed = False
    async with open_workspace_services(settings) as services:
        pools = Pools(services, report)
        for recipe in recipes:
            finished = {item.mode for item in outcomes if item.pool == recipe.name}
            modes = [mode for mode in options.modes.split(",") if mode not in finished]
            if not modes:
                continue
            try:
                clone = options.clones / recipe.repository.replace("/", "+") / "repo"
                async for item in pools.judge(recipe, clone, modes):
                    outcomes.append(item)
                    with options.out.open("a", encoding="utf-8") as file:
                        file.write(f"{json.dumps(as_row(item))}\n")
            except Exception:  # noqa: BLE001 - the other pools are judged all the same
                traceback.print_exc()
                failed = True
    sys.stdout.write(
        f"{table([item for item in outcomes if not selected or item.pool in selected])}\n"
    )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    asyncio.run(main())
