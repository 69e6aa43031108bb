"""Requests for the tasks of a plan."""

from __future__ import annotations

from collections.abc import Sequence

from moothall.config import LimitSettings
from moothall.domain.outcome import Outcome
from moothall.domain.plan import AtomicTask
from moothall.domain.task import DeliberationRequest, RepositoryRef


def task_request(
    task: AtomicTask,
    limits: LimitSettings,
    commits: Sequence[str] = (),
    outcomes: Sequence[Outcome] = (),
) -> DeliberationRequest:
    """Return the request for a task.

    `commits` are the commits with the work of earlier tasks, `outcomes` their outcomes. The council
    starts from the first commit, and its context has the answers of earlier text tasks.
    """
    repository = task.repository
    if repository is not None and commits:
        repository = RepositoryRef(id=repository.id, url=repository.url, ref=commits[0])
    texts = [task.context] if task.context else []
    texts += [
        f"{outcome.role}: {outcome.results[0].content}"
        for outcome in outcomes
        if outcome.results and not outcome.commit_sha
    ]
    # Prompts count three characters a token, and a longer context is refused.
    chars_per_text = limits.context_tokens * 3 // max(1, len(texts))
    return DeliberationRequest(
        description=task.description,
        role=task.role,
        task_id=task.task_id,
        constraints=task.constraints,
        repository=repository,
        story_id=task.case_id,
        plan_id=task.plan_id,
        origin="plan",
        about_text=repository is None,
        context="\n\n".join(text[: chars_per_text - 10] for text in texts),
    )
