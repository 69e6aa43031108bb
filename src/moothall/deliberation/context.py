"""The context of a running deliberation: its dependencies, shared state and seats."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from moothall.authorization.budgets import Reservation
from moothall.authorization.checks import CallContext
from moothall.authorization.gateway import ToolGateway
from moothall.config import EvidenceSettings, LimitSettings, LlmSettings
from moothall.config.models import DEFAULT, NATIVE_WINDOW
from moothall.deliberation.agent import AgentLoop
from moothall.deliberation.attempt import Draft
from moothall.deliberation.code_blocks import SUB_AGENT_LIMITS, SubAgentLimits
from moothall.deliberation.event_writer import EventWriter, ProgressEstimate, PublishPartial
from moothall.deliberation.judging.clean_runs import CleanCheckoutRunner
from moothall.deliberation.judging.evaluator import Evaluator
from moothall.deliberation.judging.further_runs import BaseFailures
from moothall.deliberation.prompts.excerpts import RepoMapper
from moothall.deliberation.prompts.prompts import task_parts
from moothall.deliberation.recorded_model import (
    REMOTE,
    NamedModel,
    PauseGate,
    RecordedModel,
    Recording,
)
from moothall.deliberation.seat_setup import SeatSetup, create_seat_setup, grant_of
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
from moothall.domain.ids import Principal, seed_of
from moothall.domain.proposal import Candidate, Review, SeatStatus
from moothall.domain.repository import Prepared
from moothall.domain.task import Deliberation
from moothall.domain.text import scrub
from moothall.domain.tool import BLOCK_LIMITS, BlockLimits
from moothall.errors import BusUnavailable, ConfigurationError, ModelUnavailable, MoothallError
from moothall.ports import (
    ChatModel,
    Log,
    MergeCommits,
    ReadFile,
    RunCode,
    RunHarness,
    Workspace,
    Workspaces,
)

_EVALUATION_SHARE = 0.25  # the share of the remaining time for re-checks, cross-tests and reviews
_MAX_EVALUATION_SECONDS = 120.0
_CLOSING_SECONDS = 2.0
PARALLEL_CHECKS = 2
"""The number of re-checks of one deliberation that run at the same time on one machine."""


@dataclass(frozen=True, slots=True)
class SeatLimits:
    """Limits of a seat that are not settings.

    attempts: the attempts of a seat that makes no progress, including the first. function_attempts:
    the attempts at one function; more rarely help. function_turns: the replies of an attempt at one
    function; further attempts rewrite the function instead of repairing it. patience_seconds: the
    minimum time that other seats get after a proven answer.
    """

    attempts: int = 3
    function_attempts: int = 2
    function_turns: int = 1
    patience_seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class Answerers:
    """The models, remote agents and harnesses that answer on seats.

    model, llm: the default model and its settings. named: the other configured models.
    remote: remote agents, by endpoint. run_harness: runs harnesses on seats whose models have one;
    None if it is not installed.
    """

    model: ChatModel
    llm: LlmSettings = field(default_factory=LlmSettings)
    named: Mapping[str, NamedModel] = field(default_factory=dict)
    remote: Mapping[str, ChatModel] = field(default_factory=dict)
    run_harness: RunHarness | None = None


@dataclass(frozen=True, slots=True)
class RepositoryAccess:
    """Access to repositories.

    mapper: finds the relevant parts of a repository for a task; None: prompts show only whole
    files. merge: merges commits.
    """

    read_file: ReadFile
    mapper: RepoMapper | None = None
    merge: MergeCommits | None = None


@dataclass(frozen=True, slots=True)
class PythonBlocks:
    """The runner of Python blocks and its limits. `run_code` is None if blocks cannot be run."""

    run_code: RunCode | None = None
    limits: BlockLimits = BLOCK_LIMITS
    sub_agents: SubAgentLimits = SUB_AGENT_LIMITS


@dataclass(frozen=True, slots=True)
class CouncilRules:
    """The limits of deliberations and seats, and the evidence to gather.

    count_parallel_checks: returns how many re-checks of one deliberation may run at a time.
    """

    limits: LimitSettings = field(default_factory=LimitSettings)
    evidence: EvidenceSettings = field(default_factory=EvidenceSettings)
    seats: SeatLimits = SeatLimits()
    count_parallel_checks: Callable[[], int] = lambda: PARALLEL_CHECKS


@dataclass(frozen=True, slots=True)
class Control:
    """The host's controls of one deliberation.

    owns_work: returns True while this process owns the deliberation; called before each model call.
    reservation: shares of the story's budget and of the tenant's quotas. steering: steering
    messages by event id; the host adds new ones. publish_partial: publishes the partial replies of
    seats. pause_gate: delays turns while the deliberation is paused.
    """

    owns_work: Callable[[], bool] = lambda: True
    reservation: Reservation | None = None
    steering: Mapping[str, str] = field(default_factory=dict)
    publish_partial: PublishPartial | None = None
    pause_gate: PauseGate | None = None


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The dependencies of deliberations. A process has one instance, except for `control`.

    clean: removes the operator's secrets from prompts.
    """

    answerers: Answerers
    gateway: ToolGateway
    workspaces: Workspaces
    repositories: RepositoryAccess
    log: Log
    rules: CouncilRules = field(default_factory=CouncilRules)
    python: PythonBlocks = field(default_factory=PythonBlocks)
    source: str = "host"
    clean: Callable[[str], str] = scrub
    base_failures: BaseFailures = field(default_factory=BaseFailures)
    control: Control = field(default_factory=Control)


@dataclass(slots=True)
class SeatState:
    """The state of a seat. `judged` and `drafts` begin with the original proposal. `status`, `code`
    and `message` say how a seat without a proposal ended.

    stuck_reason: why its last attempt got stuck.
    """

    seat: str
    number: int
    agent: AgentLoop | ToolLoop | None = None
    judged: list[Candidate] = field(default_factory=list)
    drafts: list[Draft] = field(default_factory=list)
    status: SeatStatus = SeatStatus.UNSTARTED
    code: str = ""
    message: str = ""
    stuck_reason: str = ""

    @property
    def latest(self) -> Candidate:
        """The seat's current proposal. The seat must have proposed."""
        return self.judged[-1]

    def record_end(self, status: SeatStatus, code: str = "", message: str = "") -> None:
        """Record how the seat ended, unless it has proposed."""
        if not self.drafts:
            self.status, self.code, self.message = status, code, message


@dataclass(slots=True)
class ProposingState:
    """The approaches and waves of the seats of a council.

    wave: the round of the second wave; 0 before it. notes: the attempts and results of the first
    wave, for the seats of the second.
    """

    approaches: tuple[str, ...] = ()
    approach_source: str = "none"
    stopped_early: bool = False
    wave: int = 0
    notes: str = ""


@dataclass(slots=True)
class JudgingState:
    """The results of judging, apart from the results of checks.

    missing_reviews: the messages about missing reviews, by candidate and reviewer.
    answers_equivalent: the tie-breaker found that the best answers behave the same. superseded: the
    existing tests that the task supersedes, each with the reason. changes_read: candidates whose
    changes of existing tests were compared with the task. contradictions: the reasons why the tests
    of a candidate contradict the task, by candidate; '' if they do not.
    """

    reviews: list[Review] = field(default_factory=list)
    missing_reviews: dict[tuple[str, str], str] = field(default_factory=dict)
    answers_equivalent: bool = False
    superseded: dict[str, str] = field(default_factory=dict)
    changes_read: set[str] = field(default_factory=set)
    contradictions: dict[str, str] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(frozen=True, slots=True)
class Deadlines:
    """The deadline of the seats' work, and the deadline of the whole deliberation."""

    work: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class SeatModels:
    """The model of each seat, and the setups of seats by the name of their model."""

    by_seat: Mapping[str, NamedModel]
    setups: Mapping[str, SeatSetup]


@dataclass(slots=True)
class DeliberationContext:
    """One running deliberation. `dependencies` has the model for calls that belong to no seat."""

    deliberation: Deliberation
    prepared: Prepared | None
    dependencies: Dependencies
    events: EventWriter
    model: RecordedModel
    ledger: Ledger
    deadlines: Deadlines
    seat_states: tuple[SeatState, ...]
    seat_models: SeatModels
    evaluator: Evaluator | None = None
    proposing: ProposingState = field(default_factory=ProposingState)
    judging: JudgingState = field(default_factory=JudgingState)

    @property
    def about_text(self) -> bool:
        """True if the deliberation has no repository."""
        return self.prepared is None

    @property
    def task_text(self) -> str:
        """The task without the repository, for agents that compare tests with it."""
        return "\n\n".join(task_parts(self.deliberation))

    def setup_of(self, seat: str) -> SeatSetup:
        """Return the setup of a seat, or of calls that belong to no seat ("-")."""
        return self.seat_models.setups[self.deliberation.model_of(seat)]

    @property
    def reply_mode(self) -> str:
        """How seats call tools, for the start event: `mixed` if their models differ."""
        modes = {self.setup_of(seat).reply_mode for seat in self.deliberation.seats}
        return modes.pop() if len(modes) == 1 else "mixed"

    @property
    def limits(self) -> dict[str, Any]:
        """The limits of each seat and of the whole council, for the start event."""
        seconds = round((self.deadlines.end - datetime.now(UTC)).total_seconds())
        turns = max(self.setup_of(seat).max_turns for seat in self.deliberation.seats)
        return {
            "turns": turns,
            "tokens": self.deliberation.budget.tokens,
            "calls": self.deliberation.budget.calls,
            "seconds": seconds,
        }

    @property
    def models(self) -> list[dict[str, Any]]:
        """The models of the seats, each once, for the start event. Windows and replies are in
        tokens. Empty if no model is called.
        """
        if self.deliberation.asks_no_model:
            return []
        models = {
            self.deliberation.model_of(seat): seat_model
            for seat, seat_model in self.seat_models.by_seat.items()
        }
        return [
            {
                "profile": name,
                "model": seat_model.about.model,
                "api": seat_model.about.api,
                "reply": self.seat_models.setups[name].reply_mode,
                "turns": self.seat_models.setups[name].max_turns,
                "window": seat_model.llm.context_tokens,
                "window_source": seat_model.about.source,
                "reply_tokens": seat_model.llm.max_tokens,
                **({"harness": seat_model.llm.harness[0]} if seat_model.llm.harness else {}),
            }
            for name, seat_model in models.items()
        ]

    @property
    def guides(self) -> list[dict[str, str]]:
        """The repository's instructions for agents that the prompts name, for the start event."""
        digests: dict[str, str] = {}
        for setup in self.seat_models.setups.values():
            digests |= setup.guides.digests
        return [{"path": path, "sha256": digest} for path, digest in sorted(digests.items())]

    def attempts_of(self, seat: str) -> int:
        """Return how many attempts a seat has."""
        limits, setup = self.dependencies.rules.seats, self.setup_of(seat)
        if setup.function is None:
            return limits.attempts
        return min(limits.attempts, limits.function_attempts)

    def call_context_for(self, seat: str, workspace: Workspace, deadline: datetime) -> CallContext:
        """Return the call context of a seat, or of another agent, in a workspace."""
        gateway, deliberation = self.dependencies.gateway, self.deliberation
        context = CallContext(
            principal=Principal(deliberation.principal, deliberation.tenant),
            task_id=deliberation.task_id,
            seat=seat,
            role=deliberation.role,
            grant=grant_of(deliberation, gateway, self.prepared),
            workspace=workspace,
            workspace_id=workspace.id,
            deadline=deadline,
            ledger=self.ledger,
        )
        return gateway.with_token(context)

    def approach_of(self, seat_state: SeatState) -> str:
        """Return the approach of a seat, '' for none. A fork keeps the approach of the original
        seat.
        """
        if self.deliberation.fork is not None:
            return self.deliberation.fork.approach
        # Seats with native tools differ in their first step instead.
        has_native_tools = self.setup_of(seat_state.seat).tools is not None
        if has_native_tools or not self.proposing.approaches:
            return ""
        return self.proposing.approaches[seat_state.number]

    def temperature_of(self, seat: str) -> float:
        """Return a seat's temperature. It rises from 0.25 times the setting for the first seat to
        1.25 times for the last.
        """
        if self.deliberation.fork is not None:
            return self.deliberation.fork.temperature
        last_index = len(self.deliberation.seats) - 1
        share = self.deliberation.seats.index(seat) / last_index if last_index else 0.0
        return round(min(self.seat_models.by_seat[seat].llm.temperature * (0.25 + share), 2.0), 3)

    async def request_reply(
        self,
        step: str,
        messages: Sequence[Message],
        schema: ReplySchema | None,
        max_tokens: int,
        **options: Any,
    ) -> ChatReply | None:
        """Return the reply, or None if the model gives none. Raises `BusUnavailable`."""
        try:
            return await self.request_reply_or_raise(step, messages, schema, max_tokens, **options)
        except BusUnavailable:
            raise
        except MoothallError:
            return None

    async def request_reply_or_raise(
        self,
        step: str,
        messages: Sequence[Message],
        schema: ReplySchema | None,
        max_tokens: int,
        **options: Any,
    ) -> ChatReply:
        """Ask a model outside the conversations of the seats. Raises the errors of the model.

        `step` is the end of the call id. It begins with the name of the asking seat or agent. The
        seed is derived from it, unless `options` contains a seed. `options` are further fields of
        the `ChatRequest`.
        """
        setup = self.setup_of(step.partition("/")[0])
        if setup.native:  # strong models need tokens for reasoning
            max_tokens = max(max_tokens, setup.llm.max_tokens)
        request = ChatRequest(
            call_id=f"{self.deliberation.task_id}/{step}",
            messages=tuple(messages),
            max_tokens=max_tokens,
            schema=schema if setup.mode == "json" else None,
            **{
                "deadline": self.deadlines.end,
                "seed": seed_of(self.deliberation.seed, step),
                **options,
            },
        )
        return await self.model.request_reply(request)

    @property
    def judged(self) -> tuple[Candidate, ...]:
        """All candidates, ordered by seat, originals before revisions."""
        return tuple(item for seat_state in self.seat_states for item in seat_state.judged)

    @property
    def reviewed(self) -> tuple[Candidate, ...]:
        """All candidates with their reviews, as the collector ranks them."""
        reviewed = {(review.candidate, review.reviewer) for review in self.judging.reviews}
        missing = sorted(self.judging.missing_reviews.items(), key=lambda item: item[0][1])
        return tuple(
            replace(
                item,
                reviews=tuple(
                    review
                    for review in self.judging.reviews
                    if review.candidate == item.proposal.candidate
                ),
                missing=tuple(
                    message
                    for key, message in missing
                    if key[0] == item.proposal.candidate and key not in reviewed
                ),
            )
            for item in self.judged
        )

    @property
    def proposers(self) -> tuple[SeatState, ...]:
        """The seats whose proposals were judged."""
        return tuple(seat_state for seat_state in self.seat_states if seat_state.judged)


def _open_models(
    deliberation: Deliberation, dependencies: Dependencies
) -> Mapping[str, NamedModel]:
    """Return the council's models by name, the default first. Raises `ConfigurationError`."""
    known_models = {
        **dependencies.answerers.named,
        "": NamedModel(dependencies.answerers.llm, dependencies.answerers.model),
    }
    names = tuple(
        dict.fromkeys((deliberation.model, *map(deliberation.model_of, deliberation.seats)))
    )
    if unknown_names := [name for name in names if name not in known_models]:
        available = ", ".join(name or DEFAULT for name in known_models)
        raise ConfigurationError(
            f"the settings here have no model {unknown_names[0]!r} any more; they have: {available}"
        )
    return {name: known_models[name] for name in names}


def _remote_models(
    deliberation: Deliberation, dependencies: Dependencies, seat_models: Mapping[str, NamedModel]
) -> Mapping[str, NamedModel]:
    """Return the models of seats with remote agents. They are used for proposals only, as
    `<seat>/elsewhere`.
    """
    return {
        f"{seat}/{REMOTE}": NamedModel(
            seat_models[seat].llm, dependencies.answerers.remote[endpoint]
        )
        for seat, endpoint in deliberation.elsewhere.items()
        if seat in seat_models and endpoint in dependencies.answerers.remote
    }


async def _detect_reply_modes(models: Mapping[str, NamedModel]) -> Mapping[str, ReplyMode]:
    """Return the reply mode of each model.

    An unreachable model gets the common mode of the others. If their modes differ, it gets
    `blocks`, which every model can write. Raises the first error if no model can be reached.
    """
    results = await asyncio.gather(
        *(seat_model.model.reply_mode() for seat_model in models.values()), return_exceptions=True
    )
    failures = [result for result in results if isinstance(result, BaseException)]
    for error in failures:
        if len(failures) == len(results) or not isinstance(error, ModelUnavailable):
            raise error
    modes = {result for result in results if not isinstance(result, BaseException)}
    fallback: ReplyMode = next(iter(modes)) if len(modes) == 1 else "blocks"
    return {
        name: fallback if isinstance(result, BaseException) else result
        for name, result in zip(models, results, strict=True)
    }


async def _fit_to_windows(models: Mapping[str, NamedModel]) -> Mapping[str, NamedModel]:
    """Return the models with the context windows and reply lengths that their servers report.
    Unreachable models get the defaults.
    """
    descriptions = await asyncio.gather(
        *(seat_model.model.describe() for seat_model in models.values()), return_exceptions=True
    )
    fitted = {}
    for (name, seat_model), about in zip(models.items(), descriptions, strict=True):
        if isinstance(about, BaseException) and not isinstance(about, ModelUnavailable):
            raise about
        description = about if isinstance(about, ModelDescription) else ModelDescription()
        if seat_model.llm.context_tokens:
            description = replace(description, source="llm.context_tokens")
        window = description.window or (NATIVE_WINDOW if description.reply == "tools" else 0)
        fitted[name] = replace(
            seat_model,
            llm=seat_model.llm.fitted(window, description.most_tokens),
            about=description,
        )
    return fitted


async def _open_fitted_models(
    deliberation: Deliberation, dependencies: Dependencies
) -> tuple[Mapping[str, NamedModel], Mapping[str, ReplyMode]]:
    """Return the council's models, fitted to their context windows, and the reply modes. For a
    merge, the servers are not called, because it asks no model.
    """
    models = _open_models(deliberation, dependencies)
    if deliberation.asks_no_model:
        fitted = {
            name: replace(seat_model, llm=seat_model.llm.fitted(0))
            for name, seat_model in models.items()
        }
        return fitted, dict.fromkeys(models, "blocks")
    modes = await _detect_reply_modes(models)
    return await _fit_to_windows(models), modes


def _deadlines_of(deliberation: Deliberation) -> Deadlines:
    """Return the deadline of the seats' work, and the later one of the evaluation."""
    seconds_left = max((deliberation.deadline - datetime.now(UTC)).total_seconds(), 0.0)
    deadline = deliberation.deadline - timedelta(seconds=min(_CLOSING_SECONDS, seconds_left * 0.05))
    evaluation_seconds = min(_MAX_EVALUATION_SECONDS, seconds_left * _EVALUATION_SHARE)
    return Deadlines(deadline - timedelta(seconds=evaluation_seconds), deadline)


async def create_context(
    deliberation: Deliberation,
    prepared: Prepared | None,
    dependencies: Dependencies,
    recording: Recording,
) -> DeliberationContext:
    """Create the context of a deliberation. Raises the errors of a model's `reply_mode` and
    `describe`, which are not called for merges, and the errors of reading the repository.
    """
    events = EventWriter(
        dependencies.log,
        deliberation,
        dependencies.source,
        recording.recorded_ids,
        ProgressEstimate(deliberation, recording.progress) if deliberation.agent else None,
    )
    ledger = Ledger(deliberation.budget)
    models, modes = await _open_fitted_models(deliberation, dependencies)
    default = models[deliberation.model]
    answerers = replace(dependencies.answerers, model=default.model, llm=default.llm)
    dependencies = replace(dependencies, answerers=answerers)
    setups = {
        name: await create_seat_setup(deliberation, prepared, dependencies, seat_model, modes[name])
        for name, seat_model in models.items()
    }
    seat_models = {seat: models[deliberation.model_of(seat)] for seat in deliberation.seats}
    first_number = deliberation.fork.number if deliberation.fork else 0
    return DeliberationContext(
        deliberation=deliberation,
        prepared=prepared,
        dependencies=dependencies,
        events=events,
        model=RecordedModel(
            dependencies.answerers.model,
            ledger=ledger,
            events=events,
            recording=recording,
            settings=default.llm,
            seat_models={**seat_models, **_remote_models(deliberation, dependencies, seat_models)},
            clean=dependencies.clean,
            owns_work=dependencies.control.owns_work,
            reservation=dependencies.control.reservation,
            steering=dependencies.control.steering,
            publish_partial=dependencies.control.publish_partial,
            pause_gate=dependencies.control.pause_gate,
        ),
        ledger=ledger,
        deadlines=_deadlines_of(deliberation),
        seat_states=tuple(
            SeatState(seat, number) for number, seat in enumerate(deliberation.seats, first_number)
        ),
        seat_models=SeatModels(seat_models, setups),
        evaluator=_create_evaluator(deliberation, prepared, dependencies, events)
        if prepared
        else None,
    )


def _create_evaluator(
    deliberation: Deliberation, prepared: Prepared, dependencies: Dependencies, events: EventWriter
) -> Evaluator:
    slots = asyncio.Semaphore(dependencies.rules.count_parallel_checks())
    return Evaluator(
        CleanCheckoutRunner(
            deliberation,
            prepared,
            dependencies.workspaces,
            dependencies.repositories.read_file,
            slots,
        ),
        events,
        dependencies.clean,
        dependencies.base_failures,
    )
