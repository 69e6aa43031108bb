"""A conversation: what was asked and answered before a question, and the files that it begins
on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from moothall.deliberation.conversation import Exchange, fit_to_window
from moothall.deliberation.prompts.text import fence
from moothall.domain.codec import load
from moothall.domain.event import EventType, Recorded
from moothall.domain.identity import Principal
from moothall.domain.ids import check_id, key_of
from moothall.domain.outcome import Outcome
from moothall.domain.task import Deliberation, DeliberationRequest, RepositoryRef
from moothall.domain.topic import Channel
from moothall.errors import InvalidRequest, NotFound
from moothall.ports import Log

_LONGEST = 100
"""Questions of a conversation that are read; what is older is left out."""
_BRIEF = 200


@dataclass(frozen=True, slots=True)
class EndedTask:
    """A deliberation that was decided."""

    d: Deliberation
    outcome: Outcome

    @property
    def files(self) -> RepositoryRef | None:
        """Where its files are as it left them; None about text."""
        if self.d.repository is None:
            return None
        return RepositoryRef(
            id=self.d.repository.id, ref=self.outcome.commit_sha or self.d.base_sha or ""
        )


async def find_request(log: Log, key: str) -> Recorded | None:
    """Return the request of a deliberation."""
    first = await log.first(Channel.RESULTS.of(key))
    if first is None or first.event.type is EventType.DELIBERATION_REQUESTED:
        return first
    async for recorded in log.replay((Channel.RESULTS.of(key),)):
        if recorded.event.type == EventType.DELIBERATION_REQUESTED:
            return recorded
    return None


async def find_decision(log: Log, key: str) -> Recorded | None:
    """Return the decision of a deliberation."""
    async for recorded in log.replay((Channel.RESPONSES.of(key),)):
        if recorded.event.type == EventType.DELIBERATION_DECIDED:
            return recorded
    return None


async def conversation(log: Log, follows: str, who: Principal) -> Sequence[EndedTask]:
    """Return what came before a question, the latest first. Raises `NotFound`, and `InvalidRequest`
    where the latest has not ended.
    """
    found: list[EndedTask] = []
    key = key_of(check_id(follows, "follows"), who.tenant)
    while key and len(found) < _LONGEST:
        asked = await find_request(log, key)
        end = (
            await find_decision(log, key)
            if asked is not None and asked.event.tenant == who.tenant
            else None
        )
        if asked is not None and end is not None:
            found.append(
                EndedTask(load(Deliberation, asked.event.data), load(Outcome, end.event.data))
            )
        elif found:
            break  # what is older was removed
        elif asked is None or asked.event.tenant != who.tenant:
            raise NotFound(f"no deliberation {follows!r} whose conversation could go on")
        else:
            raise InvalidRequest(
                f"deliberation {follows!r} has not ended: tell it what you have to say (steer), "
                "or wait for its answer"
            )
        key = found[-1].d.follows
    return found


def go_on_from(request: DeliberationRequest, before: EndedTask) -> DeliberationRequest:
    """Return a request that begins where the one before it ended, unless it says itself where."""
    if request.repository is not None or request.about_text:
        return request
    return replace(request, repository=before.files, about_text=before.files is None)


def thread_text(before: Sequence[EndedTask], budget: int) -> str:
    """Return questions and answers, oldest first, within about `budget` tokens: the older are
    condensed, the oldest left out.
    """
    said = [
        Exchange(fence("asked", one.d.description), fence("answered", _answer(one)), _brief(one))
        for one in reversed(before)
    ]
    return "\n\n".join(message.content for message in fit_to_window((), said, budget))


def _answer(one: EndedTask) -> str:
    outcome = one.outcome
    if not outcome.winner_id or not outcome.results:
        return f"(no answer: {outcome.error_message})"
    result = outcome.results[0]
    return (
        f"{result.content}\n\nwith this change, which the files have now:\n{result.diff}"
        if result.diff
        else result.content
    )


def _brief(one: EndedTask) -> str:
    words = " ".join(_answer(one).split())
    return fence("answered", words if len(words) <= _BRIEF else f"{words[: _BRIEF - 1]}…")
