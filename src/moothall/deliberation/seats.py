"""The seats of one deliberation: starting, proposing and revising. A seat's failure is a recorded
outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

from moothall import telemetry
from moothall.authorization.checks import Meter
from moothall.concurrency import seconds_until
from moothall.deliberation import external_seats
from moothall.deliberation.agent import AgentLoop
from moothall.deliberation.attempt import (
    NOTHING_CHANGED,
    TOO_EARLY,
    UNUSABLE,
    Attempt,
    Draft,
    MalformedReplies,
    NoChanges,
    OutOfTurns,
    StuckError,
    malformed_replies_error,
)
from moothall.deliberation.code_blocks import BlockRunner, TurnContext
from moothall.deliberation.context import DeliberationContext, SeatState
from moothall.deliberation.conversation import Conversation, SamplingSettings, ToolChat
from moothall.deliberation.external_seats import ask_remote
from moothall.deliberation.judging.clean_runs import workspace_name
from moothall.deliberation.judging.evaluator import format_check_results
from moothall.deliberation.judging.hidden import visible_candidate, without_hidden
from moothall.deliberation.judging.reviews import format_review
from moothall.deliberation.local_checks import CheckedWorkspace
from moothall.deliberation.prompts import prompts, tool_prompt
from moothall.deliberation.prompts.evidence_prompt import notes_text
from moothall.deliberation.prompts.reply import approaches_schema, read_approaches
from moothall.deliberation.prompts.text_calls import MalformedReplyError
from moothall.deliberation.rival_notes import rivals_of
from moothall.deliberation.seat_setup import SeatSetup, SeatTools
from moothall.deliberation.subagents import SubAgents
from moothall.deliberation.tool_loop import ToolLoop
from moothall.domain.chat import Message
from moothall.domain.codec import dump
from moothall.domain.event import EventType
from moothall.domain.proposal import (
    Assessment,
    Candidate,
    Operation,
    Proposal,
    Review,
    SeatOutcome,
    SeatStatus,
)
from moothall.domain.repository import Prepared
from moothall.domain.tool import ToolStatus, ToolUsage
from moothall.errors import (
    BudgetExceeded,
    BusUnavailable,
    DeadlineExceeded,
    MoothallError,
    PatchRefused,
    Permanent,
    SandboxUnavailable,
    WorkspaceFailed,
)
from moothall.ranking import passes_acceptance_checks
from moothall.telemetry import get_logger

log = get_logger(__name__)

_APPROACH_TOKENS = 40
_FIRST_PHASE = {"plan": "derive", "coach": "coach"}
"""The phase of the calls in which seats write a document, by its kind."""
_MAX_MESSAGE_CHARS = 4_000  # of a seat's own commit messages
_MAX_WORKSPACES = 3  # for one proposal, lost ones included

BUILT_IN_APPROACHES = (
    "the most direct change",
    "exactly what the failing test expects",
    "in the manner of the code around it",
    "edge cases first",
    "as its next reader would like it",
)


async def find_approaches(council: DeliberationContext, count: int) -> None:
    """Ask the model once for distinct approaches; fall back to built-in ones. `seat.started`
    reports the source.

    With `auto`, the seats of the small local model get no approaches, and differ only by
    temperature and seed. Any approach in the prompt makes that model worse: it was right at the
    first turn in 19 of 36 runs with one, and in 26 of 30 without. Seats with native tools differ in
    their first step.
    """
    llm, shared_setup = council.dependencies.answerers.llm, council.setup_of("-")
    text_setups = [
        setup
        for setup in (council.setup_of(seat_state.seat) for seat_state in council.seat_states)
        if setup.tools is None
    ]
    auto_enabled = llm.base_url is not None and not all(setup.native for setup in text_setups)
    enabled = llm.approaches == "on" or (llm.approaches == "auto" and auto_enabled)
    if min(count, len(text_setups)) < 2 or not enabled:  # noqa: PLR2004  # one seat needs no distinction
        return
    council.proposing.approaches = tuple(
        BUILT_IN_APPROACHES[number % len(BUILT_IN_APPROACHES)] for number in range(count)
    )
    council.proposing.approach_source = "built-in"
    reply = await council.request_reply(
        "-/plan/0.1",
        prompts.approaches_prompt(shared_setup.system, shared_setup.shared, count),
        approaches_schema(count),
        _APPROACH_TOKENS * count + 20,
        deadline=council.deadlines.work,
        temperature=llm.temperature,
    )
    with suppress(MalformedReplyError):
        if reply is not None:
            council.proposing.approaches, council.proposing.approach_source = (
                read_approaches(reply, count),
                "model",
            )


async def propose(council: DeliberationContext, seat_state: SeatState) -> None:
    """Start a seat, let it work and propose, and evaluate its proposal. Failures are recorded, not
    raised.
    """
    endpoint, approach, temperature = council.deliberation.elsewhere.get(seat_state.seat), "", 0.0
    if council.deliberation.merges(seat_state.seat):
        approach = "a given change" if council.deliberation.judges else ""
    elif endpoint:
        approach = f"asked at {endpoint}"
    elif harness := external_seats.harness_of(council, seat_state.seat):
        approach = f"worked on by {harness[0]}"
    else:
        approach, temperature = (
            council.approach_of(seat_state),
            council.temperature_of(seat_state.seat),
        )
        seat_state.agent = _create_agent(council, seat_state, approach, temperature)
    await _publish_started(council, seat_state, approach, temperature)
    await _run_seat(council, seat_state, _propose(council, seat_state), council.deadlines.work)


def _create_agent(
    council: DeliberationContext, seat_state: SeatState, approach: str, temperature: float
) -> AgentLoop | ToolLoop:
    deliberation, setup = council.deliberation, council.setup_of(seat_state.seat)
    if setup.tools is not None:
        return _create_tool_loop(council, setup, setup.tools, seat_state, temperature)
    sampling = SamplingSettings(
        setup.mode, temperature, deliberation.seed, prompt_number=seat_state.number
    )
    conversation = Conversation(
        deliberation.task_id,
        seat_state.seat,
        _with_notes(
            council,
            prompts.seat_prompt(
                setup.system,
                setup.shared,
                deliberation.role,
                approach,
                about_text=council.about_text,
                answer_mode=setup.mode if deliberation.is_answer("") else None,
                example=setup.example,
            ),
        ),
        sampling,
        model=council.model,
        llm=setup.llm,
        specs=setup.specs,
        python=setup.python,
        function=setup.function,
        document=deliberation.document,
    )
    return AgentLoop(
        conversation,
        _create_block_runner(council, seat_state.seat, sampling),
        attempts=council.attempts_of(seat_state.seat),
        function_turns=council.dependencies.rules.seats.function_turns,
        events=council.events,
        role=deliberation.role,
        may_answer=deliberation.is_answer(""),
        example=setup.example,
        resumed_step=deliberation.fork.step if deliberation.fork else "",
    )


def _create_tool_loop(
    council: DeliberationContext,
    setup: SeatSetup,
    tools: SeatTools,
    seat_state: SeatState,
    temperature: float,
) -> ToolLoop:
    deliberation, may_answer = council.deliberation, council.deliberation.is_answer("")
    head = tool_prompt.seat_prompt(
        setup.system,
        setup.shared,
        deliberation.role,
        seat_state.number,
        shell=tools.has_shell,
        question=may_answer,
        turns=setup.max_turns,
    )
    chat = ToolChat(
        deliberation.task_id,
        seat_state.seat,
        _with_notes(council, head),
        model=council.model,
        llm=setup.llm,
        tools=tools.offered,
        temperature=temperature,
        seed=deliberation.seed,
    )
    return ToolLoop(
        chat,
        tools,
        events=council.events,
        role=deliberation.role,
        may_answer=may_answer,
    )


def _with_notes(council: DeliberationContext, head: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return the first messages of a seat, with the council's notes if there are any."""
    if not council.proposing.notes:
        return head
    last = head[-1]
    return (
        *head[:-1],
        replace(last, content=f"{last.content}\n\n{notes_text(council.proposing.notes)}"),
    )


async def _publish_started(
    council: DeliberationContext, seat_state: SeatState, approach: str, temperature: float
) -> None:
    seat_state.record_end(SeatStatus.CANCELLED, "CANCELLED", "stopped before it was done")
    await council.events.publish(
        EventType.SEAT_STARTED,
        seat_state.seat,
        seat=seat_state.seat,
        role=council.deliberation.role,
        agent_id=seat_state.seat,
        approach=approach,
        approach_source=council.proposing.approach_source,
        temperature=temperature,
    )


async def revise(
    council: DeliberationContext, seat_state: SeatState, round_: int, reviews: Sequence[Review] = ()
) -> None:
    """Let an author improve its proposal, based on evidence and reviews.

    If the revision fails, the proposal does not change. Remote agents and given changes are not
    revised.
    """
    deliberation = council.deliberation
    if seat_state.seat in deliberation.elsewhere or deliberation.merges(seat_state.seat):
        return
    await _run_seat(
        council, seat_state, _revise(council, seat_state, round_, reviews), council.deadlines.end
    )


async def propose_again(council: DeliberationContext, seat_state: SeatState) -> None:
    """Let a seat start again in the second wave, on the base and with the council's notes.

    Its first proposal remains a candidate. Remote agents and harnesses are not asked again.
    """
    if seat_state.agent is None:
        return
    earlier_usage = seat_state.agent.tool_usage
    seat_state.agent = _create_agent(
        council,
        seat_state,
        council.approach_of(seat_state),
        council.temperature_of(seat_state.seat),
    )
    seat_state.agent.tool_usage = earlier_usage
    await _run_seat(
        council, seat_state, _propose_again(council, seat_state), council.deadlines.work
    )


async def _propose_again(council: DeliberationContext, seat_state: SeatState) -> None:
    draft = await _create_draft(council, seat_state, council.proposing.wave)
    if council.dependencies.clean(draft.patch.diff if draft.patch else "") not in {
        item.proposal.diff for item in seat_state.judged
    }:
        await _submit_proposal(
            council, seat_state, draft, council.proposing.wave if seat_state.drafts else 0
        )


async def _run_seat(
    council: DeliberationContext, seat_state: SeatState, work: Awaitable[None], deadline: datetime
) -> None:
    attributes = {
        "moothall.seat": seat_state.seat,
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": seat_state.seat,
        "gen_ai.conversation.id": council.deliberation.task_id,
    }
    with telemetry.bound(seat=seat_state.seat), telemetry.span("seat", attributes) as span:
        try:
            async with asyncio.timeout(max(seconds_until(deadline), 0)) as limit:
                await work
        except TimeoutError:
            if not limit.expired():
                raise
            await _record_failure(
                council, seat_state, DeadlineExceeded("the seat was not done in time")
            )
        except BusUnavailable:
            raise  # nothing can be recorded: the whole deliberation runs again later
        except MoothallError as error:
            await _record_failure(council, seat_state, error)
        span.set({"moothall.status": seat_state.status})
        if seat_state.code:
            span.fail(seat_state.code, seat_state.message)


async def _record_failure(
    council: DeliberationContext, seat_state: SeatState, error: MoothallError
) -> None:
    is_late = isinstance(error, DeadlineExceeded)
    seat_state.record_end(
        SeatStatus.LATE if is_late else SeatStatus.FAILED, error.code, error.message
    )
    # A failed revision does not remove the proposal, so each failure has its own event id.
    ordinal = f"{seat_state.seat}/{len(seat_state.drafts)}"
    await council.events.publish(
        EventType.SEAT_FAILED,
        ordinal,
        seat=seat_state.seat,
        error={"code": error.code, "message": error.message},
    )


async def _propose(council: DeliberationContext, seat_state: SeatState) -> None:
    if council.deliberation.merges(seat_state.seat):
        draft = await _merge_commits(council)
    elif endpoint := council.deliberation.elsewhere.get(seat_state.seat):
        draft = await ask_remote(council, seat_state, endpoint)
    elif external_seats.harness_of(council, seat_state.seat):
        draft = await external_seats.work(
            council, seat_state, *_round_name_and_deadline(council, 0)
        )
    else:
        draft = await _create_draft(council, seat_state, 0)
    await _submit_proposal(council, seat_state, draft, 0)


async def _merge_commits(council: DeliberationContext) -> Draft:
    """Return the merged commits as a draft."""
    if council.prepared is None or council.dependencies.repositories.merge is None:
        raise AssertionError("a merge needs a repository")
    base = council.prepared.base
    # The prepared base may lack hidden tests, and then shares no history with delivered commits.
    patch = await council.dependencies.repositories.merge(
        replace(base, sha=council.deliberation.base_sha or base.sha), council.deliberation.merge
    )
    if not patch.diff:
        raise NoChanges("nothing to merge: the base contains all these commits already")
    return Draft(council.deliberation.description, patch)


async def _revise(
    council: DeliberationContext, seat_state: SeatState, round_: int, reviews: Sequence[Review]
) -> None:
    judged = seat_state.latest
    evidence = format_check_results(judged, council.prepared.runs) if council.prepared else ""
    texts = [format_review(review) for review in reviews]
    remarks = prompts.revise_text(evidence, texts, rivals_of(council, seat_state))
    last = seat_state.drafts[-1]
    # The workspace is opened again with the seat's own patch: the same files, a new executor.
    if seat_state.agent is None:
        draft = await external_seats.work(
            council,
            seat_state,
            *_round_name_and_deadline(council, round_),
            start=last,
            remarks=remarks,
        )
    else:
        seat_state.agent.conversation.append_text(remarks)
        passed = last.passed and passes_acceptance_checks(visible_candidate(judged))
        draft = await _create_draft(council, seat_state, round_, start=replace(last, passed=passed))
    unchanged = (
        council.dependencies.clean(draft.patch.diff) == judged.proposal.diff
        if draft.patch
        else draft.content == judged.proposal.content
    )
    if not unchanged:
        await _submit_proposal(council, seat_state, draft, round_)


def _round_name_and_deadline(council: DeliberationContext, round_: int) -> tuple[str, datetime]:
    """Return the name of a round, with its phase, and its deadline. Round 0 is that of the first
    proposals, `council.proposing.wave` that of the second wave.
    """
    if round_ and round_ == council.proposing.wave:
        return f"propose/{round_}", council.deadlines.work
    if round_:
        return f"revise/{round_}", council.deadlines.end
    return f"{_FIRST_PHASE.get(council.deliberation.document, 'propose')}/0", council.deadlines.work


async def _create_draft(
    council: DeliberationContext, seat_state: SeatState, round_: int, start: Draft | None = None
) -> Draft:
    """Return the draft of the seat's agent in a round; `start` is the draft to continue from."""
    agent = _agent_of(seat_state)
    if council.prepared is None and isinstance(agent, AgentLoop):
        return await agent.answer_text(*_round_name_and_deadline(council, round_))
    if council.prepared is None:
        raise AssertionError("a seat with native tools works on a repository")
    return await _run_attempts(council, seat_state, council.prepared, round_, start)


async def _run_attempts(
    council: DeliberationContext,
    seat_state: SeatState,
    prepared: Prepared,
    round_: int,
    start: Draft | None,
) -> Draft:
    """Let the agent work in a workspace that contains `start`, if any, and return its best draft.

    A stuck agent starts again with the base and its first messages, until its attempts are used. A
    revision has only one attempt.
    """
    agent, max_turns = _agent_of(seat_state), council.setup_of(seat_state.seat).max_turns
    attempts = 1 if start or isinstance(agent, ToolLoop) else council.attempts_of(seat_state.seat)
    best: Draft | None = None
    refusal: PatchRefused | None = None
    next_turn, meter = 1, Meter()
    for number in range(1, attempts + 1):
        if isinstance(agent, AgentLoop):
            agent.begin_attempt(number)
        try:
            name = (*([f"r{round_}"] if round_ else ()), *([f"a{number}"] if number > 1 else ()))
            turns = range(next_turn, max_turns + 1)
            attempt = await _run_attempt(
                council, seat_state, prepared, name, meter, round_=round_, turns=turns, start=start
            )
        except (
            NoChanges,
            OutOfTurns,
            MalformedReplies,
            PatchRefused,
            BudgetExceeded,
            DeadlineExceeded,
        ):
            if best is None:
                raise
            break  # an earlier attempt has a draft
        if attempt.draft is not None and (best is None or attempt.draft.score > best.score):
            best = attempt.draft
        refusal = attempt.refusal or refusal
        next_turn, seat_state.stuck_reason = attempt.turn + 1, attempt.stuck_reason
        if not attempt.stuck_reason or next_turn > max_turns:
            break
    if best is None:
        if seat_state.stuck_reason == UNUSABLE and refusal is None:
            raise malformed_replies_error(
                f"each attempt ended with {UNUSABLE}",
                agent.last_malformed,
                council.deliberation.task_id,
            )
        raise refusal or _no_change_error(seat_state.stuck_reason, next_turn - 1, max_turns)
    return best


def _no_change_error(stuck_reason: str, turns: int, max_turns: int) -> Permanent:
    """Return the error of a seat that got stuck and changed nothing."""
    if stuck_reason == TOO_EARLY:
        return NoChanges(NOTHING_CHANGED)
    if turns >= max_turns:
        return OutOfTurns(f"nothing was changed within {turns} turns")
    return StuckError(f"nothing was changed within {turns} turns; at last: {stuck_reason}")


async def _run_attempt(
    council: DeliberationContext,
    seat_state: SeatState,
    prepared: Prepared,
    name: Sequence[str],
    meter: Meter,
    *,
    round_: int,
    turns: range,
    start: Draft | None,
) -> Attempt:
    """Let the agent work in one workspace, named after its seat and `name`.

    If the workspace is lost, open it again and repeat the turns with the recorded replies. Raises
    `WorkspaceFailed` or `SandboxUnavailable` if it is lost too often.
    """
    agent, (round_name, deadline) = _agent_of(seat_state), _round_name_and_deadline(council, round_)
    workspace_id = workspace_name(council.deliberation.task_id, seat_state.seat, *name)
    restore, operations = agent.checkpoint(), len(agent.operations)
    if council.deliberation.agent is not None:  # re-checks have the server's limits
        prepared = replace(prepared, bounds=council.deliberation.agent.bounds)
    patch = start.patch.diff if start and start.patch else ""
    required_cases = (
        frozenset(without_hidden(seat_state.latest.assessment).regressions)
        if start
        else frozenset[str]()
    )
    for attempt_number in range(1, _MAX_WORKSPACES + 1):
        try:
            async with council.dependencies.workspaces.open(
                prepared, workspace_id, patch=patch
            ) as workspace:
                context = replace(
                    council.call_context_for(seat_state.seat, workspace, deadline), meter=meter
                )
                checked_workspace = CheckedWorkspace(
                    TurnContext(context, council.dependencies.gateway),
                    prepared,
                    required_cases,
                    council.deliberation.description,
                )
                attempt = await agent.run_attempt(checked_workspace, round_name, turns, start)
                if attempt.draft is None or not any(
                    _is_commit(operation) for operation in agent.operations[operations:]
                ):
                    return attempt
                # The seat may have committed after its last change.
                message = (await workspace.patch("files as they are")).message
                return replace(attempt, draft=replace(attempt.draft, message=message))
        except (WorkspaceFailed, SandboxUnavailable) as error:
            if attempt_number == _MAX_WORKSPACES:
                raise
            log.warning(
                "workspace lost; repeating its turns",
                workspace=workspace_id,
                reason=error.message,
            )
            restore()
    raise AssertionError("unreachable")


def _is_commit(operation: Operation) -> bool:
    return operation.tool == "git.commit" and operation.status == ToolStatus.SUCCESS


async def _submit_proposal(
    council: DeliberationContext, seat_state: SeatState, draft: Draft, revision: int
) -> None:
    patch = draft.patch
    proposal = Proposal(
        seat=seat_state.seat,
        role=council.deliberation.role,
        content=draft.content,
        # Secrets are removed for the log, because the diff may touch a file that contains one. The
        # unchanged commit is run and delivered.
        diff=council.dependencies.clean(patch.diff) if patch else "",
        commit_sha=patch.commit_sha if patch else "",
        revision=revision,
        operations=tuple(seat_state.agent.operations) if seat_state.agent else (),
        own_tests=patch.tests if patch else (),
        created_at_ms=int(datetime.now(UTC).timestamp() * 1000),
        message=council.dependencies.clean(
            next(
                (
                    earlier_draft.message
                    for earlier_draft in (draft, *reversed(seat_state.drafts))
                    if earlier_draft.message
                ),
                "",
            )
        )[:_MAX_MESSAGE_CHARS],
    )
    seat_state.drafts.append(draft)
    seat_state.status, seat_state.code, seat_state.message = SeatStatus.PROPOSED, "", ""
    event_type = EventType.SEAT_REVISED if revision else EventType.SEAT_PROPOSED
    ordinal = f"{proposal.candidate}/{proposal.fingerprint}"
    await council.events.publish(
        event_type,
        ordinal,
        seat=seat_state.seat,
        candidate=proposal.candidate,
        proposal=dump(proposal),
    )
    if council.evaluator is None or council.deliberation.is_answer(proposal.diff):
        seat_state.judged.append(Candidate(proposal, Assessment(applies=True)))
    else:
        seat_state.judged.append(
            await council.evaluator.evaluate(proposal, patch.diff if patch else "")
        )


def _create_block_runner(
    council: DeliberationContext, seat: str, sampling: SamplingSettings
) -> BlockRunner | None:
    """Return the runner of a seat's Python blocks; None if Python cannot be run or the task is
    about text.
    """
    dependencies = council.dependencies
    if dependencies.python.run_code is None or council.about_text:
        return None
    agents = SubAgents(council.model, council.seat_models.by_seat[seat].llm, sampling)
    return BlockRunner(
        dependencies.python.run_code,
        dependencies.python.limits,
        agents.run_agents,
        dependencies.python.sub_agents,
    )


def _agent_of(seat_state: SeatState) -> AgentLoop | ToolLoop:
    if seat_state.agent is None:
        raise AssertionError(f"{seat_state.seat} has no agent")
    return seat_state.agent


def outcome_of(council: DeliberationContext, seat_state: SeatState) -> SeatOutcome:
    """Return how a seat ended, and the resources that it used."""
    tool_usage = seat_state.agent.tool_usage if seat_state.agent else ToolUsage()
    usage = council.model.usage_of(seat_state.seat)
    return SeatOutcome(
        seat_state.seat,
        seat_state.status,
        seat_state.code,
        seat_state.message,
        usage,
        tools=tool_usage,
    )
