"""A selection corpus: real bug-fix commits, each with upstream's fix and wrong ones, judged as the
product judges candidates.

A recipe (`tests/strong/corpus/NAME.toml`) names a repository, a commit, a task, and wrong edits. It
contains no code of the project: upstream's fix and its tests are read from a clone. A pool is
judged in several modes, which differ in the tests of the right seat.
"""

from __future__ import annotations

import ast
import asyncio
import re
import subprocess
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from moothall.deliberation.event_writer import EventWriter
from moothall.deliberation.judging.clean_runs import CleanCheckoutRunner
from moothall.deliberation.judging.evaluator import Evaluator
from moothall.domain.evidence import EvidenceLevel
from moothall.domain.ids import TaskKey
from moothall.domain.proposal import Candidate, CandidateRank, Proposal
from moothall.domain.repository import Base, Prepared
from moothall.domain.task import Deliberation, RepositoryRef
from moothall.ranking import rank
from moothall.ranking.diffs import file_diffs
from moothall.repositories import patch_rules
from moothall.testing.bus import MemoryBus

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from moothall.app.workspaces import WorkspaceServices

NO_TEST, NEW_FILE, EXISTING_FILE, SECOND = "no test", "new file", "existing file", "second right"
MODES = (NO_TEST, NEW_FILE, EXISTING_FILE, SECOND)
UPSTREAM = "upstream"
_SEATS = 3


@dataclass(frozen=True, slots=True)
class Edit:
    """A replacement of lines of a file: `lines` lines from the `nth` line that contains `at`. With
    0 lines, `put` is inserted before it.
    """

    file: str
    at: str
    put: str
    lines: int = 1
    nth: int = 1

    def apply(self, text: str) -> str:
        """Return the edited text. Raises `ValueError` if the place does not exist."""
        rows = text.splitlines(keepends=True)
        places = [number for number, row in enumerate(rows) if self.at in row]
        if len(places) < self.nth:
            raise ValueError(f"{self.file} has no line {self.nth} with {self.at!r}")
        start = places[self.nth - 1]
        replacement = self.put if not self.put or self.put.endswith("\n") else f"{self.put}\n"
        return "".join([*rows[:start], replacement, *rows[start + self.lines :]])


@dataclass(frozen=True, slots=True)
class Variant:
    """A candidate beside upstream's fix. `kind` is how it is wrong, or `right`."""

    name: str
    kind: str
    edits: tuple[Edit, ...]

    @property
    def right(self) -> bool:
        """True if it also solves the task."""
        return self.kind == "right"


@dataclass(frozen=True, slots=True)
class Recipe:
    """A bug-fix commit and its pool.

    Attributes:
        source: the files of upstream's fix.
        inline: the line from which on a source file contains its tests, '' if they are in other
            files.
    """

    name: str
    repository: str
    commit: str
    language: str
    task: str
    source: tuple[str, ...]
    variants: tuple[Variant, ...]
    inline: str = ""

    @property
    def wrong_variants(self) -> tuple[Variant, ...]:
        """The wrong candidates."""
        return tuple(item for item in self.variants if not item.right)


def read_recipe(path: Path) -> Recipe:
    """Return the recipe in a TOML file."""
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    variants = tuple(
        Variant(item["name"], item["kind"], tuple(Edit(**edit) for edit in item["edits"]))
        for item in data.pop("candidates")
    )
    return Recipe(
        path.stem,
        **{**data, "source": tuple(data["source"]), "task": data["task"].strip()},
        variants=variants,
    )


@dataclass(frozen=True, slots=True)
class Sources:
    """The clone at the parent of a recipe's commit, in which diffs are made."""

    recipe: Recipe
    folder: Path

    def parent(self) -> str:
        """Return the id of the parent."""
        return self._git("rev-parse", f"{self.recipe.commit}^").strip()

    def variant(self, variant: Variant) -> str:
        """Return the diff of a wrong candidate, or of a second right one."""
        with self._clean():
            for edit in variant.edits:
                path = self.folder / edit.file
                path.write_text(edit.apply(path.read_text(encoding="utf-8")), encoding="utf-8")
            return self._diff()

    def upstream(self, mode: str) -> str:
        """Return the diff of upstream's fix, with the tests of the mode."""
        with self._clean():
            for path in self.recipe.source:
                text_after, text_before = (
                    self._show(self.recipe.commit, path),
                    (self.folder / path).read_text(encoding="utf-8"),
                )
                if self.recipe.inline and mode == NO_TEST and self.recipe.inline in text_before:
                    text_after = text_after.partition(self.recipe.inline)[0] + "".join(
                        text_before.partition(self.recipe.inline)[1:]
                    )
                (self.folder / path).write_text(text_after, encoding="utf-8")
            for path in () if mode == NO_TEST else self._tests():
                text, at = self._show(self.recipe.commit, path), self.folder / path
                if mode == NEW_FILE and at.is_file():
                    text, at = (
                        _new_tests(path, at.read_text(encoding="utf-8"), text),
                        self.folder / _new_file_beside(path),
                    )
                at.parent.mkdir(parents=True, exist_ok=True)
                at.write_text(text, encoding="utf-8")
            return self._diff()

    def _tests(self) -> tuple[str, ...]:
        changed = self._git(
            "diff", "--name-only", "--diff-filter=AM", f"{self.recipe.commit}^", self.recipe.commit
        ).splitlines()
        return tuple(
            path for path in changed if path not in self.recipe.source and patch_rules.is_test(path)
        )

    @contextmanager
    def _clean(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._git("reset", "--quiet", "--hard")
            self._git("clean", "--quiet", "-dffx")

    def _diff(self) -> str:
        self._git("add", "--all", "--force")
        return self._git("diff", "--cached", "--binary")

    def _show(self, commit: str, path: str) -> str:
        return self._git("show", f"{commit}:{path}")

    def _git(self, *argv: str) -> str:
        return subprocess.run(
            ["git", "-C", str(self.folder), *argv], check=True, capture_output=True
        ).stdout.decode()


@contextmanager
def check_out_parent(recipe: Recipe, clone: Path) -> Iterator[Sources]:
    """Check out the parent of a recipe's commit, beside the clone."""
    with tempfile.TemporaryDirectory(prefix="corpus-") as folder:
        subprocess.run(
            ["git", "clone", "--quiet", "--shared", "--no-checkout", str(clone), folder], check=True
        )
        subprocess.run(
            ["git", "-C", folder, "checkout", "--quiet", "--detach", f"{recipe.commit}^"],
            check=True,
        )
        yield Sources(recipe, Path(folder))


def _new_file_beside(path: str) -> str:
    """Return the name of a new test file beside another one that the same runner runs."""
    at = PurePosixPath(path)
    stem, dot, rest = at.name.partition(".")
    if path.endswith(".go"):
        return str(at.with_name(f"{stem.removesuffix('_test')}_more_test.go"))
    return str(at.with_name(f"{stem}_more{dot}{rest}"))


def _new_tests(path: str, before: str, after: str) -> str:
    """Return a test file that has only what is new in its newer version, as far as its language
    needs or allows this.
    """
    if path.endswith(".go"):
        return _new_go_tests(before, after)
    return _new_python_tests(before, after) if path.endswith(".py") else after


def _new_python_tests(before: str, after: str) -> str:
    """Return the newer Python file without the tests of the older one."""
    older_lines, newer_lines = (text.splitlines(keepends=True) for text in (before, after))
    older = {
        _definition(older_lines, node)
        for node in ast.walk(ast.parse(before))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    kept_lines = list(newer_lines)
    for node in ast.walk(ast.parse(after)):
        for item in (
            getattr(node, "body", []) if isinstance(node, ast.Module | ast.ClassDef) else []
        ):
            if not isinstance(item, ast.FunctionDef | ast.ClassDef):
                continue
            is_test = item.name.lower().startswith("test")
            is_test |= isinstance(item, ast.ClassDef) and any(
                isinstance(method, ast.FunctionDef) and method.name.startswith("test")
                for method in item.body
            )
            if is_test and _definition(newer_lines, item) in older:
                first = min([item.lineno, *(mark.lineno for mark in item.decorator_list)])
                end = item.end_lineno or item.lineno
                kept_lines[first - 1 : end] = [""] * (end - first + 1)
    return "".join(kept_lines)


def _definition(lines: Sequence[str], node: ast.FunctionDef | ast.ClassDef) -> str:
    # ast.get_source_segment splits the whole file for each node, which takes minutes.
    return "".join(lines[node.lineno - 1 : node.end_lineno])


_GO_DECLARED = re.compile(
    r"(?m)^(?:func|type|var|const)\b.*[{(]\n(?:.*\n)*?[})]$|^(?:func|type|var|const)\b.*$"
)
_GO_IMPORT = re.compile(r"(?m)^import (?:\((?P<many>[^)]*)\)|(?P<one>.*))$")


def _new_go_tests(before: str, after: str) -> str:
    """Return the declarations that only the newer Go file has, with their imports; changed
    functions get new names.
    """
    older = {match[0] for match in _GO_DECLARED.finditer(before)}
    named = {_go_name(item) for item in older}
    parts = []
    for match in _GO_DECLARED.finditer(after):
        if match[0] in older:
            continue
        name = _go_name(match[0])
        parts.append(
            match[0].replace(f"func {name}(", f"func {name}More(", 1) if name in named else match[0]
        )
    body = "\n\n".join(parts)
    imports = []
    for match in _GO_IMPORT.finditer(after):
        for line in (match["many"] or match["one"] or "").splitlines():
            quoted = re.search(r'(?:(\w+)\s+)?"([^"]+)"', line)
            if quoted and re.search(rf"\b{quoted[1] or quoted[2].rpartition('/')[2]}\.", body):
                imports.append(f"\t{quoted[0]}")
    package = re.search(r"(?m)^package \w+", after)
    return f"{package[0] if package else ''}\n\nimport (\n{chr(10).join(imports)}\n)\n\n{body}\n"


def _go_name(declared: str) -> str:
    match = re.match(r"func (?:\([^)]*\) )?(\w+)|(?:type|var|const) (\w+)", declared)
    return (match[1] or match[2]) if match else declared


def code_lines(diff: str) -> int:
    """Return how many lines of code a diff adds and removes, without tests."""
    return sum(
        1
        for part in file_diffs(diff)
        if not patch_rules.is_test(part.path)
        for line in part.body.splitlines()
        if line[:1] in {"+", "-"} and not line.startswith(("+++", "---")) and line[1:].strip()
    )


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one pool in one mode.

    Attributes:
        fewest: the share of right candidates among those with the fewest changed lines.
        right: the right candidates of the pool.
    """

    pool: str
    mode: str
    first: str
    right: tuple[str, ...]
    undecided: bool
    levels: Mapping[str, str]
    gates: Mapping[str, bool]
    reasons: Mapping[str, Sequence[str]]
    fewest: float
    seconds: float = 0.0

    @property
    def selected_right(self) -> bool:
        """True if the first is right and may win."""
        return self.first in self.right and self.gates[self.first]

    @property
    def random(self) -> float:
        """The share of right candidates."""
        return len(self.right) / len(self.levels)


class Pools:
    """A judge of pools on real clones, with the components of a host."""

    def __init__(self, services: WorkspaceServices, announce: Callable[[str], None]) -> None:
        self._services = services
        self._announce = announce

    async def judge(
        self, recipe: Recipe, clone: Path, modes: Sequence[str] = MODES
    ) -> AsyncIterator[Outcome]:
        """Yield the outcomes of a pool in these modes. Raises `RepositoryError` if its base cannot
        be prepared.
        """
        repositories = self._services.repositories
        with check_out_parent(recipe, clone) as sources:
            entry = await repositories.register(str(clone))
            ref = RepositoryRef(id=entry.id, ref=sources.parent())
            prepared = await repositories.prepare(await repositories.resolve(ref), self._announce)
            evaluator = self._evaluator(recipe, ref, prepared)
            for mode in modes:
                if pool := pool_of(recipe, sources, mode):
                    yield await self._judge_mode(recipe, prepared, evaluator, mode, pool)

    async def passes_upstream_tests(self, recipe: Recipe, clone: Path, diff: str) -> bool:
        """Return whether a candidate passes all tests, including upstream's new ones. Raises
        `RepositoryError` if the base cannot be prepared.
        """
        repositories = self._services.repositories
        with check_out_parent(recipe, clone) as sources:
            entry = await repositories.register(str(clone))
            ref = RepositoryRef(id=entry.id, ref=sources.parent())
            prepared = await repositories.prepare(await repositories.resolve(ref), self._announce)
            pool = {"candidate": diff, UPSTREAM: sources.upstream(EXISTING_FILE)}
            evaluator = self._evaluator(recipe, ref, prepared)
            judged = await self._judge_mode(recipe, prepared, evaluator, EXISTING_FILE, pool)
        return judged.levels["candidate"] == EvidenceLevel.REPRODUCED

    def _evaluator(self, recipe: Recipe, ref: RepositoryRef, prepared: Prepared) -> Evaluator:
        d = Deliberation(
            task_id=TaskKey(f"corpus-{recipe.name}"),
            description=recipe.task,
            role="dev",
            protocol="vote",
            seats=tuple(f"agent-dev-{number:03d}" for number in range(1, _SEATS + 1)),
            rounds=0,
            deadline=datetime.now(UTC) + timedelta(hours=3),
            max_turns=1,
            repository=ref,
            base_sha=prepared.base.sha,
        )
        runs = CleanCheckoutRunner(
            d, prepared, self._services.workspaces, self._read, asyncio.Semaphore(1)
        )
        return Evaluator(runs, EventWriter(MemoryBus(), d))

    async def _read(self, base: Base, path: str, limit: int) -> str:
        return await self._services.repositories.read(base, path, limit)

    async def _judge_mode(
        self,
        recipe: Recipe,
        prepared: Prepared,
        evaluator: Evaluator,
        mode: str,
        pool: Mapping[str, str],
    ) -> Outcome:
        began = asyncio.get_running_loop().time()
        clone = self._services.repositories.clone(prepared.base.repository)
        names: dict[str, str] = {}
        judged: list[Candidate] = []
        for number, (name, diff) in enumerate(pool.items(), 1):
            applied = await clone.apply(prepared.base.sha, diff)
            seat = f"agent-dev-{number:03d}"
            names[seat] = name
            judged.append(
                await evaluator.evaluate(
                    Proposal(
                        seat, "dev", "", applied.diff, applied.commit_sha, own_tests=applied.tests
                    )
                )
            )
            self._announce(f"{recipe.name}, {mode}: judged {name}")
        judged = list(await evaluator.run_cross_tests(judged))
        ranked = rank(await evaluator.confirm_first(judged))
        right = {UPSTREAM, *(item.name for item in recipe.variants if item.right)}
        pool_outcome = outcome(
            recipe.name,
            mode,
            {names[item.seat]: item for item in ranked},
            pool,
            right & pool.keys(),
        )
        return replace(pool_outcome, seconds=round(asyncio.get_running_loop().time() - began, 1))


def pool_of(recipe: Recipe, sources: Sources, mode: str) -> dict[str, str]:
    """Return the diffs of the candidates by name, {} if the recipe lacks the mode. The right one is
    the second seat's.
    """
    seconds = [item for item in recipe.variants if item.right]
    if (mode == NEW_FILE and recipe.inline) or (mode == SECOND and not seconds):
        return {}
    wrong_variants = (
        [*seconds[:1], *recipe.wrong_variants] if mode == SECOND else list(recipe.wrong_variants)
    )
    diffs = {item.name: sources.variant(item) for item in wrong_variants[: _SEATS - 1]}
    first, *rest = diffs
    return {
        first: diffs[first],
        UPSTREAM: sources.upstream(mode),
        **{name: diffs[name] for name in rest},
    }


def outcome(
    pool: str,
    mode: str,
    ranked: Mapping[str, CandidateRank],
    diffs: Mapping[str, str],
    right: set[str],
) -> Outcome:
    """Return the outcome of a ranking, with the candidates by name, best first."""
    sizes = {name: code_lines(diff) for name, diff in diffs.items()}
    smallest = [name for name, size in sizes.items() if size == min(sizes.values())]
    first = next(iter(ranked))
    return Outcome(
        pool,
        mode,
        first,
        tuple(sorted(right)),
        ranked[first].undecided,
        {name: str(item.level) for name, item in ranked.items()},
        {name: item.passed_gates for name, item in ranked.items()},
        {name: item.reasons for name, item in ranked.items()},
        sum(name in right for name in smallest) / len(smallest),
    )


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the figures of each mode as a Markdown table."""
    rows = [
        (
            "| mode | pools | right selected | undecided | level of the winner | random | fewest "
            "lines |"
        ),
        "|---|---:|---:|---:|---|---:|---:|",
    ]
    for mode in MODES:
        mode_outcomes = [item for item in outcomes if item.mode == mode]
        if not mode_outcomes:
            continue
        levels = {
            level: sum(item.levels[item.first] == level for item in mode_outcomes)
            for level in map(str, EvidenceLevel)
        }
        counts = ", ".join(f"{level} {count}" for level, count in levels.items() if count)
        rows.append(
            f"| {mode} | {len(mode_outcomes)} | "
            f"{sum(item.selected_right for item in mode_outcomes)} | "
            f"{sum(item.undecided for item in mode_outcomes)} | {counts} | "
            f"{sum(item.random for item in mode_outcomes):.1f} | "
            f"{sum(item.fewest for item in mode_outcomes):.1f} |"
        )
    marked = [
        name in item.right
        for item in outcomes
        for name, level in item.levels.items()
        if level == EvidenceLevel.REPRODUCED
    ]
    rows.append(
        f"\n{len(marked)} candidates reached the level *reproduced*; {sum(marked)} of them are "
        "right."
    )
    return "\n".join(rows)


def as_row(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as a JSON object."""
    return {name: getattr(outcome, name) for name in Outcome.__slots__}


def from_row(row: Mapping[str, Any]) -> Outcome:
    """Return an outcome from a JSON object."""
    return Outcome(**{**row, "right": tuple(row["right"])})
