"""The seat of a remote agent: what it is asked, and its answer taken as hostile as any other."""

from __future__ import annotations

import json
import re
import shlex

from moothall.authorization.paths import first_covered
from moothall.deliberation.attempt_state import Draft, MalformedReplies, NoChanges, with_left_out
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
    """Ask the seat's agent once, and return what it said and changed. Raises `ConfigurationError`,
    `NoChanges`, `PatchRefused`, `MalformedReplies`, and what model, budget and workspace raise.
    """
    if endpoint not in council.parts.remote_agents:
        raise ConfigurationError(
            f"the settings here do not allow the agent at {endpoint} any more (agents.endpoints)"
        )
    request = ChatRequest(
        call_id=f"{council.d.task_id}/{seat_state.seat}/{REMOTE}/0.1",
        messages=_prompt(council.d),
        max_tokens=council.seats[seat_state.seat].llm.max_tokens,
        deadline=council.work_until,
    )
    # Without secrets, as it is on record: after a restart it must be the same.
    said, diff = _read(council.parts.clean((await council.model.ask(request)).text))
    if council.d.is_answer(diff) and said.strip():
        return Draft(said)
    if council.prepared is None or not diff.strip():
        raise NoChanges(
            "the remote agent says that it is done and has "
            f"{'changed' if council.prepared else 'said'} nothing"
        )
    grant = grant_of(council.d, council.parts.gate, council.prepared)
    if all(
        spec.danger is Danger.READ
        for spec in council.parts.gate.list_tools(council.d.tenant, grant)
    ):
        raise PatchRefused(
            "This seat has no tool that changes files, so it cannot propose a change."
        )
    name = workspace_name(council.d.task_id, seat_state.seat)
    async with council.parts.workspaces.open(council.prepared, name, patch=diff) as workspace:
        patch = await workspace.patch(f"what the agent at {endpoint} changed")
    if held := first_covered(grant.protected, patch.paths):
        raise PatchRefused(f"{held!r} may not be changed by this role.")
    return Draft(with_left_out(said, tuple(patch.ignored)), patch)


def _prompt(d: Deliberation) -> tuple[Message, ...]:
    """What a remote agent is asked: what it is told as its context, as JSON, then the task."""
    about: dict[str, object] = {"role": d.role}
    if d.repository is not None and d.base_sha is not None:
        where = {"url": d.repository.url} if d.repository.url else {"id": d.repository.id}
        about["repository"] = {**where, "ref": d.base_sha}
    checks = [f"- {shlex.join(argv)}" for argv in d.checks.values()]
    told = ["It is done when these commands succeed:\n" + "\n".join(checks)] if checks else []
    query = "\n\n".join(
        part
        for part in (
            d.description,
            d.context,
            d.constraints.rubric,
            *d.constraints.requirements,
            *told,
        )
        if part
    )
    return Message("system", json.dumps(about)), Message("user", query)


def _read(text: str) -> tuple[str, str]:
    """Return what the agent said, and its diff: told beside it, or the last fenced block of one."""
    try:
        found = json.loads(text)
        said, diff = found["result"], found["diff"]
        return str(said), str(diff) or next(iter(_FENCED.findall(str(said))[-1:]), "")
    except (ValueError, TypeError, KeyError) as error:
        raise MalformedReplies(
            "what the remote agent said is no answer: there is no result and no diff"
        ) from error
