"""Seats that are not our own agents: a harness in the seat's workspace, or a remote agent."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from datetime import datetime

from moothall.authorization.checks import first_covered
from moothall.concurrency import seconds_until
from moothall.deliberation.attempt import Draft, MalformedReplies, NoChanges, append_left_out
from moothall.deliberation.context import DeliberationContext, SeatState
from moothall.deliberation.judging.clean_runs import workspace_name
from moothall.deliberation.recorded_model import REMOTE
from moothall.deliberation.seat_setup import grant_of
from moothall.domain.chat import (
    ChatReply,
    ChatRequest,
    HarnessReport,
    HarnessTask,
    Message,
    ModelQuestion,
)
from moothall.domain.repository import Patch
from moothall.domain.task import Deliberation
from moothall.errors import (
    ConfigurationError,
    ContextOverflow,
    DeadlineExceeded,
    MoothallError,
    PatchRefused,
)
from moothall.ports import Workspace
from moothall.tools.catalogue import Danger

# Seats that an agent of another project works on: a harness in the seat's workspace, with the
# seat's model.
#
# The harness has no network and no key. Its model calls are made here, like those of any seat: they
# are charged, recorded and never repeated once recorded.


_MAX_PROMPT_BYTES = 4_000_000
"""Half the maximum size of an event, because the prompt is recorded with its reply."""
_CLOSING_SECONDS = 5.0  # of a seat's time, to collect what was changed
_INSTRUCTIONS = (
    "Change the files in this folder; there is no network. Do not commit. Nobody can answer "
    "questions. At the end, say in a few sentences what you changed and why."
)
_EXECUTING_TOOL, _WRITING_PREFIX = "code.shell", "files."


def harness_of(council: DeliberationContext, seat: str) -> tuple[str, ...]:
    """Return the command of the harness that works on a seat, or an empty tuple. Our own agent
    writes answers in text.
    """
    deliberation = council.deliberation
    if council.prepared is None or deliberation.merges(seat) or deliberation.is_answer(""):
        return ()
    return council.seat_models.by_seat[seat].llm.harness


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
    run, prepared = council.dependencies.answerers.run_harness, council.prepared
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
        report = await run(workspace, task, calls.request_reply)
        patch = await _collect_patch(council, workspace, report)
    if not patch.diff:
        if calls.failed is not None:
            raise calls.failed
        reason = report.stopped or "it finished"
        raise (DeadlineExceeded if report.stopped else NoChanges)(
            f"{task.argv[0]} changed nothing: {reason}"
        )
    text = council.dependencies.clean(report.text)
    return Draft(append_left_out(text, tuple(patch.ignored)), patch)


async def _collect_patch(
    council: DeliberationContext, workspace: Workspace, report: HarnessReport
) -> Patch:
    """Return the changes. Raises `PatchRefused` for changes that the role may not make."""
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
    seat_model = council.seat_models.by_seat[seat_state.seat]
    gateway, deliberation = council.dependencies.gateway, council.deliberation
    grant = grant_of(deliberation, gateway, council.prepared)
    names = {spec.name for spec in gateway.list_tools(deliberation.tenant, grant)}
    return HarnessTask(
        argv=seat_model.llm.harness,
        prompt=_write_prompt(deliberation, remarks),
        model=seat_model.about.model or seat_model.llm.model or "model",
        window=seat_model.llm.context_tokens,
        max_tokens=seat_model.llm.max_tokens,
        seconds=max(seconds_until(deadline) - _CLOSING_SECONDS, 1.0),
        variables=tuple(seat_model.llm.harness_env.items()),
        may_execute=_EXECUTING_TOOL in names,
        may_write=any(spec.startswith(_WRITING_PREFIX) and spec != "files.read" for spec in names),
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
        self._number = max(map(_call_number, self._recorded), default=0)
        self.failed: MoothallError | None = None

    async def request_reply(self, question: ModelQuestion) -> ChatReply:
        """Make a call. Raises the errors of the model and of the budget."""
        council, llm = self._council, self._council.seat_models.by_seat[self._seat].llm
        require_recordable(question)
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
            return await council.model.request_reply(request)
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
            if model.is_repeated(call_id, messages):
                del self._recorded[call_id]
                return call_id, messages
        self._number += 1
        call_id = f"{self._prefix}{self._number}"
        return call_id, _with_steering(question, model.steering_for(call_id))


def require_recordable(question: ModelQuestion) -> None:
    """Raise `ContextOverflow` for a prompt that could not be recorded."""
    parts = [
        (message.content, *(call.arguments for call in message.calls))
        for message in question.messages
    ]
    if (size := len(json.dumps(parts, ensure_ascii=False).encode())) > _MAX_PROMPT_BYTES:
        raise ContextOverflow(
            f"the prompt has {size} bytes; at most {_MAX_PROMPT_BYTES} can be recorded"
        )


def _with_steering(question: ModelQuestion, steering: Sequence[str]) -> tuple[Message, ...]:
    added = (Message("user", "\n\n".join(steering)),) if steering else ()
    return (*question.messages, *added)


def _call_number(call_id: str) -> int:
    number = call_id.rpartition(".")[2]
    return int(number) if number.isdecimal() else 0


# The seat of a remote agent: its prompt, and its answer, which is as untrusted as any other.


_FENCED = re.compile(r"```(?:diff|patch)\n(.*?)^```", re.DOTALL | re.MULTILINE)


async def ask_remote(council: DeliberationContext, seat_state: SeatState, endpoint: str) -> Draft:
    """Ask the seat's agent once, and return its answer and change as a draft.

    Raises `ConfigurationError`, `NoChanges`, `PatchRefused`, `MalformedReplies`, and errors of the
    model, the budget and the workspace.
    """
    if endpoint not in council.dependencies.answerers.remote:
        raise ConfigurationError(
            f"the settings here do not allow the agent at {endpoint} any more (agents.endpoints)"
        )
    request = ChatRequest(
        call_id=f"{council.deliberation.task_id}/{seat_state.seat}/{REMOTE}/0.1",
        messages=_build_prompt(council.deliberation),
        max_tokens=council.seat_models.by_seat[seat_state.seat].llm.max_tokens,
        deadline=council.deadlines.work,
    )
    # Without secrets, as recorded: a repeated run must read the same answer.
    text, diff = _read_answer(
        council.dependencies.clean((await council.model.request_reply(request)).text)
    )
    if council.deliberation.is_answer(diff) and text.strip():
        return Draft(text)
    if council.prepared is None or not diff.strip():
        raise NoChanges(
            f"the remote agent finished and {'changed' if council.prepared else 'answered'} nothing"
        )
    grant = grant_of(council.deliberation, council.dependencies.gateway, council.prepared)
    if all(
        spec.danger is Danger.READ
        for spec in council.dependencies.gateway.list_tools(council.deliberation.tenant, grant)
    ):
        raise PatchRefused(
            "This seat has no tool that changes files, so it cannot propose a change."
        )
    name = workspace_name(council.deliberation.task_id, seat_state.seat)
    async with council.dependencies.workspaces.open(
        council.prepared, name, patch=diff
    ) as workspace:
        patch = await workspace.patch(f"what the agent at {endpoint} changed")
    if protected := first_covered(grant.protected, patch.paths):
        raise PatchRefused(f"{protected!r} may not be changed by this role.")
    return Draft(append_left_out(text, tuple(patch.ignored)), patch)


def _build_prompt(deliberation: Deliberation) -> tuple[Message, ...]:
    """Return the prompt of a remote agent: its context as JSON, then the task."""
    context: dict[str, object] = {"role": deliberation.role}
    if deliberation.repository is not None and deliberation.base_sha is not None:
        repository = (
            {"url": deliberation.repository.url}
            if deliberation.repository.url
            else {"id": deliberation.repository.id}
        )
        context["repository"] = {**repository, "ref": deliberation.base_sha}
    checks = [f"- {shlex.join(argv)}" for argv in deliberation.checks.values()]
    check_texts = (
        ["It is done when these commands succeed:\n" + "\n".join(checks)] if checks else []
    )
    query = "\n\n".join(
        part
        for part in (
            deliberation.description,
            deliberation.context,
            deliberation.constraints.rubric,
            *deliberation.constraints.requirements,
            *check_texts,
        )
        if part
    )
    return Message("system", json.dumps(context)), Message("user", query)


def _read_answer(text: str) -> tuple[str, str]:
    """Return the agent's text, and its diff: a field of the answer, or the last fenced diff in the
    text.
    """
    try:
        answer = json.loads(text)
        summary, diff = str(answer["result"]), str(answer["diff"])
        return summary, diff or next(iter(_FENCED.findall(summary)[-1:]), "")
    except (ValueError, TypeError, KeyError) as error:
        raise MalformedReplies(
            "malformed answer of the remote agent: it needs a result and a diff"
        ) from error
