"""The seats of one deliberation: taking one, proposing, revising; how each ended is a value."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

from moothall import telemetry
from moothall.authorization.call_context import Meter
from moothall.concurrency import seconds_until
from moothall.deliberation.agent import AgentLoop
from moothall.deliberation.attempt_state import (
    NOTHING_CHANGED,
    Attempt,
    Draft,
    MalformedReplies,
    NoChanges,
    OutOfTurns,
    StuckError,
    malformed_replies,
)
from moothall.deliberation.code_blocks import BlockRunner, TurnContext
from moothall.deliberation.context import DeliberationContext, SeatState
from moothall.deliberation.conversation import Conversation, SamplingSettings
from moothall.deliberation.judging.clean_runs import workspace_name
from moothall.deliberation.judging.evaluator import EvaluatedProposal, format_check_results
from moothall.deliberation.judging.reviews import format_review
from moothall.deliberation.local_checks import CheckedWorkspace
from moothall.deliberation.prompts import prompts, tool_prompt
from moothall.deliberation.prompts.comparing import notes_text
from moothall.deliberation.prompts.reply import approaches_schema, read_approaches
from moothall.deliberation.prompts.variants import MalformedReplyError
from moothall.deliberation.remote_seat import ask_remote
from moothall.deliberation.rival_notes import rivals_of
from moothall.deliberation.seat_setup import SeatSetup
from moothall.deliberation.seat_tools import SeatTools
from moothall.deliberation.subagents import SubAgents
from moothall.deliberation.tool_chat import ToolChat
from moothall.deliberation.tool_loop import ToolLoop
from moothall.deliberation.turns import TOO_EARLY, UNUSABLE
from moothall.domain.chat import Message
from moothall.domain.codec import dump
from moothall.domain.event import EventType
from moothall.domain.proposal import (
    Assessment,
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
"""The phase of the calls in which seats write a document."""
_MESSAGE = 4_000  # characters of a seat's own commit messages
_WORKSPACES = 3  # that a seat may use up for one proposal

BUILT_IN_APPROACHES = (
    "the most direct change",
    "exactly what the failing test expects",
    "in the manner of the code around it",
    "edge cases first",
    "as its next reader would like it",
)


async def find_approaches(council: DeliberationContext, count: int) -> None:
    """Ask once for distinct approaches. Where that fails, built-in ones serve; `seat.started` says
    which.

    The small local model does worse with any approach in its prompt (right at the first turn 19
    times in 36 with one, 26 in 30 without): under `auto` its seats differ by temperature and seed
    alone. Seats with native tools differ by how they begin.
    """
    llm, setup = council.parts.llm, council.setup_of("-")
    in_text = [
        one
        for one in (council.setup_of(seat_state.seat) for seat_state in council.sittings)
        if one.tools is None
    ]
    usual = llm.base_url is not None and not all(one.native for one in in_text)
    wanted = llm.approaches == "on" or (llm.approaches == "auto" and usual)
    if min(count, len(in_text)) < 2 or not wanted:  # noqa: PLR2004  # one seat needs no distinction
        return
    council.approaches = tuple(
        BUILT_IN_APPROACHES[number % len(BUILT_IN_APPROACHES)] for number in range(count)
    )
    council.approach_source = "built-in"
    reply = await council.ask(
        "-/plan/0.1",
        prompts.approaches_prompt(setup.system, setup.shared, count),
        approaches_schema(count),
        _APPROACH_TOKENS * count + 20,
        deadline=council.work_until,
        temperature=llm.temperature,
    )
    with suppress(MalformedReplyError):
        if reply is not None:
            council.approaches, council.approach_source = read_approaches(reply, count), "model"


async def propose(council: DeliberationContext, seat_state: SeatState) -> None:
    """Take the seat, work, propose, be judged. Whatever fails is how the seat ended, not an
    exception.
    """
    endpoint, approach, warmth = council.d.elsewhere.get(seat_state.seat), "", 0.0
    if endpoint and not council.d.merge:
        approach = f"asked at {endpoint}"
    elif not council.d.merge:
        approach, warmth = council.approach(seat_state), council.warmth(seat_state.seat)
        seat_state.agent = _new_agent(council, seat_state, approach, warmth)
    await _sit_down(council, seat_state, approach, warmth)
    await _sit(council, seat_state, _propose(council, seat_state), council.work_until)


def _new_agent(
    council: DeliberationContext, seat_state: SeatState, approach: str, warmth: float
) -> AgentLoop | ToolLoop:
    d, setup = council.d, council.setup_of(seat_state.seat)
    if setup.tools is not None:
        return _new_tool_loop(council, setup, setup.tools, seat_state, warmth)
    voice = SamplingSettings(setup.mode, warmth, d.seed, way=seat_state.number)
    talk = Conversation(
        d.task_id,
        seat_state.seat,
        _with_notes(
            council,
            prompts.seat_prompt(
                setup.system,
                setup.shared,
                d.role,
                approach,
                about_text=council.about_text,
                asked=setup.mode if d.is_answer("") else None,
                example=setup.example,
            ),
        ),
        voice,
        model=council.model,
        llm=setup.llm,
        specs=setup.specs,
        python=setup.python,
        function=setup.function,
        document=d.document,
    )
    return AgentLoop(
        talk,
        council.parts.limits.model_copy(update={"attempts": council.attempts_of(seat_state.seat)}),
        _coding_of(council, seat_state.seat, voice),
        facts=council.facts,
        role=d.role,
        asked=d.is_answer(""),
        example=setup.example,
        resumes=d.fork.step if d.fork else "",
    )


def _new_tool_loop(
    council: DeliberationContext,
    setup: SeatSetup,
    tools: SeatTools,
    seat_state: SeatState,
    warmth: float,
) -> ToolLoop:
    d, question = council.d, council.d.is_answer("")
    head = tool_prompt.seat_prompt(
        setup.system,
        setup.shared,
        d.role,
        seat_state.number,
        shell=tools.has_shell,
        question=question,
        turns=setup.max_turns,
    )
    chat = ToolChat(
        d.task_id,
        seat_state.seat,
        _with_notes(council, head),
        model=council.model,
        llm=setup.llm,
        tools=tools.offered,
        temperature=warmth,
        seed=d.seed,
    )
    return ToolLoop(
        chat, tools, council.parts.limits, facts=council.facts, role=d.role, question=question
    )


def _with_notes(council: DeliberationContext, head: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return the first messages of a seat with the council's notes, if it has any."""
    if not council.notes:
        return head
    last = head[-1]
    return (*head[:-1], replace(last, content=f"{last.content}\n\n{notes_text(council.notes)}"))


async def _sit_down(
    council: DeliberationContext, seat_state: SeatState, approach: str, warmth: float
) -> None:
    seat_state.end(SeatStatus.CANCELLED, "CANCELLED", "stopped before it was done")
    await council.facts.say(
        EventType.SEAT_STARTED,
        seat_state.seat,
        seat=seat_state.seat,
        role=council.d.role,
        agent_id=seat_state.seat,
        approach=approach,
        approach_source=council.approach_source,
        temperature=warmth,
    )


async def revise(
    council: DeliberationContext, seat_state: SeatState, round_: int, reviews: Sequence[Review] = ()
) -> None:
    """Let an author improve its proposal on evidence and reviews. Where it fails, the proposal
    stays as it is; so does that of a remote agent.
    """
    if seat_state.seat in council.d.elsewhere:
        return
    await _sit(council, seat_state, _revise(council, seat_state, round_, reviews), council.until)


async def propose_again(council: DeliberationContext, seat_state: SeatState) -> None:
    """Let a seat begin anew in the second wave, on the base and the council's notes. Its first
    proposal stays a candidate. Remote agents are not asked again.
    """
    if seat_state.seat in council.d.elsewhere:
        return
    before = seat_state.agent.used if seat_state.agent is not None else ToolUsage()
    seat_state.agent = _new_agent(
        council, seat_state, council.approach(seat_state), council.warmth(seat_state.seat)
    )
    seat_state.agent.used = before
    await _sit(council, seat_state, _propose_again(council, seat_state), council.work_until)


async def _propose_again(council: DeliberationContext, seat_state: SeatState) -> None:
    draft = await _draft(council, seat_state, council.wave)
    if council.parts.clean(draft.patch.diff if draft.patch else "") not in {
        item.proposal.diff for item in seat_state.judged
    }:
        await _submit(council, seat_state, draft, council.wave if seat_state.drafts else 0)


async def _sit(
    council: DeliberationContext, seat_state: SeatState, work: Awaitable[None], until: datetime
) -> None:
    about = {
        "moothall.seat": seat_state.seat,
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": seat_state.seat,
    }
    with telemetry.bound(seat=seat_state.seat), telemetry.span("seat", about) as span:
        try:
            async with asyncio.timeout(max(seconds_until(until), 0)) as limit:
                await work
        except TimeoutError:
            if not limit.expired():
                raise
            await _fail(council, seat_state, DeadlineExceeded("the seat was not done in time"))
        except BusUnavailable:
            raise  # nobody could be told: the whole deliberation is taken up again later
        except MoothallError as error:
            await _fail(council, seat_state, error)
        span.set({"moothall.status": seat_state.status})
        if seat_state.code:
            span.fail(seat_state.code, seat_state.message)


async def _fail(council: DeliberationContext, seat_state: SeatState, error: MoothallError) -> None:
    late = isinstance(error, DeadlineExceeded)
    seat_state.end(SeatStatus.LATE if late else SeatStatus.FAILED, error.code, error.message)
    # A revision that failed leaves the proposal standing, and is told under an id of its own.
    ordinal = f"{seat_state.seat}/{len(seat_state.drafts)}"
    await council.facts.say(
        EventType.SEAT_FAILED,
        ordinal,
        seat=seat_state.seat,
        error={"code": error.code, "message": error.message},
    )


async def _propose(council: DeliberationContext, seat_state: SeatState) -> None:
    if council.d.merge:
        draft = await _merge(council)
    elif endpoint := council.d.elsewhere.get(seat_state.seat):
        draft = await ask_remote(council, seat_state, endpoint)
    else:
        draft = await _draft(council, seat_state, 0)
    await _submit(council, seat_state, draft, 0)


async def _merge(council: DeliberationContext) -> Draft:
    """Return what the commits come to together."""
    if council.prepared is None or council.parts.merge is None:
        raise AssertionError("commits are merged where there is a repository")
    base = council.prepared.base
    # A base without its hidden tests has no history in common with what was delivered.
    patch = await council.parts.merge(
        replace(base, sha=council.d.base_sha or base.sha), council.d.merge
    )
    if not patch.diff:
        raise NoChanges("the base has all of it already")
    return Draft(council.d.description, patch)


async def _revise(
    council: DeliberationContext, seat_state: SeatState, round_: int, reviews: Sequence[Review]
) -> None:
    agent, judged = _agent(seat_state), seat_state.latest
    evidence = format_check_results(judged, council.prepared.runs) if council.prepared else ""
    texts = [format_review(review) for review in reviews]
    agent.talk.tell(prompts.revise_text(evidence, texts, rivals_of(council, seat_state)))
    last = seat_state.drafts[-1]
    # Its own workspace, opened again on its own patch: the same files, a fresh executor.
    draft = await _draft(
        council,
        seat_state,
        round_,
        start=replace(
            last, green=last.green and passes_acceptance_checks(judged.visible_candidate)
        ),
    )
    same = (
        council.parts.clean(draft.patch.diff) == judged.proposal.diff
        if draft.patch
        else draft.content == judged.proposal.content
    )
    if not same:
        await _submit(council, seat_state, draft, round_)


def _round(council: DeliberationContext, round_: int) -> tuple[str, datetime]:
    """Return a round's name, with its phase, and its deadline. Round 0 is the first proposals,
    `council.wave` a second wave.
    """
    if round_ and round_ == council.wave:
        return f"propose/{round_}", council.work_until
    if round_:
        return f"revise/{round_}", council.until
    return f"{_FIRST_PHASE.get(council.d.document, 'propose')}/0", council.work_until


async def _draft(
    council: DeliberationContext, seat_state: SeatState, round_: int, start: Draft | None = None
) -> Draft:
    """Return what the seat's agent comes to in a round; about a repository, from `start` on."""
    agent = _agent(seat_state)
    if council.prepared is None and isinstance(agent, AgentLoop):
        return await agent.answer(*_round(council, round_))
    if council.prepared is None:
        raise AssertionError("a seat with native tools works on a repository")
    return await _work(council, seat_state, council.prepared, round_, start)


async def _work(
    council: DeliberationContext,
    seat_state: SeatState,
    prepared: Prepared,
    round_: int,
    start: Draft | None,
) -> Draft:
    """Let the agent work in a workspace that holds `start`, if any. Where it goes in circles it
    starts anew, on the base and from the first message, as often as the settings allow; a revision
    does not. The best that its attempts came to is returned.
    """
    agent, most = _agent(seat_state), council.setup_of(seat_state.seat).max_turns
    attempts = 1 if start or isinstance(agent, ToolLoop) else council.attempts_of(seat_state.seat)
    best: Draft | None = None
    refused: PatchRefused | None = None
    first, meter = 1, Meter()
    for number in range(1, attempts + 1):
        if isinstance(agent, AgentLoop):
            agent.begin(number)
        try:
            name = (*([f"r{round_}"] if round_ else ()), *([f"a{number}"] if number > 1 else ()))
            turns = range(first, most + 1)
            attempt = await _attempt(
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
            break  # an earlier attempt came to something
        if attempt.draft is not None and (best is None or attempt.draft.worth > best.worth):
            best = attempt.draft
        refused = attempt.refused or refused
        first, seat_state.circles = attempt.turn + 1, attempt.stuck
        if not attempt.stuck or first > most:
            break
    if best is None:
        if seat_state.circles == UNUSABLE and refused is None:
            raise malformed_replies(
                f"in each attempt it gave {UNUSABLE} again", agent.unusable, council.d.task_id
            )
        raise refused or _error_of_nothing(seat_state.circles, first - 1, most)
    return best


def _error_of_nothing(circles: str, turns: int, most: int) -> Permanent:
    """Return the error of a seat that went in circles and changed nothing."""
    if circles == TOO_EARLY:
        return NoChanges(NOTHING_CHANGED)
    if turns >= most:
        return OutOfTurns(f"nothing was changed within {turns} turns")
    return StuckError(f"nothing was changed within {turns} turns; at last: {circles}")


async def _attempt(
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
    """Let the agent work in one workspace, which is called by its seat and `name`.

    A workspace that is lost is opened afresh and the turns so far are done in it again: their
    answers are known, so
    that the model is not asked twice. Raises `WorkspaceFailed` when that happens too often.
    """
    agent, (where, until) = _agent(seat_state), _round(council, round_)
    called = workspace_name(council.d.task_id, seat_state.seat, *name)
    restore, operations = agent.checkpoint(), len(agent.operations)
    if council.d.agent is not None:  # the re-check is the server's, and has its limits
        prepared = replace(prepared, bounds=council.d.agent.bounds)
    patch = start.patch.diff if start and start.patch else ""
    also = (
        frozenset(seat_state.latest.visible_assessment.regressions) if start else frozenset[str]()
    )
    for lost in range(1, _WORKSPACES + 1):
        try:
            async with council.parts.workspaces.open(prepared, called, patch=patch) as workspace:
                context = replace(
                    council.context_of(seat_state.seat, workspace, until), meter=meter
                )
                place = CheckedWorkspace(
                    TurnContext(context, council.parts.gate), prepared, also, council.d.description
                )
                attempt = await agent.work(place, where, turns, start)
                if attempt.draft is None or not any(
                    _is_commit(operation) for operation in agent.operations[operations:]
                ):
                    return attempt
                # It may commit after its last change.
                message = (await workspace.patch("files as they are")).message
                return replace(attempt, draft=replace(attempt.draft, message=message))
        except (WorkspaceFailed, SandboxUnavailable) as error:
            if lost == _WORKSPACES:
                raise
            log.warning(
                "workspace lost; its turns are done again", workspace=called, reason=error.message
            )
            restore()
    raise AssertionError("unreachable")


def _is_commit(operation: Operation) -> bool:
    return operation.tool == "git.commit" and operation.status == ToolStatus.SUCCESS


async def _submit(
    council: DeliberationContext, seat_state: SeatState, draft: Draft, revision: int
) -> None:
    patch = draft.patch
    proposal = Proposal(
        seat=seat_state.seat,
        role=council.d.role,
        content=draft.content,
        # As everybody sees it: it may touch a file that holds a secret. What is run, and delivered,
        # is the commit.
        diff=council.parts.clean(patch.diff) if patch else "",
        commit_sha=patch.commit_sha if patch else "",
        revision=revision,
        operations=tuple(seat_state.agent.operations) if seat_state.agent else (),
        own_tests=patch.tests if patch else (),
        created_at_ms=int(datetime.now(UTC).timestamp() * 1000),
        message=council.parts.clean(
            next((one.message for one in (draft, *reversed(seat_state.drafts)) if one.message), "")
        )[:_MESSAGE],
    )
    seat_state.drafts.append(draft)
    seat_state.status, seat_state.code, seat_state.message = SeatStatus.PROPOSED, "", ""
    kind = EventType.SEAT_REVISED if revision else EventType.SEAT_PROPOSED
    ordinal = f"{proposal.candidate}/{proposal.fingerprint}"
    await council.facts.say(
        kind, ordinal, seat=seat_state.seat, candidate=proposal.candidate, proposal=dump(proposal)
    )
    if council.evaluator is None or council.d.is_answer(proposal.diff):
        seat_state.judged.append(EvaluatedProposal(proposal, Assessment(applies=True)))
    else:
        seat_state.judged.append(
            await council.evaluator.evaluate(proposal, patch.diff if patch else "")
        )


def _coding_of(
    council: DeliberationContext, seat: str, voice: SamplingSettings
) -> BlockRunner | None:
    """Return what runs a seat's blocks of Python, where there is a runner and something to act
    on.
    """
    parts = council.parts
    if parts.run_code is None or council.about_text:
        return None
    agents = SubAgents(council.model, council.seats[seat].llm, parts.limits, voice)
    return BlockRunner(parts.run_code, parts.python, agents.run)


def _agent(seat_state: SeatState) -> AgentLoop | ToolLoop:
    if seat_state.agent is None:
        raise AssertionError(f"{seat_state.seat} was not taken")
    return seat_state.agent


def outcome_of(council: DeliberationContext, seat_state: SeatState) -> SeatOutcome:
    """Return how the seat ended, with what it used."""
    used = seat_state.agent.used if seat_state.agent else ToolUsage()
    spent = council.model.usage_of(seat_state.seat)
    return SeatOutcome(
        seat_state.seat, seat_state.status, seat_state.code, seat_state.message, spent, tools=used
    )
