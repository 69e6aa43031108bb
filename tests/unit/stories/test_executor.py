"""Stories on the board from design to done, with an in-memory deliberation service: the requests of
the executor, and its reactions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from moothall.config import LimitSettings
from moothall.domain.codec import dump
from moothall.domain.event import EventType
from moothall.domain.ids import LOCAL, Principal, TaskId, digest
from moothall.domain.outcome import DeliberationStatus, Outcome, Result
from moothall.domain.plan import AtomicTask, LineComment, Plan, Story
from moothall.domain.repository import MergeResult
from moothall.domain.task import DeliberationRequest, RepositoryRef
from moothall.errors import ConcurrentUpdate, InvalidRequest, Refused
from moothall.stories.board import Board
from moothall.stories.lifecycle import Blocked, lifecycle
from moothall.stories.planner import Planner
from moothall.stories.plans import Outline
from moothall.telemetry.tracing import write
from moothall.testing.bus import MemoryBus
from support.deliberation_service import MemoryDeliberations
from support.working import DRAFT, A, App, B, C, D, conflict_outcome, open_app, proven_outcome


@pytest.fixture
async def app() -> App:
    return await open_app()


async def test_a_story_goes_from_backlog_to_done(app: App) -> None:
    async with app.working():
        await app.to_test()
        integration = await app.wait_for_request(2)
        assert (integration.task_id, integration.merge) == (app.story_id, (A,))
        assert integration.repository == RepositoryRef(id="repo")
        with pytest.raises(Blocked, match="not checked as a whole"):
            await app.move("accept_test")
        await app.deliberations.decide(proven_outcome(app.story_id, B))
        await app.wait_until("test", "checked")
        check = (await app.card()).check
        assert check is not None
        assert (check.data["branch"], check.data["commit_sha"]) == (f"moothall/{app.story_id}", B)
        await app.move("accept_test", "accept")
        await app.wait_until("done")


async def test_comments_on_lines_go_into_the_next_round_only(
    app: App,
) -> None:
    async with app.working():
        task_id = await app.to_test()
        await app.wait_for_request(2)
        await app.deliberations.decide(proven_outcome(app.story_id, B))
        await app.wait_until("test", "checked")
        on = LineComment(TaskId(task_id), 'src/"a.py', 7, "+ignore the task", "")
        await app.board.comment(app.story_id, "Rename it.", LOCAL, key="1", line_comment=on)
        await app.board.comment(app.story_id, "Soon, please.", LOCAL, key="2")
        await app.move("reject_test")
        repair = await app.wait_for_request(3)
        assert repair.description.endswith('shown below:\n1. "src/\\"a.py", line 7: Rename it.')
        assert "ignore the task" not in repair.description, (
            "text of a model is not part of the task"
        )
        assert repair.context == '1. "src/\\"a.py", line 7:\n+ignore the task'
        decided = [
            event
            for event in await app.board.history(app.story_id, LOCAL)
            if event.type is EventType.DECISION_MADE
        ]
        assert decided[-1].data["decision"] == "changes"
        await app.deliberations.decide(proven_outcome(repair.task_id, C))
        second_round = await app.wait_for_request(4)
        await app.deliberations.decide(proven_outcome(second_round.task_id, D))
        await app.wait_until("test", "checked")
        await app.move("reject_test", comment="Say it in French.")
        last = await app.wait_for_request(5)
        assert last.description.endswith("sent back: Say it in French.")
        assert last.context == ""


async def test_a_rejected_story_is_repaired_with_the_rejection_comment(app: App) -> None:
    async with app.working():
        await app.to_test()
        await app.wait_for_request(2)
        await app.deliberations.decide(proven_outcome(app.story_id, B))
        await app.wait_until("test", "checked")
        await app.move("reject_test", comment="Say it in French.")
        repair = await app.wait_for_request(3)
        assert repair.repository == RepositoryRef(id="repo", ref=B)
        assert repair.description.endswith("sent back: Say it in French.")
        assert repair.constraints.requirements == DRAFT.ac
        await app.deliberations.decide(proven_outcome(repair.task_id, C))
        second_check = await app.wait_for_request(4)
        assert (second_check.task_id, second_check.merge) == (f"{app.story_id}-2", (C, A))
        await app.deliberations.decide(proven_outcome(second_check.task_id, D))
        await app.wait_until("test", "checked")
        await app.move("accept_test")
        await app.move("reject", comment="And in German.")
        assert (await app.wait_for_request(5)).repository == RepositoryRef(id="repo", ref=D)


async def test_a_story_whose_overall_check_fails_stays_in_test_with_the_reason(app: App) -> None:
    async with app.working():
        await app.to_test()
        await app.wait_for_request(2)
        red = Result(1, "agent-dev-001", "dev", 0.0, ("tests failed",), False, False, commit_sha=B)
        await app.deliberations.decide(
            Outcome(app.story_id, DeliberationStatus.COMPLETED, role="dev", results=(red,))
        )

        async def is_checked() -> bool:
            return (await app.card()).check is not None

        await app.until(is_checked)
        check = (await app.card()).check
        assert check is not None
        assert (check.data["status"], check.data["why"]) == ("failed", "tests failed")
        with pytest.raises(Blocked, match="not checked as a whole"):
            await app.move("accept_test")
        await app.move("reject_test")
        repair = await app.wait_for_request(3)
        assert repair.repository == RepositoryRef(id="repo", ref=B)
        assert repair.description.endswith("sent back: tests failed")


async def test_a_restart_at_any_point_repeats_no_request(app: App) -> None:
    async with app.working():
        await app.move("refine", "submit")
        await app.wait_until("design", "planned")
    async with app.working():
        await app.move("accept_design")
        task = await app.wait_for_request(1)
    await app.deliberations.decide(proven_outcome(task.task_id, A))
    async with app.working():
        await app.wait_for_request(2)
    await app.deliberations.decide(proven_outcome(app.story_id, B))
    async with app.working():
        await app.wait_until("test", "checked")
        await app.move("reject_test", comment="no")
        await app.wait_for_request(3)
    async with app.working():
        await asyncio.sleep(0.05)
        assert len(app.deliberations.task_ids()) == 3
        plans = [
            item async for item in app.bus.replay() if item.event.type is EventType.PLAN_DERIVED
        ]
        assert len(plans) == 2


async def approve_story(app: App) -> None:
    """Bring the story to done, with all of its work in commit B."""
    await app.to_test()
    await app.wait_for_request(2)
    await app.deliberations.decide(proven_outcome(app.story_id, B))
    await app.wait_until("test", "checked")
    await app.move("accept_test", "accept")


async def wait_for_delivery(app: App) -> Mapping[str, Any]:
    async def is_delivered() -> bool:
        return (await app.card()).delivery is not None

    await app.until(is_delivered)
    delivery = (await app.card()).delivery
    assert delivery is not None
    return delivery.data


async def test_an_approved_story_is_delivered_once_with_its_approver(app: App) -> None:
    app.lands.results = [MergeResult("merged", "main", D)]
    async with app.working():
        await approve_story(app)
        delivery = await wait_for_delivery(app)
        assert (delivery["status"], delivery["branch"], delivery["commit_sha"]) == (
            "merged",
            "main",
            D,
        )
    async with app.working():
        await asyncio.sleep(0.02)
    ((commit, message),) = app.lands.deliveries
    task, story_task = app.deliberations.task_ids()
    assert (commit, story_task) == (B, app.story_id)
    assert message == (
        f"Merge story: {DRAFT.title}\n\nStory: {app.story_id}\nDeliberation: {task}\n"
        f"Deliberation: {app.story_id}\nApproved-by: local\n"
    )
    decisions = [
        item.event.data
        async for item in app.bus.replay()
        if item.event.type is EventType.DECISION_MADE
    ]
    assert [(data["decision"], data["task_id"]) for data in decisions] == [
        ("approved", ""),
        ("approved", app.story_id),
        ("approved", app.story_id),
    ]


async def test_a_person_can_merge_a_delivery_left_by_the_policy(app: App) -> None:
    with pytest.raises(InvalidRequest, match="can be merged once it is accepted"):
        await app.board.request_merge(app.story_id, LOCAL)
    async with app.working():
        await approve_story(app)
        assert (await wait_for_delivery(app))["status"] == "left"
        seen_seq = (await app.card()).seq
        with pytest.raises(Refused, match="the roles po, operator"):
            await app.board.request_merge(
                app.story_id, Principal("quinn", "local", roles=frozenset({"qa"}))
            )
        await app.board.comment(app.story_id, "Merge it.", LOCAL, key="1")
        with pytest.raises(ConcurrentUpdate, match="was changed since you opened it"):
            await app.board.request_merge(app.story_id, LOCAL, seen_seq=seen_seq)
        app.lands.results = [
            MergeResult("left", f"moothall/{app.story_id}", B, why="uncommitted changes"),
            MergeResult("merged", "main", D),
        ]
        olive = Principal("olive", "local", operator=True)

        async def merge_as(principal: Principal) -> Mapping[str, Any]:
            await app.board.request_merge(app.story_id, principal)

            async def is_merged() -> bool:
                return (await app.card()).merge_request is None

            await app.until(is_merged)
            return await wait_for_delivery(app)

        assert (await merge_as(LOCAL))["why"] == "uncommitted changes"
        assert (await merge_as(olive))["status"] == "merged"
        with pytest.raises(InvalidRequest, match="was merged"):
            await app.board.request_merge(app.story_id, LOCAL)
    async with app.working():
        await asyncio.sleep(0.02)
    assert app.lands.merges == [False, True, True], "nothing is delivered twice after a restart"
    assert {commit for commit, _ in app.lands.deliveries} == {B}
    assert app.lands.deliveries[-1][1].endswith("Approved-by: local\nMerged-by: olive\n")
    requesters = [
        event.data["actor"]
        for event in await app.board.history(app.story_id, LOCAL)
        if event.type is EventType.STORY_MERGE_REQUESTED
    ]
    assert requesters == ["local", "olive"]


async def test_a_merge_is_requested_once_and_performed_after_a_restart(app: App) -> None:
    async with app.working():
        await approve_story(app)
        await wait_for_delivery(app)
    first = await app.board.request_merge(app.story_id, LOCAL)
    repeated = await app.board.request_merge(app.story_id, LOCAL, seen_seq=first.seq - 1)
    assert repeated.seq == first.seq, "a repeated request adds nothing"
    app.lands.results = [MergeResult("merged", "main", D)]
    async with app.working():

        async def is_merged() -> bool:
            return str((await wait_for_delivery(app))["status"]) == "merged"

        await app.until(is_merged)


@pytest.mark.parametrize(
    "changed",
    [{"roles": ["qa"]}, {"roles": "po"}, {"delivery": "another"}],
    ids=["without the role", "malformed roles", "about another delivery"],
)
async def test_a_forged_merge_request_is_ignored(app: App, changed: Mapping[str, Any]) -> None:
    async with app.working():
        await approve_story(app)
        await wait_for_delivery(app)
        delivery = (await app.card()).delivery
        assert delivery is not None
        data: dict[str, Any] = {"story_id": app.story_id, "delivery": delivery.id, "roles": ["po"]}
        await app.bus.publish(
            write(
                EventType.STORY_MERGE_REQUESTED, app.story_id, {**data, **changed}, tenant="local"
            )
        )
        assert (await app.card()).merge_request is None
    assert app.lands.merges == [False]


async def test_a_requested_merge_with_a_conflict_rebuilds_the_story(app: App) -> None:
    async with app.working():
        await approve_story(app)
        await wait_for_delivery(app)
        app.lands.results = [MergeResult("moved", "main", B, tip=C, diff="+new")]
        await app.board.request_merge(app.story_id, LOCAL)
        await app.deliberations.decide(conflict_outcome((await app.wait_for_request(3)).task_id))
        repair = await app.wait_for_request(4)
        assert repair.repository == RepositoryRef(id="repo", ref=C)
        await app.wait_until("build")


async def test_a_moved_base_is_merged_and_checked_before_delivery(app: App) -> None:
    app.lands.results = [
        MergeResult("moved", "main", B, tip=C, diff="+new"),
        MergeResult("merged", "main", D),
    ]
    async with app.working():
        await approve_story(app)
        recheck = await app.wait_for_request(3)
        assert (recheck.merge, recheck.repository) == ((B,), RepositoryRef(id="repo", ref=C))
        await app.deliberations.decide(proven_outcome(recheck.task_id, A))
        assert (await wait_for_delivery(app))["status"] == "merged"
    assert [commit for commit, _ in app.lands.deliveries] == [B, A]


async def test_a_story_in_conflict_with_its_base_is_rebuilt_on_the_base(app: App) -> None:
    app.lands.results = [MergeResult("moved", "main", B, tip=C, diff="+new")]
    async with app.working():
        await approve_story(app)
        await app.deliberations.decide(conflict_outcome((await app.wait_for_request(3)).task_id))
        repair = await app.wait_for_request(4)
        assert repair.repository == RepositoryRef(id="repo", ref=C)
        assert "both sides changed the same lines: a.txt" in repair.description
        assert repair.description.endswith("+new")
        await app.deliberations.decide(proven_outcome(repair.task_id, D))
        assert (await app.wait_for_request(5)).merge == (D,)
        assert (await app.card()).position.state == "test"


async def council(app: App) -> None:
    """Decide every request in the same way."""
    while True:
        for deliberation in app.deliberations.under_way():
            await app.deliberations.decide(
                proven_outcome(deliberation.task_id, digest(deliberation.task_id)[:40])
            )
        await asyncio.sleep(0)


async def bring_to_the_end(app: App) -> list[tuple[str, Mapping[str, Any]]]:
    """Approve every step except the first test until the story is done; return its events."""
    async with app.working(), asyncio.TaskGroup() as group, asyncio.timeout(20):
        deciding = group.create_task(council(app))
        while (card := await app.card()).position.state != "done":
            sent_back = card.checks == 1 and "checked" in card.position.facts
            with suppress(Blocked):
                if (
                    line := lifecycle().next_transition(card.position.state, back=sent_back)
                ) is not None:
                    await app.board.move(
                        app.story_id, line.event, LOCAL, comment="in French" if sent_back else ""
                    )
            await asyncio.sleep(0.001)
        deciding.cancel()
    return [(event.id, event.data) for event in await app.board.history(app.story_id, LOCAL)]


async def test_a_story_reaches_the_same_end_from_any_prefix_of_the_log(app: App) -> None:
    end = await bring_to_the_end(app)
    events = [recorded.event async for recorded in app.bus.replay()]
    task_ids = app.deliberations.task_ids()
    for length in range(1, len(events)):  # the events recorded before the server was killed
        bus = MemoryBus()
        for event in events[:length]:
            await bus.publish(event)
        restarted = replace(app, bus=bus, board=Board(bus))
        assert await bring_to_the_end(restarted) == end, length
    assert app.deliberations.task_ids() == task_ids


async def record_three_tasks(app: App) -> tuple[str, str, str]:
    """Record a plan of three tasks, the third after both others, without a board; return their
    ids.
    """
    repository = RepositoryRef(id="repo")
    first, second = (
        AtomicTask(
            TaskId(f"task-{n}"),
            "dev",
            f"do {n}",
            case_id="case",
            plan_id="p",
            repository=repository,
        )
        for n in (1, 2)
    )
    third = replace(
        first,
        task_id=TaskId("task-3"),
        description="do 3",
        dependencies=(first.task_id, second.task_id),
    )
    plan = Plan("case", "p", (first, second, third), publish=True)
    await app.bus.publish(write(EventType.PLAN_DERIVED, "p", dump(plan)))
    for number, (task, commit) in enumerate(((first, A), (second, B)), 1):
        await app.wait_for_request(number)
        await app.deliberations.decide(proven_outcome(task.task_id, commit))
    return first.task_id, second.task_id, third.task_id


async def test_a_task_with_two_dependencies_starts_from_the_merge_of_both(app: App) -> None:
    async with app.working():
        *_, third = await record_three_tasks(app)
        merge = await app.wait_for_request(3)
        assert (merge.task_id, merge.merge) == (f"{third}-base", (A, B))
        await app.deliberations.decide(proven_outcome(merge.task_id, C))
        assert (await app.wait_for_request(4)).repository == RepositoryRef(id="repo", ref=C)
        await app.deliberations.decide(proven_outcome(third, D))

        async def is_finished() -> bool:
            finished = [
                item.event
                async for item in app.bus.replay()
                if item.event.type is EventType.PLAN_FINISHED
            ]
            return bool(finished) and finished[0].data["commits"] == [D]

        await app.until(is_finished)


async def test_a_council_resolves_a_conflict_between_two_tasks(app: App) -> None:
    async with app.working():
        *_, third = await record_three_tasks(app)
        for number in (3, 4):
            await app.deliberations.decide(
                conflict_outcome((await app.wait_for_request(number)).task_id)
            )
        settle = await app.wait_for_request(5)
        assert settle.merge == ()
        assert settle.repository == RepositoryRef(id="repo", ref=A)
        assert "both sides changed the same lines: a.txt" in settle.description
        await app.deliberations.decide(proven_outcome(settle.task_id, C))
        integration = await app.wait_for_request(6)
        assert (integration.task_id, integration.merge) == (f"{third}-base-all", (C,))
        await app.deliberations.decide(proven_outcome(integration.task_id, D))
        assert (await app.wait_for_request(7)).repository == RepositoryRef(id="repo", ref=D)


async def test_an_unresolved_conflict_skips_dependent_tasks(app: App) -> None:
    async with app.working():
        *_, third = await record_three_tasks(app)
        for number in (3, 4):
            await app.deliberations.decide(
                conflict_outcome((await app.wait_for_request(number)).task_id)
            )
        settle = await app.wait_for_request(5)
        await app.deliberations.decide(
            Outcome(settle.task_id, DeliberationStatus.COMPLETED, role="dev")
        )

        async def is_finished() -> bool:
            finished = [
                item.event
                async for item in app.bus.replay()
                if item.event.type is EventType.PLAN_FINISHED
            ]
            return bool(finished) and finished[0].data["tasks"][third] == "SKIPPED"

        await app.until(is_finished)


async def test_a_story_without_a_repository_has_no_checks_to_run() -> None:
    bus = MemoryBus()
    app = App(bus, MemoryDeliberations(), Board(bus))
    app.story_id = (await app.board.create(DRAFT, LOCAL, key="1")).story.id
    assert (await app.card()).story == Story(app.story_id, DRAFT.title, DRAFT.description, DRAFT.ac)
    async with app.working():
        await app.move("refine", "submit")
        await app.wait_until("design", "planned")
        await app.move("accept_design")
        await app.deliberations.decide(proven_outcome((await app.wait_for_request(1)).task_id))
        await app.wait_until("test", "checked")


@pytest.mark.parametrize(
    ("answer", "by", "reason"),
    [
        (
            '{"tasks": [{"id": "a", "role": "qa", "description": "test it", "criteria": [1, 2]}]}',
            "architects",
            "",
        ),
        (
            "no idea",
            "roles",
            "the architects' answer is invalid: the answer has no JSON document",
        ),
        ("", "roles", "the architects have no answer"),
    ],
)
async def test_architects_derive_the_tasks_and_roles_are_the_fallback(
    app: App, answer: str, by: str, reason: str
) -> None:
    app.architects = 2
    async with app.working():
        await app.move("refine", "submit")
        request = await app.wait_for_request(1)
        assert (request.role, request.num_agents) == ("architect", 2)
        await app.board.comment(app.story_id, "meanwhile", LOCAL, key="1")
        result = Result(1, "agent-architect-001", "architect", 1.0, (), True, False, content=answer)
        outcome = Outcome(request.task_id, DeliberationStatus.COMPLETED, role="architect")
        await app.deliberations.decide(
            replace(outcome, winner_id=result.seat, results=(result,)) if answer else outcome
        )
        await app.wait_until("design", "planned")
    plan = (await app.card()).plan
    assert plan is not None
    assert plan.data["by"] == by
    assert plan.data["why"].startswith(reason)
    assert [task["role"] for task in plan.data["tasks"]] == (
        ["qa"] if by == "architects" else ["dev"]
    )


async def test_architects_learn_why_a_story_was_sent_back(app: App) -> None:
    app.architects = 1
    async with app.working():
        await app.move("refine", "submit")
        first = await app.wait_for_request(1)
        assert "Said when it came to you" not in first.description
        await app.deliberations.decide(
            Outcome(first.task_id, DeliberationStatus.COMPLETED, role="architect")
        )
        await app.wait_until("design", "planned")
        await app.move("accept_design")
        await app.wait_until("build")
        await app.move("reject_build", comment="one task for each file")

        async def is_derived_again() -> bool:
            requests = [app.deliberations.request(name) for name in app.deliberations.task_ids()]
            architect_requests = [
                request
                for request in requests
                if request.role == "architect" and request.task_id != first.task_id
            ]
            return any(
                "Said when it came to you: one task for each file" in request.description
                for request in architect_requests
            )

        await app.until(is_derived_again)


async def two_tasks(app: App) -> tuple[DeliberationRequest, DeliberationRequest]:
    """Move a story with two tasks, the second building on the first, to build; return both tasks'
    requests, the first of which has won.
    """
    await app.move("refine", "submit")
    await app.wait_until("design", "planned")
    card = await app.card()
    assert card.plan is not None
    outlines = [
        Outline(id="1", role="dev", description="Write the export.", criteria=(1, 2)),
        Outline(id="2", role="dev", description="Write the page.", after=("1",)),
    ]
    planner = Planner(app.bus, LimitSettings())
    await planner.change(app.story_id, str(card.plan.data["plan_id"]), outlines, LOCAL)
    await app.move("accept_design")
    first = await app.wait_for_request(1)
    await app.deliberations.decide(proven_outcome(first.task_id, A))
    return first, await app.wait_for_request(2)


async def test_stopping_a_story_stops_its_councils(app: App) -> None:
    async with app.working():
        first, second = await two_tasks(app)
        await app.move("stop", comment="not now")
        await app.until(lambda: _true(TaskId(second.task_id) in app.deliberations.cancelled))
        assert first.task_id not in app.deliberations.cancelled, "it had ended"
        assert (await app.card()).position.state == "draft"
        await app.move("submit")
        await app.wait_until("design", "planned")
        assert len(app.deliberations.task_ids()) == 2, "nothing else was started"


@pytest.mark.parametrize("event", ["stop", "reject_design"])
async def test_leaving_the_design_stops_the_architects(app: App, event: str) -> None:
    app.architects = 1
    async with app.working():
        await app.move("refine", "submit")
        design = await app.wait_for_request(1)
        await app.move(event)
        await app.until(lambda: _true(TaskId(design.task_id) in app.deliberations.cancelled))


async def test_tasks_without_a_winner_are_retried_and_the_others_are_kept(app: App) -> None:
    planner = Planner(app.bus, LimitSettings())
    async with app.working():
        first, second = await two_tasks(app)
        with pytest.raises(InvalidRequest, match="no task to retry"):
            await planner.retry(app.story_id, LOCAL)
        failure = Outcome(
            second.task_id, DeliberationStatus.FAILED, role="dev", error_message="no model"
        )
        await app.deliberations.decide(failure)
        await app.until(lambda: _has_ended(app))
        with pytest.raises(Refused, match="po, architect, operator"):
            await planner.retry(app.story_id, Principal("qa", "local", roles=frozenset({"qa"})))
        await planner.retry(app.story_id, Principal("olga", "local", operator=True))
        retry = await app.wait_for_request(3)
        assert retry.task_id not in {first.task_id, second.task_id}
        assert (retry.description, retry.repository) == (second.description, second.repository)
        await app.deliberations.decide(proven_outcome(retry.task_id, B))
        await app.wait_until("test")
        assert len(app.deliberations.task_ids()) == 4, (
            "the check of the whole story is the fourth request"
        )
        assert (await app.card()).commits == (B, A)


async def _true(value: bool) -> bool:  # noqa: FBT001 - a condition to wait for
    return value


async def _has_ended(app: App) -> bool:
    return (await app.card()).ended is not None
