"""Fill an empty data directory with a demo project for the page: 40 stories in all states, running
councils of five, a review of a change of 30 files, and two weeks of runs.

Use: `scripts/demo-data FOLDER`. The events are those of a server, with times of the last two weeks;
no model is called. The running councils end at their deadline, two days later.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import git

from moothall.app.bus import open_log
from moothall.app.repositories import trusted_repositories
from moothall.authorization.budgets import BUCKET, StoryBudgets
from moothall.cli.runtime import print_status
from moothall.config import LimitSettings
from moothall.domain.budget import Amount, BudgetAccount, Usage
from moothall.domain.chat import Message, Prompts
from moothall.domain.codec import dump
from moothall.domain.event import Event, EventType
from moothall.domain.evidence import Evidence, EvidenceLevel, Verdict
from moothall.domain.ids import LOCAL, TaskId, TaskKey, digest
from moothall.domain.outcome import DeliberationStatus, Outcome, Result
from moothall.domain.plan import AtomicTask, Plan
from moothall.domain.proposal import Proposal, Review, SeatOutcome, SeatStatus
from moothall.domain.task import Deliberation, RepositoryRef
from moothall.errors import MoothallError
from moothall.ports import Bus
from moothall.settings import load_settings
from moothall.stories.board import Board
from moothall.stories.planner import derivation_id
from moothall.telemetry.tracing import write, write_of

_DAYS = 14
_AREAS = ("cart", "orders", "invoices", "stock", "customers", "labels")
_PARTS = ("model", "storage", "search", "export", "rules")
_WISHES = (
    ("Export {area} as CSV", "a CSV file of my {area}", "I can book them"),
    ("Search {area} by date", "a search by date in {area}", "I find old ones"),
    ("Round amounts of {area} to cents", "amounts of {area} in whole cents", "sums are right"),
    ("Keep deleted {area} for 30 days", "to restore {area}", "a mistake costs nothing"),
    ("Show who changed {area}", "a history of {area}", "I know whom to ask"),
    ("Import {area} from the old shop", "to import {area}", "nobody types them again"),
    ("Page through long lists of {area}", "pages in lists of {area}", "they open at once"),
)
_STATES = (
    *("backlog",) * 6,
    *("draft",) * 4,
    *("design",) * 4,
    *("running",) * 3,
    *("failed",) * 2,
    "stopped",
    *("test",) * 4,
    "check failed",
    *("docs",) * 3,
    *("done",) * 9,
    "not merged",
    *("archived",) * 2,
)
_PATHS = {
    "backlog": (),
    "draft": ("refine",),
    "design": ("refine", "submit"),
    "running": ("refine", "submit", "accept_design"),
    "failed": ("refine", "submit", "accept_design"),
    "stopped": ("refine", "submit", "accept_design", "stop"),
    "test": ("refine", "submit", "accept_design", "build"),
    "check failed": ("refine", "submit", "accept_design", "build"),
    "docs": ("refine", "submit", "accept_design", "build", "accept_test"),
    "done": ("refine", "submit", "accept_design", "build", "accept_test", "accept"),
    "not merged": ("refine", "submit", "accept_design", "build", "accept_test", "accept"),
    "archived": ("archive",),
}
_TARGETS = {
    "refine": ("backlog", "draft"),
    "submit": ("draft", "design"),
    "accept_design": ("design", "build"),
    "build": ("build", "test"),
    "accept_test": ("test", "docs"),
    "accept": ("docs", "done"),
    "stop": ("build", "draft"),
    "archive": ("backlog", "archived"),
}
_PEOPLE = ("ann", "ben", "local")
_CHECKED_TURNS = (3, 4)
"""The turns of a seat after which its checks run."""
_PRICE_IN, _PRICE_OUT = 3e-6, 15e-6
"""US dollars per token of the models in this demo."""


@dataclass(slots=True)
class _Shop:
    """The repository: its id, first commit, and the commit and diff of a change of 30 files."""

    id: str
    base: str
    commit: str
    branch: str
    diff: str
    small_diffs: Sequence[str]


def _module(area: str, part: str, *, changed: bool) -> str:
    """Return a module of the shop, before or after the change to amounts in cents."""
    name = f"{area}_{part}"
    if not changed:
        return (
            f'"""{part.capitalize()} of {area}."""\n\n\ndef total(prices):\n'
            '    """Return the sum of prices in euros."""\n    return sum(prices)\n\n\n'
            f"def describe():\n    return {name!r}\n"
        )
    return (
        f'"""{part.capitalize()} of {area}; amounts are in cents."""\n\n'
        "from decimal import ROUND_HALF_UP, Decimal\n\n\ndef to_cents(price):\n"
        '    """Return a price in euros as whole cents."""\n'
        "    return int((Decimal(str(price)) * 100).quantize(Decimal(1), ROUND_HALF_UP))\n\n\n"
        'def total(prices):\n    """Return the sum of prices in cents."""\n'
        "    return sum(to_cents(price) for price in prices)\n\n\n"
        f"def describe():\n    return {name!r}\n"
    )


def _make_shop(path: Path) -> _Shop:
    """Create the repository with the change on a branch."""
    repository = git.Repo.init(path, initial_branch="main")
    author = git.Actor("Demo", "demo@localhost")

    def commit(message: str, files: Sequence[tuple[str, str]]) -> str:
        for name, text in files:
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_text(text, encoding="utf-8")
            repository.index.add([name])
        return repository.index.commit(message, author=author, committer=author).hexsha

    names = [(area, part) for area in _AREAS for part in _PARTS]
    base = commit(
        "A shop to work on",
        [
            ("README.md", "# Shop\n\nThe demo project of `scripts/demo-data`.\n"),
            *((f"shop/{a}/{p}.py", _module(a, p, changed=False)) for a, p in names),
        ],
    )
    branch = f"moothall/{_task_id(0, 'dev')}"
    repository.git.checkout("-q", "-b", branch)
    changed = commit(
        "Count amounts in cents",
        [(f"shop/{a}/{p}.py", _module(a, p, changed=True)) for a, p in names],
    )
    repository.git.checkout("-q", "main")
    diff = f"{repository.git.diff(base, changed)}\n"
    small = [
        f"{repository.git.diff(base, changed, '--', f'shop/{a}/{p}.py')}\n" for a, p in names[:5]
    ]
    repository.close()
    return _Shop("", base, changed, branch, diff, small)


def _task_id(number: int, role: str) -> TaskId:
    return TaskId(f"demo-{number:02}-{role}")


def _close(account: BudgetAccount, key: TaskKey, amount: Amount) -> BudgetAccount:
    return account.close(key, amount)


class _Writer:
    """The writer of the events of stories and councils. `clock` is the time of the next event."""

    def __init__(self, bus: Bus, shop: _Shop, seed: int) -> None:
        self._bus = bus
        self._shop = shop
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self._ordinal = 0
        self._events: list[Event] = []
        self._outcomes: list[Outcome] = []
        self._prompts: dict[str, Prompts] = {}
        self.clock = datetime.now(UTC)

    def _advance(self, low: float, high: float) -> str:
        """Advance the clock by some minutes, and return the time, which is never in the future."""
        later = self.clock + timedelta(minutes=self._random.uniform(low, high))
        self.clock = min(later, datetime.now(UTC))
        return self.clock.isoformat(timespec="milliseconds")

    def _story_event(self, kind: EventType, story_id: str, **data: Any) -> Event:
        self._ordinal += 1
        event = write(
            kind,
            story_id,
            {"story_id": story_id, **data},
            ordinal=f"demo-{self._ordinal}",
            time=self._advance(20, 400),
        )
        self._events.append(event)
        return event

    async def publish(self) -> None:
        """Store the outcomes and their usage, and write the events to the log ordered by time."""
        accounts = StoryBudgets(self._bus.bucket(BUCKET), LimitSettings())
        for outcome in self._outcomes:
            key, amount = TaskKey(outcome.task_id), Amount.of(outcome.usage)
            await self._bus.put(key, dump(outcome))
            await accounts.change(
                f"{LOCAL.tenant}.{outcome.story_id}", partial(_close, key=key, amount=amount)
            )
        for event in sorted(self._events, key=lambda event: event.time):
            await self._bus.publish(event)

    def story(self, number: int, state: str) -> None:
        """Write a story that is in a state, with its councils."""
        area = _AREAS[number % len(_AREAS)]
        title, wish, gain = (
            text.format(area=area) for text in _WISHES[(number // len(_AREAS)) % len(_WISHES)]
        )
        story_id = f"story-{digest('demo', str(number))[:16]}"
        self.clock -= timedelta(hours=self._random.uniform(2, 30))
        self._story_event(
            EventType.STORY_CREATED,
            story_id,
            title=title,
            brief=f"As the owner of a shop, I want {wish}, so that {gain}.",
            ac=[
                f"Given two {area}, when they are listed, then the answer has two lines",
                f"Given no {area}, when they are listed, then the answer is empty",
            ],
            repository=self._shop.id,
            rigor_level="L1",
            actor=self._random.choice(_PEOPLE),
        )
        plan: Event | None = None
        for name in _PATHS[state]:
            if name == "build" and plan is not None:
                self._finish_story(plan, story_id, number, completed=True)
            source, target = _TARGETS[name]
            move = self._story_event(
                EventType.STORY_TRANSITIONED,
                story_id,
                from_state=source,
                to_state=target,
                event=name,
                actor="planner" if name == "build" else self._random.choice(_PEOPLE),
                roles=["system"] if name == "build" else ["architect", "operator", "po", "qa"],
                comment="",
            )
            if target == "design":
                plan = self._plan(story_id, number, title, is_waiting=state == "design")
            elif target == "test":
                self._record_check(story_id, number, move, failed=state == "check failed")
            elif target == "done":
                self._deliver(story_id, move, failed=state == "not merged")
        if state == "running":
            self._council(number, "dev", story_id, title, result="")
        elif state == "failed" and plan is not None:
            self._finish_story(plan, story_id, number, completed=False)

    def _plan(self, story_id: str, number: int, title: str, *, is_waiting: bool) -> Event:
        """Write the tasks of a story. Only those of a waiting story are for the server to run."""
        plan_id = f"plan-{digest(story_id)[:16]}"
        repository = RepositoryRef(id=self._shop.id)
        first = AtomicTask(
            _task_id(number, "dev"), "dev", title, case_id=story_id, repository=repository
        )
        second = AtomicTask(
            _task_id(number, "qa"),
            "qa",
            f"Test: {title}",
            (first.task_id,),
            case_id=story_id,
            repository=repository,
        )
        plan = Plan(story_id, plan_id, (first, second), publish=is_waiting, actor="planner")
        event = write(
            EventType.PLAN_DERIVED,
            plan_id,
            dump(replace(plan, by="roles")),
            correlationid=story_id,
            time=self._advance(5, 15),
        )
        event = replace(event, id=derivation_id(LOCAL.tenant, story_id, plan_id))
        self._events.append(event)
        return event

    def _finish_story(self, plan: Event, story_id: str, number: int, *, completed: bool) -> None:
        """Write the councils of a story's tasks, and their end."""
        title = str(plan.data["tasks"][0]["description"])
        self._council(number, "dev", story_id, title, result="won" if completed else "lost")
        if completed:
            self._council(number, "qa", story_id, f"Test: {title}", result="won")
        tasks = [str(task["task_id"]) for task in plan.data["tasks"]]
        self._story_event(
            EventType.PLAN_FINISHED,
            story_id,
            plan_id=plan.subject,
            derivation_id=plan.id,
            status="completed" if completed else "failed",
            tasks=dict(
                zip(tasks, ("COMPLETED",) * 2 if completed else ("FAILED", "SKIPPED"), strict=True)
            ),
            why={} if completed else {tasks[0]: "no candidate passed the checks"},
            commits=[self._shop.commit] if completed else [],
        )

    def _record_check(self, story_id: str, number: int, move: Event, *, failed: bool) -> None:
        self._story_event(
            EventType.STORY_CHECKED,
            story_id,
            moved=move.id,
            task_id=_task_id(number, "dev"),
            status="failed" if failed else "passed",
            branch="" if failed else self._shop.branch,
            commit_sha="" if failed else self._shop.commit,
            why="tests failed on the merged result: test_two_lines" if failed else "",
        )

    def _deliver(self, story_id: str, move: Event, *, failed: bool) -> None:
        self._story_event(
            EventType.STORY_DELIVERED,
            story_id,
            moved=move.id,
            status="left" if failed else "merged",
            branch=self._shop.branch if failed else "main",
            commit_sha=self._shop.commit,
            why="the checked-out branch has uncommitted changes" if failed else "",
        )

    def _council(
        self, number: int, role: str, story_id: str, description: str, *, result: str
    ) -> None:
        """Write a council of three, or a running one of five. `result`: won, lost, or empty."""
        count = 3 if result else 5
        seats = tuple(f"agent-{role}-{place:03}" for place in range(1, count + 1))
        self._advance(1, 5)
        if not result:  # it has been running for some minutes
            self.clock = datetime.now(UTC) - timedelta(minutes=self._random.uniform(4, 9))
        deliberation = Deliberation(
            TaskKey(_task_id(number, role)),
            description,
            role,
            "tests_then_verify",
            seats,
            1,
            datetime.now(UTC) + timedelta(days=2),
            12,
            repository=RepositoryRef(id=self._shop.id),
            base_sha=self._shop.base,
            story_id=story_id,
            origin="plan",
            principal="planner",
            seat_models={seats[-1]: "large"},
        )
        start = self.clock
        request = dump(deliberation) | {"request_digest": "", "num_agents": count}
        self._council_event(deliberation, EventType.DELIBERATION_REQUESTED, 0, **request)
        self._council_event(deliberation, EventType.DELIBERATION_STARTED, 0.02, seats=list(seats))
        usage = {}
        for place, seat in enumerate(seats):
            turns = 4 if result else 1 + place
            usage[seat] = self._seat(deliberation, seat, start, turns, has_ended=bool(result))
        if result:
            self._decide(deliberation, usage, start, number, has_won=result == "won")

    def _council_event(
        self, deliberation: Deliberation, kind: EventType, minutes: float, **data: Any
    ) -> None:
        self._ordinal += 1
        self.clock += timedelta(minutes=minutes)
        event = write_of(
            deliberation,
            kind,
            data,
            ordinal=f"demo-{self._ordinal}",
            time=self.clock.isoformat(timespec="milliseconds"),
        )
        self._events.append(event)

    def _seat(
        self, deliberation: Deliberation, seat: str, start: datetime, turns: int, *, has_ended: bool
    ) -> Usage:
        """Write the events of a seat, and return its usage."""
        self.clock = start + timedelta(seconds=3)
        approach = self._random.choice(("smallest change", "tests first", "a new module"))
        self._council_event(
            deliberation, EventType.SEAT_STARTED, 0, seat=seat, role=deliberation.role,
            agent_id=seat, approach=approach,
        )  # fmt: skip
        total, prompts = Usage(), self._prompts.setdefault(deliberation.task_id, Prompts())
        messages = (
            Message("system", "You hold one seat of a council. Change the repository with tools."),
            Message("user", f"{deliberation.description}\n\nYour approach: {approach}"),
        )
        for turn in range(1, turns + 1):
            seconds = self._random.uniform(8, 45)
            prompt, completion = self._random.randint(4_000, 14_000), self._random.randint(200, 900)
            call_usage = Usage(
                prompt, 0, completion, 1, prompt * _PRICE_IN + completion * _PRICE_OUT
            )
            total, answer = total + call_usage, f"I read the module and change it, step {turn}."
            self._council_event(
                deliberation, EventType.MODEL_CALLED, seconds / 60, seat=seat,
                call_id=f"{deliberation.task_id}/{seat}/propose/0.{turn}", phase="propose",
                model="demo", usage=dump(call_usage), answer=answer, finish_reason="stop",
                prompt=prompts.record(f"{seat}/propose/0.{turn}", messages),
                duration_ms=int(seconds * 1000),
            )  # fmt: skip
            result = Message("tool", _module("cart", "rules", changed=False), call_id=f"c-{turn}")
            messages = (*messages, Message("assistant", answer), result)
            operations = [{"tool": "files.read", "status": "success"}]
            if turn > 1:
                operations.append({"tool": "files.edit", "status": "success"})
            self._council_event(
                deliberation, EventType.SEAT_TURN, self._random.uniform(0.05, 0.3), seat=seat,
                phase="propose", round=0, turn=turn, attempt=1, attempts=1, operations=operations,
                thought="", usage=dump(call_usage),
                checks={"tests": "passed"} if turn in _CHECKED_TURNS else {},
            )  # fmt: skip
        if has_ended:
            proposal = Proposal(
                seat, deliberation.role, "Amounts are counted in cents.", self._shop.small_diffs[0]
            )
            self._council_event(
                deliberation, EventType.SEAT_PROPOSED, 0.01, seat=seat,
                candidate=proposal.candidate, proposal=dump(proposal),
            )  # fmt: skip
            outcome = SeatOutcome(seat, SeatStatus.PROPOSED, usage=total)
            self._council_event(
                deliberation, EventType.SEAT_FINISHED, 0.5, seat=seat, outcome=dump(outcome)
            )
        return total

    def _decide(
        self,
        deliberation: Deliberation,
        usage: dict[str, Usage],
        start: datetime,
        number: int,
        *,
        has_won: bool,
    ) -> None:
        self.clock = max(self.clock, start + timedelta(minutes=3))
        is_proven = has_won and self._random.random() < 0.7  # noqa: PLR2004 - seven of ten
        diff = (
            self._shop.diff
            if number == _STATES.index("test")
            else self._random.choice(self._shop.small_diffs)
        )
        evidence = Evidence(
            "tests",
            Verdict.PASSED if has_won else Verdict.FAILED,
            passed=41 if has_won else 38,
            failed=0 if has_won else 3,
            duration_ms=2300,
            proven=is_proven,
        )
        results = tuple(
            self._result(rank, seat, deliberation.role, evidence, diff, has_won=has_won)
            for rank, seat in enumerate(deliberation.seats, 1)
        )
        duration = int((self.clock - start).total_seconds() * 1000)
        outcome = Outcome(
            deliberation.task_id,
            DeliberationStatus.COMPLETED if has_won else DeliberationStatus.FAILED,
            story_id=deliberation.story_id,
            role=deliberation.role,
            agent_count=len(deliberation.seats),
            winner_id=deliberation.seats[0] if has_won else "",
            proven=is_proven,
            results=results,
            seats=tuple(
                SeatOutcome(seat, SeatStatus.PROPOSED, usage=seat_usage, duration_ms=duration)
                for seat, seat_usage in usage.items()
            ),
            usage=sum(usage.values(), start=Usage(2_000, 0, 300, 1, 0.01)),
            duration_ms=duration,
            branch=self._shop.branch if has_won else "",
            commit_sha=self._shop.commit if has_won else "",
            final_state="committed" if has_won else "no_winner",
            error_message="" if has_won else "no candidate passed the checks",
            origin="plan",
            evidence_level=EvidenceLevel.PROVEN if is_proven else EvidenceLevel.REPRODUCED,
        )
        self._outcomes.append(outcome)
        self._council_event(deliberation, EventType.DELIBERATION_DECIDED, 0.02, **dump(outcome))

    def _result(
        self, rank: int, seat: str, role: str, evidence: Evidence, diff: str, *, has_won: bool
    ) -> Result:
        score = round(0.97 - 0.09 * rank, 2)
        return Result(
            rank,
            seat,
            role,
            score,
            ("the required tests passed" if has_won else "three tests failed",),
            has_won,
            evidence.proven and rank == 1,
            evidence=(evidence,),
            reviews=(Review("reviewer", seat, score, comment="Small, and easy to read."),),
            content="Amounts are counted in cents.",
            diff=diff if rank == 1 else self._shop.small_diffs[rank % len(self._shop.small_diffs)],
            commit_sha=self._shop.commit if rank == 1 and has_won else "",
            checks={"tests": evidence.verdict.value},
            evidence_level=EvidenceLevel.PROVEN if evidence.proven else EvidenceLevel.REPRODUCED,
        )


async def _fill_data_dir(folder: Path, seed: int) -> None:
    settings = load_settings(data_dir=folder)
    async with open_log(settings, print_status) as bus:
        if await Board(bus).cards(LOCAL):
            raise SystemExit(f"{folder} already has stories: choose an empty folder")
        path = folder / "demo" / "shop"
        shop = await asyncio.to_thread(_make_shop, path)
        shop.id = (await trusted_repositories(settings).register(str(path), id="shop")).id
        writer = _Writer(bus, shop, seed)
        now = datetime.now(UTC)
        # An advanced story began earlier, so that runs are distributed over the days.
        for number, state in enumerate(_STATES):
            share = len(_PATHS[state]) / max(map(len, _PATHS.values()))
            days = 0.5 + share * (_DAYS - 1) * ((number % 9) + 1) / 10
            writer.clock = now - timedelta(days=days)
            writer.story(number, state)
        await writer.publish()
    print(f"{len(_STATES)} stories are in {folder}. To show them, run:")
    print(f"  MOOTHALL_DATA_DIR={folder} moothall serve")


def main() -> int:
    """Parse the command line and fill the folder."""
    parser = argparse.ArgumentParser(prog="scripts/demo-data", description=__doc__)
    parser.add_argument("folder", type=Path, help="an empty data directory; it is created")
    parser.add_argument(
        "--seed", type=int, default=7, help="seed of the random figures; 7 by default"
    )
    args = parser.parse_args()
    try:
        asyncio.run(_fill_data_dir(args.folder.resolve(), args.seed))
    except MoothallError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
