#!/usr/bin/env python3
"""Compare `--model auto` with fixed pairs of models, by `moothall evaluate`.

    tests/strong/seat_choice.py FOLDER [--bugs N] [--pairs A+B,C+D]

The models are scripted: each solves a fixed share of the bugs of each area, and which ones depends
only on its name and the file. The repository, the settings and the results are below FOLDER; the
same command continues an interrupted run.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from itertools import combinations_with_replacement
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[0] = str(HERE.parent)  # instead of this folder

from moothall.testing.model import scripted_model  # noqa: E402
from support.rules import answer_with, make_rules_repo  # noqa: E402

SKILLS = {
    "general": {"billing": 0.5, "wording": 0.5},
    "numbers": {"billing": 0.9, "wording": 0.1},
    "words": {"billing": 0.1, "wording": 0.9},
    "large": {"billing": 0.8, "wording": 0.8},
}
PRICES = {"general": 1, "numbers": 1, "words": 1, "large": 10}
"""US dollars per million tokens."""
PORT = 18_431


def _settings(path: Path) -> Path:
    lines = [
        "[llm]",
        f'base_url = "http://127.0.0.1:{PORT}/v1"',
        'model = "general"',
        'approaches = "off"',
        "price_in = 1",
        "price_out = 1",
    ]
    for name in SKILLS:
        if name != "general":
            price = PRICES[name]
            lines += [f"[models.{name}]", f'model = "{name}"']
            lines += [f"price_in = {price}", f"price_out = {price}"]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


async def main() -> int:
    """Run the evaluation and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--bugs", type=int, default=24)
    names = ["default" if name == "general" else name for name in SKILLS]
    pairs = ["+".join(pair) for pair in combinations_with_replacement(names, 2)]
    parser.add_argument("--pairs", default=",".join(pairs))
    arguments = parser.parse_args()
    folder, bugs = arguments.folder.resolve(), arguments.bugs
    folder.mkdir(parents=True, exist_ok=True)
    repo = folder / "repo"
    if not repo.exists():
        make_rules_repo(repo, bugs)
    settings = _settings(folder / "rules.toml")
    configurations = [
        f"{pair.replace('+', '-')}={settings},model={pair}" for pair in arguments.pairs.split(",")
    ]
    configurations.append(f"auto={settings},model=auto")
    async with scripted_model(answer_with(SKILLS), models=tuple(SKILLS), port=PORT):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "moothall", "evaluate", str(repo)),
            *("--folder", str(folder / "evaluation"), "--tasks", str(bugs)),
            *("--agents", "2", "--protocol", "vote"),
            *(word for configuration in configurations for word in ("--config", configuration)),
        )
        return await process.wait()


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))
