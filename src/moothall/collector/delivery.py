"""Making the winner a branch where its owner finds it."""

from __future__ import annotations

import re
import textwrap
from dataclasses import replace

from moothall import telemetry
from moothall.domain.outcome import Outcome, Result
from moothall.domain.repository import Base
from moothall.domain.secrets import HOLE
from moothall.domain.task import FORGE, Deliberation, RepositoryRef
from moothall.errors import MoothallError, PatchRefused
from moothall.ports import Repositories

log = telemetry.get_logger(__name__)

_MESSAGE = 4_000
_TITLE = 72  # characters of the first line of a commit message
_TRAILER = re.compile(r"\s*(?:[\w-]+-by|deliberation|winner|skip-checks)\s*:", re.IGNORECASE)
_SKIP = re.compile(
    r"\[(?:skip|no|ci)[ -](?:ci|skip|actions|checks)\]|\[(?:actions|azurepipelines)[ "
    r"-]skip\]|\*\*\*NO_CI\*\*\*",
    re.IGNORECASE,
)


async def deliver(
    repositories: Repositories, deliberation: Deliberation, outcome: Outcome
) -> Outcome:
    """Make the winner a branch. That it could not be made does not undo the decision; it is
    told.
    """
    winner = outcome.results[0]
    branch = f"moothall/{deliberation.task_id}"
    asked = deliberation.repository or RepositoryRef()
    # The registry's id where it has one: a URL would be fetched and checked again.
    ref = RepositoryRef(
        id=asked.id, url="" if asked.id else asked.url, ref=deliberation.base_sha or ""
    )
    try:
        with (
            telemetry.span("deliver", {"moothall.branch": branch}),
            telemetry.metrics.DELIVER_SECONDS.time(),
        ):
            base = await repositories.resolve(ref, tenant=deliberation.tenant)
            diff = await _exact(repositories, base, winner)
            sha = await repositories.deliver(
                base, diff, branch, _message(deliberation, outcome), deliberation.merge
            )
    except MoothallError as error:
        log.warning(
            "delivery failed", task_id=deliberation.task_id, code=error.code, reason=error.message
        )
        said = (
            f"{winner.seat} won, but branch {branch} could not be made: {error.message} "
            f"[{error.code}]"
        )
        return replace(outcome, final_state="failed", error_message=said)
    return replace(outcome, branch=branch, commit_sha=sha)


async def _exact(repositories: Repositories, base: Base, winner: Result) -> str:
    """Return the winner's diff as it was run: the log's may lack what stood in it and looked like a
    secret, and the commit has it.

    Raises `PatchRefused` where that is gone and something is missing in what the diff adds: nothing
    is delivered that was not run.
    """
    if HOLE not in winner.diff or not winner.commit_sha:
        return winner.diff
    try:
        return await repositories.diff(base, winner.commit_sha)
    except PatchRefused:
        if any(HOLE in line for line in winner.diff.splitlines() if line.startswith("+")):
            raise
        return winner.diff  # a hole in what it only stands beside would not apply


def _message(deliberation: Deliberation, outcome: Outcome) -> str:
    """The same for the same decision, so that delivering again makes the same commit."""
    title = title_of(deliberation.description)
    # On a forge, words in a commit message have effects: they close issues and notify people.
    own = "" if deliberation.origin == FORGE else own_message(outcome.results[0].message)
    return (
        f"{own or title}\n\nDeliberation: {deliberation.task_id}\nWinner: {outcome.winner_id} "
        f"({outcome.level.words})\n"
    )


def title_of(description: str) -> str:
    """Return the first line of a commit message for a task: its first sentence if that is short
    enough, else whole words.
    """
    text = " ".join(description.strip().partition("\n\n")[0].split())
    sentence = text.partition(". ")[0]
    if len(text) <= _TITLE:
        return text
    if len(sentence) <= _TITLE:
        return sentence
    words = textwrap.shorten(text, _TITLE, placeholder="…")
    return words if words != "…" else f"{text[: _TITLE - 1]}…"


def own_message(message: str) -> str:
    """Clean a seat's own commit message: printable lines, no trailers, no words that skip CI."""
    text = "\n".join(
        "".join(sign if sign.isprintable() else " " for sign in line)
        for line in message.splitlines()
    )
    while _SKIP.search(text):  # what is left may be another: "[skip[skip ci] ci]"
        text = _SKIP.sub("", text)
    kept = [line.rstrip() for line in text.split("\n") if not _TRAILER.match(line)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip()[:_MESSAGE]
