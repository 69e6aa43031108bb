#!/usr/bin/env python3
"""Judge changes of released projects with `moothall judge`, without a model.

    tests/strong/judge_changes.py CLONES OUT.jsonl [--only NAME,...] [--data FOLDER]

CLONES has a folder OWNER+NAME/repo for each repository. Each recipe of the selection corpus gives
upstream's commit and its variants; some also a change that is merged already, and one of the
documentation. With --history N, the newest N commits of each named repository that change code and
its tests are judged too, by their messages. A line for each change is added to OUT.jsonl; changes
that are in it are not judged again. At the end a table is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[0] = str(HERE.parent)  # instead of this folder

from moothall.repositories.patch_rules import is_test  # noqa: E402
from support.selection import Recipe, Sources, check_out_parent, read_recipe  # noqa: E402

_SECONDS, _MAX_PATHS = 900, 15
RIGHT, WRONG, MERGED, UNRELATED = (
    "right",
    "wrong but passing",
    "merged",
    "unrelated",
)


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a repository: its kind, and the refs of base and head."""

    name: str
    kind: str
    base: str
    head: str


def changes_of(recipe: Recipe, sources: Sources, number: int) -> Iterator[Change]:
    """Yield the changes of a recipe, committed in its clone.

    number: the recipe's number; every fourth also gives the changes that are no fix.
    """
    parent = sources.parent()
    yield Change(f"{recipe.name}/upstream", RIGHT, parent, recipe.commit)
    for variant in recipe.variants:
        kind = RIGHT if variant.right else WRONG
        head = _commit(sources, sources.variant(variant), variant.name)
        yield Change(f"{recipe.name}/{variant.name}", kind, parent, head)
    if number % 4 == 0:
        yield Change(f"{recipe.name}/merged", MERGED, parent, f"{parent}^")
        yield Change(f"{recipe.name}/notes", UNRELATED, parent, _commit_notes(sources))


def history_of(folder: Path, count: int) -> Iterator[Change]:
    """Yield the newest commits of a repository that change source files and tests."""
    git = ["git", "-C", str(folder)]
    listed = subprocess.run(
        [*git, "log", "--no-merges", "--max-count=400", "--format=%x00%h", "--name-only"],
        check=True,
        capture_output=True,
    )
    count_found = 0
    for record in listed.stdout.decode().split("\0")[1:]:
        sha, *paths = record.split()
        code = [path for path in paths if path.endswith((".py", ".go", ".js", ".ts", ".rs"))]
        tests = [path for path in code if is_test(path)]
        if tests and len(tests) < len(code) and len(paths) <= _MAX_PATHS:
            count_found += 1
            yield Change(sha, RIGHT, f"{sha}^", sha)
        if count_found == count:
            return


def _commit(sources: Sources, diff: str, message: str) -> str:
    """Commit a diff on the parent, and return the commit."""
    git = ("git", "-C", str(sources.folder))
    applied = [*git, "apply", "--index", "--whitespace=nowarn"]
    subprocess.run(applied, input=diff.encode(), check=True)
    return _commit_index(sources, message)


def _commit_index(sources: Sources, message: str) -> str:
    git = ("git", "-C", str(sources.folder))
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    subprocess.run([*git, *identity, "commit", "--quiet", "--no-verify", "-m", message], check=True)
    sha = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True)
    subprocess.run([*git, "checkout", "--quiet", "--detach", sources.parent()], check=True)
    head = sha.stdout.decode().strip()
    subprocess.run([*git, "branch", "--force", f"c-{head[:12]}", head], check=True)
    return head


def _commit_notes(sources: Sources) -> str:
    (sources.folder / "NOTES.md").write_text("Notes on a release.\n", encoding="utf-8")
    subprocess.run(["git", "-C", str(sources.folder), "add", "NOTES.md"], check=True)
    return _commit_index(sources, "Add notes")


def judge(folder: Path, change: Change, task: str | None, data: Path) -> dict[str, Any]:
    """Return the verdict on a change as a row."""
    began = time.monotonic()
    command = [sys.executable, "-m", "moothall", "judge", "--repo", str(folder), "--json"]
    command += ["--base", change.base, "--head", change.head, "--model", "none"]
    command += ["--task", task] if task else []
    process = subprocess.run(
        command,
        check=False,
        capture_output=True,
        timeout=_SECONDS,
        env={**os.environ, "MOOTHALL_DATA_DIR": str(data)},
    )
    row = {"name": change.name, "kind": change.kind, "exit": process.returncode}
    if process.stdout.strip():
        verdict = json.loads(process.stdout)
        names = ("finding", "level", "reasons", "unnoticed", "edited_tests", "not_judged", "error")
        row |= {name: verdict[name] for name in names}
    else:
        row |= {"finding": "none", "level": "", "error": process.stderr.decode()[-400:]}
    return {**row, "seconds": round(time.monotonic() - began, 1)}


def table(rows: list[dict[str, Any]]) -> str:
    """Return the figures of each kind as a Markdown table."""
    lines = ["| change | changes | verdicts |", "|---|---:|---|"]
    for kind in (RIGHT, WRONG, MERGED, UNRELATED):
        rows_of_kind = [row for row in rows if row["kind"] == kind]
        counts = Counter(
            " ".join(filter(None, (row["finding"], row["level"]))) for row in rows_of_kind
        )
        listing = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
        lines.append(f"| {kind} | {len(rows_of_kind)} | {listing} |")
    return "\n".join(lines)


def main() -> None:
    """Judge what is missing, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("clones", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default="", help="names of recipes, with commas")
    parser.add_argument("--history", type=int, default=0)
    parser.add_argument("--repositories", default="", help="for --history: OWNER/NAME, with commas")
    parser.add_argument("--data", type=Path, default=Path("/tmp/moothall-judged"))
    options = parser.parse_args()
    all_rows = (
        [json.loads(line) for line in options.out.read_text().splitlines()]
        if options.out.exists()
        else []
    )
    names = {row["name"] for row in all_rows}
    for folder, change, task in _all_changes(options):
        if change.name in names:
            continue
        row = judge(folder, change, task, options.data)
        all_rows.append(row)
        with options.out.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(row)}\n")
        sys.stderr.write(
            f"{time.strftime('%H:%M:%S')} {change.kind}: {change.name}: {row['finding']} "
            f"{row['level']} {row['seconds']} s\n"
        )
    sys.stdout.write(f"{table(all_rows)}\n")


def _all_changes(options: argparse.Namespace) -> Iterator[tuple[Path, Change, str | None]]:
    """Yield each change with the folder of its repository and its task."""
    for name in filter(None, options.repositories.split(",")):
        clone = options.clones / name.replace("/", "+") / "repo"
        with tempfile.TemporaryDirectory(prefix="judged-") as folder:
            command = ["git", "clone", "--quiet", "--shared", "--no-checkout", str(clone), folder]
            subprocess.run(command, check=True)
            for change in history_of(Path(folder), options.history):
                yield Path(folder), replace(change, name=f"{name}/{change.name}"), None
    selected = set(filter(None, options.only.split(",")))
    for number, path in enumerate(sorted((HERE / "corpus").glob("*.toml"))):
        recipe = read_recipe(path)
        clone = options.clones / recipe.repository.replace("/", "+") / "repo"
        if (selected and recipe.name not in selected) or not clone.exists():
            continue
        with check_out_parent(recipe, clone) as sources:
            for change in changes_of(recipe, sources, number):
                yield sources.folder, change, recipe.task


if __name__ == "__main__":
    main()
