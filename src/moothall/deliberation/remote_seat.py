"""The seat of a remote agent: its prompt, and its answer, which is as untrusted as any other."""

from __future__ import annotations

import json
import re
import shlex

from moothall.authorization.paths import first_covered
from moothall.deliberation.attempt_state import Draft, MalformedReplies, NoChanges, append_left_out
from moothall.deliberation.context import DeliberationContext, SeatState
from moothall.deliberation.judging.clean_runs import workspace_name
from moothall.deliberation.recorded_model import REMOTE
from moothall.deliberation.seat_setup import grant_of
from moothall.domain.chat import ChatRequest, Message
from moothall.domain.task import Deliberation
from moothall.errors import ConfigurationError, PatchRefused
from moothall.tools.catalogue import Danger

_FENCED = re.compile(r"```(?:diff|patch)\n(.*?)^```", re.DOTALL | re.MULTILINE)


async def ask_remote(council: DeliberationContext, seat_state: SeatState, endpoint: str) -> Draft:
    """Ask the seat's agent once, and return its answer and change as a draft.

    Raises `ConfigurationError`, `NoChanges`, `PatchRefused`, `MalformedReplies`, and errors of the
    model, the budget and the workspace.
    """
    if endpoint not in council.dependencies.remote_agents:
        raise ConfigurationError(
            f"the settings here do not allow the agent at {endpoint} any more (agents.endpoints)"
        )
    request = ChatRequest(
        call_id=f"{council.deliberation.task_id}/{seat_state.seat}/{REMOTE}/0.1",
        messages=_build_prompt(council.deliberation),
        max_tokens=council.seat_models[seat_state.seat].llm.max_tokens,
        deadline=council.work_deadline,
    )
    # Without secrets, as recorded: a repeated run must read the same answer.
    text, diff = _read_answer(council.dependencies.clean((await council.model.ask(request)).text))
    if council.deliberation.is_answer(diff) and text.strip():
        return Draft(text)
    if council.prepared is None or not diff.strip():
        raise NoChanges(
            f"the remote agent finished and {'changed' if council.prepared else 'said'} nothing"
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
