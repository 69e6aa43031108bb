"""Delivery of the winner as a branch in its repository."""

from __future__ import annotations

import re
import textwrap
from dataclasses import replace

from moothall import telemetry
from moothall.domain.outcome import Outcome, Result
from moothall.domain.repository import Base
from moothall.domain.task import FORGE, Deliberation, RepositoryRef
from moothall.domain.text import HOLE, is_masked
from moothall.errors import MoothallError, PatchRefused
from moothall.ports import Repositories

log = telemetry.get_logger(__name__)

_MAX_MESSAGE_CHARS = 4_000
_MAX_TITLE_CHARS = 72
_TRAILER = re.compile(r"\s*(?:[\w-]+-by|deliberation|winner|skip-checks)\s*:", re.IGNORECASE)
_SKIP_CI = re.compile(
    r"\[(?:skip|no|ci)[ -](?:ci|skip|actions|checks)\]|\[(?:actions|azurepipelines)[ "
    r"-]skip\]|\*\*\*NO_CI\*\*\*",
    re.IGNORECASE,
)


async def deliver(
    repositories: Repositories, deliberation: Deliberation, outcome: Outcome
) -> Outcome:
    """Deliver the winner as a branch.

    A failure does not revoke the decision; the outcome describes it.
    """
    winner = outcome.results[0]
    branch = f"moothall/{deliberation.task_id}"
    requested_ref = deliberation.repository or RepositoryRef()
    # Prefer the registry's id: a URL would be fetched and checked again.
    ref = RepositoryRef(
        id=requested_ref.id,
        url="" if requested_ref.id else requested_ref.url,
        ref=deliberation.base_sha or "",
    )
    try:
        with (
            telemetry.span("deliver", {"moothall.branch": branch}),
            telemetry.metrics.DELIVER_SECONDS.time(),
        ):
            base = await repositories.resolve(ref, tenant=deliberation.tenant)
            diff = await find_unmasked_diff(repositories, base, winner)
            sha = await repositories.deliver(
                base, diff, branch, _commit_message(deliberation, outcome), deliberation.merge
            )
    except MoothallError as error:
        log.warning(
            "delivery failed", task_id=deliberation.task_id, code=error.code, reason=error.message
        )
        message = (
            f"{winner.seat} won, but branch {branch} could not be made: {error.message} "
            f"[{error.code}]"
        )
        return replace(outcome, final_state="failed", error_message=message)
    return replace(outcome, branch=branch, commit_sha=sha)


async def find_unmasked_diff(repositories: Repositories, base: Base, result: Result) -> str:
    """Return the diff of a result as it was run.

    The log's diff may lack text that looked like a secret; the commit has it. Raises `PatchRefused`
    if the commit is gone and an added line is masked, since only a tested diff may be used.
    """
    if HOLE not in result.diff or not result.commit_sha:
        return result.diff
    try:
        return await repositories.diff(base, result.commit_sha)
    except PatchRefused:
        if is_masked(result.diff):
            raise
        return result.diff  # a masked context line would not apply


def _commit_message(deliberation: Deliberation, outcome: Outcome) -> str:
    """Return a message that depends on the decision only, so that a repeated delivery makes the
    same commit.
    """
    title = commit_title(deliberation.description)
    # On a forge, a commit message can close issues and notify people.
    own = "" if deliberation.origin == FORGE else clean_commit_message(outcome.results[0].message)
    return (
        f"{own or title}\n\nDeliberation: {deliberation.task_id}\nWinner: {outcome.winner_id} "
        f"({outcome.level.words})\n"
    )


def commit_title(description: str) -> str:
    """Return the first line of a commit message: the task's first sentence if it is short enough,
    else its first words.
    """
    text = " ".join(description.strip().partition("\n\n")[0].split())
    sentence = text.partition(". ")[0]
    if len(text) <= _MAX_TITLE_CHARS:
        return text
    if len(sentence) <= _MAX_TITLE_CHARS:
        return sentence
    shortened = textwrap.shorten(text, _MAX_TITLE_CHARS, placeholder="…")
    return shortened if shortened != "…" else f"{text[: _MAX_TITLE_CHARS - 1]}…"


def clean_commit_message(message: str) -> str:
    """Return a seat's commit message with printable lines only, without trailers and markers that
    skip CI.
    """
    text = "\n".join(
        "".join(char if char.isprintable() else " " for char in line)
        for line in message.splitlines()
    )
    while _SKIP_CI.search(text):  # the rest may form another marker: "[skip[skip ci] ci]"
        text = _SKIP_CI.sub("", text)
    lines = [line.rstrip() for line in text.split("\n") if not _TRAILER.match(line)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()[:_MAX_MESSAGE_CHARS]
