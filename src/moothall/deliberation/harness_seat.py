"""Seats that an agent of another project works on: a harness in the seat's workspace, with the
seat's model.

The harness has no network and no key. Its model calls are made here, like those of any seat: they
are charged, recorded and never repeated once recorded.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import datetime

from moothall.authorization.paths import first_covered
from moothall.concurrency import seconds_until
from moothall.deliberation.attempt_state import Draft, NoChanges, append_left_out
from moothall.deliberation.context import DeliberationContext, SeatState
from moothall.deliberation.judging.clean_runs import workspace_name
from moothall.deliberation.seat_setup import grant_of
from moothall.domain.chat import ChatReply, ChatRequest, Message
from moothall.domain.harness import HarnessReport, HarnessTask, ModelQuestion
from moothall.domain.repository import Patch
from moothall.domain.task import Deliberation
from moothall.errors import ConfigurationError, DeadlineExceeded, MoothallError, PatchRefused
from moothall.ports import Workspace
from moothall.tools.catalogue import Danger

_CLOSING_SECONDS = 5.0  # of a seat's time, to collect what was changed
_INSTRUCTIONS = (
    "Change the files in this folder; there is no network. Do not commit. Nobody can answer "
    "questions. At the end, say in a few sentences what you changed and why."
)
_EXECUTING, _WRITING = "code.shell", "files."


def harness_of(council: DeliberationContext, seat: str) -> tuple[str, ...]:
    """Return the command of the harness that works on a seat, or an empty tuple. Our own agent
    writes answers in text.
    """
    deliberation = council.deliberation
    if council.prepared is None or deliberation.merges(seat) or deliberation.is_answer(""):
        return ()
    return council.seat_models[seat].llm.harness


async def work(
    council: DeliberationContext,
    seat_state: SeatState,
    round_name: str,
    deadline: datetime,
    *,
    start: Draft | None = None,
    remarks: str = "",
) -> Draft:
    """Have the seat's harness work in a new workspace, from `start` if there is one, and return its
    change. `round_name` is the phase and the round, `remarks` the reviews of `start`.

    Raises `ConfigurationError`, `NoChanges`, `PatchRefused`, `WorkspaceFailed`, and errors of the
    model and the budget.
    """
    run, prepared = council.dependencies.run_harness, council.prepared
    if run is None or prepared is None:
        raise ConfigurationError("a harness needs the extra acp: pip install 'moothall[acp]'")
    calls = _ModelCalls(council, seat_state.seat, round_name, deadline)
    round_ = round_name.rpartition("/")[2]
    name = workspace_name(
        council.deliberation.task_id, seat_state.seat, *([f"r{round_}"] if round_ != "0" else ())
    )
    patch_before = start.patch.diff if start and start.patch else ""
    async with council.dependencies.workspaces.open(
        prepared, name, patch=patch_before
    ) as workspace:
        task = _create_task(council, seat_state, deadline, remarks)
        report = await run(workspace, task, calls.ask)
        patch = await _collect(council, workspace, report)
    if not patch.diff:
        if calls.failed is not None:
            raise calls.failed
        reason = report.stopped or "it finished"
        raise (DeadlineExceeded if report.stopped else NoChanges)(
            f"{task.argv[0]} changed nothing: {reason}"
        )
    text = council.dependencies.clean(report.text)
    return Draft(append_left_out(text, tuple(patch.ignored)), patch)


async def _collect(
    council: DeliberationContext, workspace: Workspace, report: HarnessReport
) -> Patch:
    """Return what was changed. Raises `PatchRefused` for what the role may not change."""
    gateway, deliberation = council.dependencies.gateway, council.deliberation
    patch = await workspace.patch(f"what {report.agent or 'the harness'} changed")
    grant = grant_of(deliberation, gateway, council.prepared)
    specs = gateway.list_tools(deliberation.tenant, grant)
    if patch.diff and all(spec.danger is Danger.READ for spec in specs):
        raise PatchRefused("This seat has no tool that changes files, so it cannot propose any.")
    if protected := first_covered(grant.protected, patch.paths):
        raise PatchRefused(f"{protected!r} may not be changed by this role.")
    return patch


def _create_task(
    council: DeliberationContext, seat_state: SeatState, deadline: datetime, remarks: str
) -> HarnessTask:
    named = council.seat_models[seat_state.seat]
    gateway, deliberation = council.dependencies.gateway, council.deliberation
    grant = grant_of(deliberation, gateway, council.prepared)
    names = {spec.name for spec in gateway.list_tools(deliberation.tenant, grant)}
    return HarnessTask(
        argv=named.llm.harness,
        prompt=_write_prompt(deliberation, remarks),
        model=named.about.model or named.llm.model or "model",
        window=named.llm.context_tokens,
        max_tokens=named.llm.max_tokens,
        seconds=max(seconds_until(deadline) - _CLOSING_SECONDS, 1.0),
        variables=tuple(named.llm.harness_env.items()),
        may_execute=_EXECUTING in names,
        may_write=any(spec.startswith(_WRITING) and spec != "files.read" for spec in names),
    )


def _write_prompt(deliberation: Deliberation, remarks: str) -> str:
    commands = "\n".join(f"- {shlex.join(argv)}" for argv in deliberation.checks.values())
    parts = (
        deliberation.description,
        deliberation.context,
        deliberation.constraints.rubric,
        *deliberation.constraints.requirements,
        f"It is done when these commands succeed:\n{commands}" if commands else "",
        f"You have worked on this before; the files are as you left them.\n\n{remarks}"
        if remarks
        else "",
        _INSTRUCTIONS,
    )
    return "\n\n".join(part for part in parts if part)


class _ModelCalls:
    """The model calls of a harness in one round. `failed`: the first error of a call.

    A harness that runs again after a crash asks the same: its calls get the numbers, and so the
    recorded replies, that they had.
    """

    def __init__(
        self, council: DeliberationContext, seat: str, round_name: str, deadline: datetime
    ) -> None:
        self._council, self._seat, self._deadline = council, seat, deadline
        self._prefix = f"{council.deliberation.task_id}/{seat}/{round_name}."
        self._recorded = dict.fromkeys(council.model.recorded_calls(self._prefix))
        self._number = max(map(_number, self._recorded), default=0)
        self.failed: MoothallError | None = None

    async def ask(self, question: ModelQuestion) -> ChatReply:
        """Make a call. Raises the errors of the model and of the budget."""
        council, llm = self._council, self._council.seat_models[self._seat].llm
        call_id, messages = self._choose_call(question)
        request = ChatRequest(
            call_id=call_id,
            messages=messages,
            max_tokens=min(question.max_tokens or llm.max_tokens, llm.max_tokens),
            deadline=self._deadline,
            temperature=question.temperature,
            seed=council.deliberation.seed,
            tools=tuple(question.tools),
        )
        try:
            return await council.model.ask(request)
        except MoothallError as error:
            self.failed = self.failed or error
            raise

    def _choose_call(self, question: ModelQuestion) -> tuple[str, tuple[Message, ...]]:
        """Return the id of the recorded call that asked the same, or a new id, and the messages
        with the steering messages of that call, which the harness does not know of.
        """
        model = self._council.model
        for call_id in self._recorded:
            messages = _with_steering(question, model.steering_for(call_id))
            if model.is_recorded(call_id, messages):
                del self._recorded[call_id]
                return call_id, messages
        self._number += 1
        call_id = f"{self._prefix}{self._number}"
        return call_id, _with_steering(question, model.steering_for(call_id))


def _with_steering(question: ModelQuestion, steering: Sequence[str]) -> tuple[Message, ...]:
    added = (Message("user", "\n\n".join(steering)),) if steering else ()
    return (*question.messages, *added)


def _number(call_id: str) -> int:
    number = call_id.rpartition(".")[2]
    return int(number) if number.isdecimal() else 0
