"""A council that sits: what it works with, what its seats share, and how each of them stands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from moothall.authorization.call_context import CallContext
from moothall.authorization.gateway import ToolGateway
from moothall.authorization.story_budgets import BudgetReservation
from moothall.config import EvidenceSettings, LimitSettings, LlmSettings, RunnerSettings
from moothall.config.models import DEFAULT
from moothall.config.parts import NATIVE_WINDOW
from moothall.deliberation.agent import AgentLoop
from moothall.deliberation.attempt_state import Draft
from moothall.deliberation.event_writer import EventWriter
from moothall.deliberation.judging.clean_runs import CleanCheckoutRunner
from moothall.deliberation.judging.evaluator import EvaluatedProposal, Evaluator
from moothall.deliberation.pause_gate import PauseGate
from moothall.deliberation.prompts.prompts import task_parts
from moothall.deliberation.prompts.repo_map import RepoMapper
from moothall.deliberation.recorded_model import REMOTE, NamedModel, RecordedModel, Recording
from moothall.deliberation.resource_usage import ProgressEstimate
from moothall.deliberation.seat_setup import SeatSetup, create_seat_setup, grant_of
from moothall.deliberation.streaming import PublishPartial
from moothall.deliberation.tool_loop import ToolLoop
from moothall.domain.budget import Ledger
from moothall.domain.chat import (
    ChatReply,
    ChatRequest,
    Message,
    ModelDescription,
    ReplyMode,
    ReplySchema,
)
from moothall.domain.identity import Principal
from moothall.domain.ids import seed_of
from moothall.domain.proposal import Review, SeatStatus
from moothall.domain.repository import Prepared
from moothall.domain.secrets import scrub
from moothall.domain.task import Deliberation
from moothall.errors import BusUnavailable, ConfigurationError, ModelUnavailable, MoothallError
from moothall.ports import ChatModel, Log, MergeCommits, ReadFile, RunCode, Workspace, Workspaces

_GRACE_SHARE = 0.25  # of the time left at the start: for re-checks, cross-tests and reviews
_GRACE_SECONDS = 120.0
_CLOSING_SECONDS = 2.0
_CHECKS_AT_ONCE = 2  # re-checks of one deliberation


@dataclass(frozen=True, slots=True)
class Dependencies:
    """What councils work with; one a process. `clean` takes the operator's secrets out of prompts.
    `runner` runs blocks of Python, by the settings `python`. `model` and `llm` are the default
    model and its settings, `named` the others of the settings. `surveyor` says what of a repository
    bears on a task; without one, prompts show whole files only. `merge` brings commits together.
    """

    model: ChatModel
    gateway: ToolGateway
    workspaces: Workspaces
    read_file: ReadFile
    log: Log
    limits: LimitSettings = field(default_factory=LimitSettings)
    evidence: EvidenceSettings = field(default_factory=EvidenceSettings)
    llm: LlmSettings = field(default_factory=LlmSettings)
    named_models: Mapping[str, NamedModel] = field(default_factory=dict)
    remote_agents: Mapping[str, ChatModel] = field(default_factory=dict)
    """Remote agents, by endpoint."""
    source: str = "host"
    clean: Callable[[str], str] = scrub
    run_code: RunCode | None = None
    python: RunnerSettings = field(default_factory=RunnerSettings)
    repo_mapper: RepoMapper | None = None
    merge: MergeCommits | None = None
    reservation: BudgetReservation | None = None
    """What the deliberation draws on, where it belongs to a story."""
    steering: Mapping[str, str] = field(default_factory=dict)
    """What is said to the deliberation while it is under way, by event id; others add to it."""
    publish_partial: PublishPartial | None = None
    """Tells what a seat writes while it writes it."""
    pause_gate: PauseGate | None = None
    """Where the deliberation stops when it is paused."""
    owns_work: Callable[[], bool] = lambda: True
    """Whether the work is still this process's; asked before each call of the model."""


@dataclass(slots=True)
class SeatState:
    """A seat while the council sits: its proposals (the original first) and, once it ended
    otherwise, how. `circles`: how its last attempt went in circles.
    """

    seat: str
    number: int
    agent: AgentLoop | ToolLoop | None = None
    judged: list[EvaluatedProposal] = field(default_factory=list)
    drafts: list[Draft] = field(default_factory=list)
    status: SeatStatus = SeatStatus.UNSTARTED
    code: str = ""
    message: str = ""
    stuck_reason: str = ""

    @property
    def latest(self) -> EvaluatedProposal:
        """What it stands for now; only of a seat that proposed."""
        return self.judged[-1]

    def end(self, status: SeatStatus, code: str = "", message: str = "") -> None:
        """Note how the seat ended. A proposal that was made stays one."""
        if not self.drafts:
            self.status, self.code, self.message = status, code, message


@dataclass(slots=True)
class DeliberationContext:
    """One running deliberation. `work_until` is when seats must be done, `until` when all must be.
    `seats` has the model of each seat, `setups` what the seats of each model work with, by the
    model's name; `parts` has the model that is asked for all.
    """

    deliberation: Deliberation
    prepared: Prepared | None
    dependencies: Dependencies
    events: EventWriter
    model: RecordedModel
    ledger: Ledger
    work_deadline: datetime
    deadline: datetime
    seat_states: tuple[SeatState, ...]
    seat_models: Mapping[str, NamedModel]
    setups: Mapping[str, SeatSetup]
    evaluator: Evaluator | None = None
    approaches: tuple[str, ...] = ()
    approach_source: str = "none"
    reviews: list[Review] = field(default_factory=list)
    answers_equivalent: bool = False
    """Whether the tie-breaker found that the answers on the first place behave the same."""
    superseded: dict[str, str] = field(default_factory=dict)
    """Existing tests that the task supersedes, each with the reason."""
    changes_read: set[str] = field(default_factory=set)
    """The candidates whose changes of existing tests were read against the task."""
    cross_test_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    contradictions: dict[str, str] = field(default_factory=dict)
    """By candidate with tests: why these contradict the task; '' if they do not."""
    stopped_early: bool = False
    wave: int = 0
    notes: str = ""
    """What the first wave tried and learned, for the seats of the second wave."""

    @property
    def about_text(self) -> bool:
        """Whether there is no repository."""
        return self.prepared is None

    @property
    def task_text(self) -> str:
        """The task alone, for readers that compare tests with it and need nothing of the
        repository.
        """
        return "\n\n".join(task_parts(self.deliberation))

    def setup_of(self, seat: str) -> SeatSetup:
        """Return what a seat works with; of "-", what the model has that is asked for all."""
        return self.setups[self.deliberation.model_of(seat)]

    @property
    def reply_mode(self) -> str:
        """How seats call tools, for the start event: `mixed` where their models differ."""
        modes = {self.setup_of(seat).reply_mode for seat in self.deliberation.seats}
        return modes.pop() if len(modes) == 1 else "mixed"

    @property
    def limits(self) -> dict[str, Any]:
        """What bounds each seat and the whole council, for the start event."""
        seconds = round((self.deadline - datetime.now(UTC)).total_seconds())
        turns = max(self.setup_of(seat).max_turns for seat in self.deliberation.seats)
        return {
            "turns": turns,
            "tokens": self.deliberation.budget.tokens,
            "calls": self.deliberation.budget.calls,
            "seconds": seconds,
        }

    @property
    def models(self) -> list[dict[str, Any]]:
        """The models of the seats and how they are used, each once, for the start event. Windows
        and replies are in tokens.
        """
        used = {self.deliberation.model_of(seat): one for seat, one in self.seat_models.items()}
        return [
            {
                "profile": name,
                "model": one.about.model,
                "api": one.about.api,
                "reply": self.setups[name].reply_mode,
                "turns": self.setups[name].max_turns,
                "window": one.llm.context_tokens,
                "window_source": one.about.source,
                "reply_tokens": one.llm.max_tokens,
            }
            for name, one in used.items()
        ]

    def attempts_of(self, seat: str) -> int:
        """Return how often a seat may begin, the first time included."""
        most, setup = self.dependencies.limits.attempts, self.setup_of(seat)
        return most if setup.function is None else min(most, setup.llm.function_attempts)

    def call_context_for(self, seat: str, workspace: Workspace, until: datetime) -> CallContext:
        """Return what a seat, or an agent beside the seats, acts with in a workspace."""
        gateway, deliberation = self.dependencies.gateway, self.deliberation
        context = CallContext(
            principal=Principal(deliberation.principal, deliberation.tenant),
            tenant=deliberation.tenant,
            task_id=deliberation.task_id,
            seat=seat,
            role=deliberation.role,
            grant=grant_of(deliberation, gateway, self.prepared),
            workspace=workspace,
            workspace_id=workspace.id,
            deadline=until,
            ledger=self.ledger,
        )
        return gateway.with_token(context)

    def approach_of(self, seat_state: SeatState) -> str:
        """Return the way in which a seat goes about it; '' for its own. That of a fork is the one
        it has from where it comes.
        """
        if self.deliberation.fork is not None:
            return self.deliberation.fork.approach
        in_text = (
            self.setup_of(seat_state.seat).tools is None
        )  # seats with native tools differ by how they begin
        return self.approaches[seat_state.number] if self.approaches and in_text else ""

    def temperature_of(self, seat: str) -> float:
        """Return a seat's own temperature: the first is the surest (a quarter of the setting), the
        last the boldest.
        """
        if self.deliberation.fork is not None:
            return self.deliberation.fork.temperature
        last = len(self.deliberation.seats) - 1
        share = self.deliberation.seats.index(seat) / last if last else 0.0
        return round(min(self.seat_models[seat].llm.temperature * (0.25 + share), 2.0), 3)

    async def ask(
        self,
        step: str,
        messages: Sequence[Message],
        schema: ReplySchema | None,
        max_tokens: int,
        **options: Any,
    ) -> ChatReply | None:
        """Ask as `ask_or_raise` does; return None if there is no answer. Raises
        `BusUnavailable`.
        """
        try:
            return await self.ask_or_raise(step, messages, schema, max_tokens, **options)
        except BusUnavailable:
            raise
        except MoothallError:
            return None

    async def ask_or_raise(
        self,
        step: str,
        messages: Sequence[Message],
        schema: ReplySchema | None,
        max_tokens: int,
        **options: Any,
    ) -> ChatReply:
        """Ask beside the conversations of the seats. `step` is the end of the call id, which begins
        with who is asked, and its seed where `how` names no other. Raises what the model raises.
        """
        setup = self.setup_of(step.partition("/")[0])
        request = ChatRequest(
            call_id=f"{self.deliberation.task_id}/{step}",
            messages=tuple(messages),
            max_tokens=max(max_tokens, setup.llm.max_tokens)
            if setup.native
            else max_tokens,  # a strong model thinks before it answers
            schema=schema if setup.mode == "json" else None,
            **{"deadline": self.deadline, "seed": seed_of(self.deliberation.seed, step), **options},
        )
        return await self.model.ask(request)

    @property
    def judged(self) -> tuple[EvaluatedProposal, ...]:
        """All candidates, seat by seat, originals before revisions."""
        return tuple(item for seat_state in self.seat_states for item in seat_state.judged)

    @property
    def proposers(self) -> tuple[SeatState, ...]:
        """The seats with a proposal that was judged."""
        return tuple(seat_state for seat_state in self.seat_states if seat_state.judged)


def _open_models(
    deliberation: Deliberation, dependencies: Dependencies
) -> Mapping[str, NamedModel]:
    """Return the models of a council by name, its own first. Raises `ConfigurationError`."""
    known = {**dependencies.named_models, "": NamedModel(dependencies.llm, dependencies.model)}
    names = tuple(
        dict.fromkeys((deliberation.model, *map(deliberation.model_of, deliberation.seats)))
    )
    if missing := [name for name in names if name not in known]:
        there = ", ".join(name or DEFAULT for name in known)
        raise ConfigurationError(
            f"the settings here have no model {missing[0]!r} any more; they have: {there}"
        )
    return {name: known[name] for name in names}


def _remote_models(
    deliberation: Deliberation, dependencies: Dependencies, seat_models: Mapping[str, NamedModel]
) -> Mapping[str, NamedModel]:
    """Return who answers for seats whose agents are remote: for their proposals alone, by
    `<seat>/elsewhere`.
    """
    return {
        f"{seat}/{REMOTE}": NamedModel(seat_models[seat].llm, dependencies.remote_agents[endpoint])
        for seat, endpoint in deliberation.elsewhere.items()
        if seat in seat_models and endpoint in dependencies.remote_agents
    }


async def _detect_reply_modes(models: Mapping[str, NamedModel]) -> Mapping[str, ReplyMode]:
    """Return how each model replies. One that does not answer is taken to reply as the others do;
    in blocks, which every model can write, where these differ. Raises what the first raised where
    none answers.
    """
    found = await asyncio.gather(
        *(one.model.reply_mode() for one in models.values()), return_exceptions=True
    )
    wrong = [one for one in found if isinstance(one, BaseException)]
    for error in wrong:
        if len(wrong) == len(found) or not isinstance(error, ModelUnavailable):
            raise error
    modes = {one for one in found if not isinstance(one, BaseException)}
    unknown: ReplyMode = next(iter(modes)) if len(modes) == 1 else "blocks"
    return {
        name: unknown if isinstance(one, BaseException) else one
        for name, one in zip(models, found, strict=True)
    }


async def _fit_to_windows(models: Mapping[str, NamedModel]) -> Mapping[str, NamedModel]:
    """Return the models with the windows and lengths of replies that their servers tell; one that
    does not answer is taken for unknown.
    """
    found = await asyncio.gather(
        *(one.model.describe() for one in models.values()), return_exceptions=True
    )
    fitted = {}
    for (name, one), about in zip(models.items(), found, strict=True):
        if isinstance(about, BaseException) and not isinstance(about, ModelUnavailable):
            raise about
        known = about if isinstance(about, ModelDescription) else ModelDescription()
        if one.llm.context_tokens:
            known = replace(known, source="llm.context_tokens")
        window = known.window or (NATIVE_WINDOW if known.reply == "tools" else 0)
        fitted[name] = replace(one, llm=one.llm.fitted(window, known.most_tokens), about=known)
    return fitted


async def create_context(
    deliberation: Deliberation,
    prepared: Prepared | None,
    dependencies: Dependencies,
    recording: Recording,
) -> DeliberationContext:
    """Lay out what the seats share. Raises what the model's `reply_mode` and the reader raise;
    where commits are merged, neither is asked.
    """
    events = EventWriter(
        dependencies.log,
        deliberation,
        dependencies.source,
        recording.recorded_ids,
        ProgressEstimate(deliberation, recording.progress) if deliberation.agent else None,
    )
    ledger = Ledger(deliberation.budget)
    used = _open_models(deliberation, dependencies)
    modes: Mapping[str, ReplyMode] = (
        dict.fromkeys(used, "blocks") if deliberation.merge else await _detect_reply_modes(used)
    )
    used = (
        {name: replace(one, llm=one.llm.fitted(0)) for name, one in used.items()}
        if deliberation.merge
        else await _fit_to_windows(used)
    )
    dependencies = replace(
        dependencies, model=used[deliberation.model].model, llm=used[deliberation.model].llm
    )
    setups = {
        name: await create_seat_setup(deliberation, prepared, dependencies, one, modes[name])
        for name, one in used.items()
    }
    seat_models = {seat: used[deliberation.model_of(seat)] for seat in deliberation.seats}
    now = datetime.now(UTC)
    left = max((deliberation.deadline - now).total_seconds(), 0.0)
    deadline = deliberation.deadline - timedelta(seconds=min(_CLOSING_SECONDS, left * 0.05))
    return DeliberationContext(
        deliberation=deliberation,
        prepared=prepared,
        dependencies=dependencies,
        events=events,
        model=RecordedModel(
            dependencies.model,
            ledger=ledger,
            events=events,
            recording=recording,
            settings=used[deliberation.model].llm,
            seat_models={**seat_models, **_remote_models(deliberation, dependencies, seat_models)},
            clean=dependencies.clean,
            owns_work=dependencies.owns_work,
            reservation=dependencies.reservation,
            steering=dependencies.steering,
            publish_partial=dependencies.publish_partial,
            pause_gate=dependencies.pause_gate,
        ),
        ledger=ledger,
        work_deadline=deadline - timedelta(seconds=min(_GRACE_SECONDS, left * _GRACE_SHARE)),
        deadline=deadline,
        seat_states=tuple(
            SeatState(seat, number)
            for number, seat in enumerate(
                deliberation.seats, deliberation.fork.number if deliberation.fork else 0
            )
        ),
        seat_models=seat_models,
        setups=setups,
        evaluator=_create_evaluator(deliberation, prepared, dependencies, events)
        if prepared
        else None,
    )


def _create_evaluator(
    deliberation: Deliberation, prepared: Prepared, dependencies: Dependencies, events: EventWriter
) -> Evaluator:
    places = asyncio.Semaphore(_CHECKS_AT_ONCE)
    return Evaluator(
        CleanCheckoutRunner(
            deliberation, prepared, dependencies.workspaces, dependencies.read_file, places
        ),
        events,
        dependencies.clean,
    )
