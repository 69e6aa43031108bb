"""Tasks of an evaluation, and files with one JSON record a line. Run the hidden tests of a task:
before and after the fix when it is mined, and on answers.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from moothall.deliberation.judging.author_tests import runnable_paths
from moothall.deliberation.judging.clean_runs import CheckRuns, CleanCheckoutRunner
from moothall.domain import codec
from moothall.domain.evidence import CheckRun, Verdict
from moothall.domain.ids import TaskKey, check_id, digest
from moothall.domain.repository import Prepared
from moothall.domain.task import Deliberation
from moothall.errors import InvalidRequest, MoothallError, WorkspaceFailed
from moothall.evaluate import commit_rules
from moothall.evaluate.commit_rules import HiddenCases
from moothall.ports import Repositories, Workspaces
from moothall.processes import write_private
from moothall.ranking.diffs import file_diffs
from moothall.repositories.patch_rules import is_test

# Tasks of an evaluation, and files with one JSON record a line.


FOLDER = "tasks"
_DELETE_HINT = "Delete it to continue without that task"


@dataclass(frozen=True, slots=True)
class Task:
    """A past bug fix. Its tests are hidden from the seats and judge the winner.

    repository: a path or URL. parent, commit: full commit ids; the seats see the parent. text: the
    description for the council. cases: by check, the test cases that fail on the parent and pass on
    the
    commit. kept: by check, the cases of the same files that pass on both. paths: by check, the test
    files
    to run; none for the whole check. tests: the diff of the hidden files. fix: the diff of all
    other
    files. commands: configured set-up and checks, as in .moothall.toml.
    """

    id: str
    repository: str
    parent: str
    commit: str
    text: str
    cases: Mapping[str, tuple[str, ...]]
    tests: str
    kept: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    paths: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fix: str = ""
    commands: Mapping[str, Any] = field(default_factory=dict)


def write_task(folder: Path, task: Task) -> Path:
    """Write a task below the folder of an evaluation and return its file."""
    path = folder / FOLDER / f"{task.id}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_private(path, json.dumps(codec.dump(task), indent=2))
    return path


def read_tasks(folder: Path) -> list[Task]:
    """Return the tasks below the folder of an evaluation, the oldest file first.

    Raises `InvalidRequest` for a file that is not a task.
    """
    paths = sorted(
        (folder / FOLDER).glob("*.json"), key=lambda path: (path.stat().st_mtime_ns, path.name)
    )
    return [read_task(path) for path in paths]


def read_task(path: Path) -> Task:
    """Return the task of a file. Raises `InvalidRequest`."""
    try:
        task = codec.load(Task, json.loads(path.read_text(encoding="utf-8")))
        check_id(task.id, "the task")
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"the task file {path} is not JSON: {error}. {_DELETE_HINT}"
        ) from error
    except InvalidRequest as error:
        raise InvalidRequest(f"the task file {path}: {error.message}. {_DELETE_HINT}") from error
    return task


class Lines:
    """A file with one JSON object a line, which a process may be killed while writing.

    An incomplete last line is ignored, and removed by the next `add`. Reading changes nothing:
    another
    process may be writing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rows: list[Mapping[str, Any]] = []
        raw = path.read_bytes() if path.exists() else b""
        self._size = raw.rfind(b"\n") + 1
        self._read_lines(raw[: self._size])

    def _read_lines(self, raw: bytes) -> None:
        for number, line in enumerate(raw.splitlines(), 1):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InvalidRequest(
                    f"{self._path}, line {number} is not JSON: {error}. Delete that line"
                ) from error
            if not isinstance(row, dict):
                raise InvalidRequest(
                    f"{self._path}, line {number} is not an object. Delete that line"
                )
            self.rows.append(row)

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a row. It is on the disk when this returns. Only one process may add rows at a
        time.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            file.truncate(self._size)
            file.write(json.dumps(row).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
            self._size = file.tell()
        self.rows.append(row)

    def of(self, **fields: object) -> Iterator[Mapping[str, Any]]:
        """Return the rows with these values."""
        return (
            row
            for row in self.rows
            if all(row.get(name) == value for name, value in fields.items())
        )


def count_cases(cases: Mapping[str, Sequence[str]]) -> int:
    """Return how many cases there are in all checks."""
    return sum(map(len, cases.values()))


# Run the hidden tests of a task: before and after the fix when it is mined, and on answers.
#
# All runs are those of the clean re-check: fresh workspaces with the base's tests and
# configuration.


_RUNS, _LONG_MS = 3, 60_000
_SECONDS = 3600
_MAX_NAMED_CASES = 20


@dataclass(frozen=True, slots=True)
class Hidden:
    """The hidden cases of a commit by check, as in `Task`; `why` there are none."""

    cases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    kept: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    paths: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether all hidden tests pass on an answer, and some that do not."""

    solved: bool
    failing: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Judge:
    """Runs hidden tests in workspaces of its own."""

    repositories: Repositories
    workspaces: Workspaces
    places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))

    async def examine(self, prepared: Prepared, tests: str, fix: str, text: str) -> Hidden:
        """Run a commit's tests before and after its change.

        prepared: the parent. tests: the diff of the hidden files. fix: the diff of the whole
        commit.
        text: the text of the task.
        """
        runs = self._create_runner(prepared, text, f"mine-{prepared.base.sha[:12]}")
        paths = await _find_hidden_paths(runs, tests)
        if not paths:
            return Hidden(reason=commit_rules.NO_CASES)
        before, after = await self._run_before_and_after(runs, paths, tests, fix, 1)
        hidden_cases: dict[str, HiddenCases] = {}
        for check in paths:
            if check in before and check in after:
                hidden_cases[check] = commit_rules.compare_runs(
                    prepared.runs.get(check), before[check], after[check], text
                )
        fixed_paths = {check: paths[check] for check, item in hidden_cases.items() if item.fixed}
        slowest = max(
            (run.duration_ms for check in fixed_paths for run in (before[check], after[check])),
            default=0,
        )
        repeats = range(2, _RUNS + 1) if fixed_paths and slowest <= _LONG_MS else ()
        repeated_pairs = [
            await self._run_before_and_after(runs, fixed_paths, tests, fix, number)
            for number in repeats
        ]
        for check in fixed_paths:
            repeated = [(first.get(check), second.get(check)) for first, second in repeated_pairs]
            lost = CheckRun(check, Verdict.MISSING)
            hidden_cases[check] = commit_rules.steady_cases(
                hidden_cases[check],
                [first or lost for first, _ in repeated],
                [second or lost for _, second in repeated],
            )
        cases = {check: item.fixed for check, item in hidden_cases.items() if item.fixed}
        if not cases:
            return Hidden(
                reason=next(
                    (item.reason for item in hidden_cases.values() if item.reason),
                    commit_rules.NO_CASES,
                )
            )
        kept = {check: item.kept for check, item in hidden_cases.items() if item.kept}
        return Hidden(cases, kept, {check: paths[check] for check in {*cases, *kept}})

    async def judge(self, task: Task, prepared: Prepared, diff: str) -> Judgement:
        """Run the hidden tests of a task on an answer. Raises `WorkspaceFailed` if they cannot be
        run.
        """
        if not diff.strip():
            return Judgement(solved=False, reason="it changes nothing")
        runs = self._create_runner(prepared, task.text, f"hidden-{task.id[:30]}")
        paths = {check: task.paths.get(check, ()) for check in {*task.cases, *task.kept}}
        runs_by_check: dict[str, CheckRun] = {}
        for check, check_paths in paths.items():
            check_runs = await _run_hidden_tests(
                runs, check, check_paths, (task.tests, diff), "judge"
            )
            if check_runs.refused:
                return Judgement(
                    solved=False, reason=f"its patch does not apply: {check_runs.failure}"
                )
            if check not in check_runs.runs:
                raise WorkspaceFailed(
                    f"the hidden tests of {task.id} could not be run: {check_runs.failure}"
                )
            runs_by_check[check] = check_runs.runs[check]
        hidden_cases = [
            (check, case)
            for part in (task.cases, task.kept)
            for check, cases in part.items()
            for case in cases
        ]
        failing = [
            case for check, case in hidden_cases if runs_by_check[check].cases.get(case) != "passed"
        ]
        return Judgement(not failing, tuple(failing[:_MAX_NAMED_CASES]))

    def _create_runner(self, prepared: Prepared, text: str, name: str) -> CleanCheckoutRunner:
        d = Deliberation(
            task_id=TaskKey(f"{name}-{digest(prepared.key)[:8]}"),
            description=text,
            role="dev",
            protocol="vote",
            seats=(),
            rounds=0,
            deadline=datetime.now(UTC) + timedelta(seconds=_SECONDS),
            max_turns=1,
            base_sha=prepared.base.sha,
        )
        return CleanCheckoutRunner(
            d, prepared, self.workspaces, self.repositories.read, self.places
        )

    async def _run_before_and_after(
        self,
        runs: CleanCheckoutRunner,
        paths: Mapping[str, Sequence[str]],
        tests: str,
        fix: str,
        number: int,
    ) -> tuple[dict[str, CheckRun], dict[str, CheckRun]]:
        """Run checks with the hidden tests, without the fix and with it."""
        sides: list[dict[str, CheckRun]] = []
        for diff in ("", fix):
            runs_by_check: dict[str, CheckRun] = {}
            for check, check_paths in paths.items():
                runs_by_check |= (
                    await _run_hidden_tests(runs, check, check_paths, (tests, diff), str(number))
                ).runs
            sides.append(runs_by_check)
        return sides[0], sides[1]


async def _run_hidden_tests(
    runs: CleanCheckoutRunner, check: str, paths: Sequence[str], diffs: tuple[str, str], name: str
) -> CheckRuns:
    """Run a check with hidden tests laid over an answer. diffs: of the tests, and of the answer."""
    tests, diff = diffs
    return await runs.run_checks(
        {check: ()},
        "hidden",
        digest(diff)[:8],
        name,
        diff=diff,
        extra=tests,
        paths=paths,
        label="hidden",
    )


async def _find_hidden_paths(runs: CleanCheckoutRunner, tests: str) -> dict[str, tuple[str, ...]]:
    """Return the hidden files by check; none for a check that runs whole, because it is not named
    `tests`.
    """
    prepared = runs.prepared
    names = tuple(path for path in _paths_of(tests) if is_test(path))
    paths_by_check = await runnable_paths(runs, names, tests)
    other_checks = [
        name for name, run in prepared.runs.items() if run.cases and not name.startswith("tests")
    ]
    return paths_by_check or {
        name: () for name in other_checks if name not in prepared.base.profile.advisory
    }


def _paths_of(diff: str) -> tuple[str, ...]:
    return tuple(part.path for part in file_diffs(diff))


def explain(error: MoothallError) -> str:
    """Return an error's message as one line, short enough for a table."""
    return " ".join(error.message.split())[:200]
