"""What a request chooses for its council: which models and agents its seats use, which checks stand beside the repository's own, and what
tells it from others.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from moothall.config import Models
from moothall.domain.council import Council
from moothall.domain.task import VALIDATION, DeliberationRequest
from moothall.errors import InvalidRequest

_MOST_CHECKS, _CHECK_CHARS = 20, 4000


def models_of(request: DeliberationRequest, role: str, models: Models, council: Council | None) -> tuple[str, Mapping[str, str]]:
    """Return the council's model and those of seats that have another: what the request names goes before what a seat, the council
    and the role have. Raises `InvalidRequest`.
    """
    if request.merge:
        return "", {}
    wanted = request.model or (council.config.model_profile if council else "")
    model = models.choose(wanted) if wanted else models.of_role(role)
    agents = council.agents if council and not request.model else ()
    own = {agent.id: models.choose(name) for agent in agents if (name := agent.capabilities.model_profile)}
    return model, {seat: name for seat, name in own.items() if name != model}


def remote_seats(council: Council | None, endpoints: AbstractSet[str]) -> Mapping[str, str]:
    """Return the endpoints of seats whose agents are asked elsewhere: those that the settings allow."""
    return {agent.id: agent.endpoint for agent in (council.agents if council else ()) if agent.endpoint in endpoints}


def checks_of(request: DeliberationRequest) -> Mapping[str, tuple[str, ...]]:
    """Return the request's own checks as argv. Raises `InvalidRequest`."""
    if request.checks and request.about_text:
        raise InvalidRequest("a check needs a repository to run in; leave it out of a task about text")
    if len(request.checks) > _MOST_CHECKS:
        raise InvalidRequest(f"{len(request.checks)} checks are asked for; at most {_MOST_CHECKS}")
    return {f"{VALIDATION}-{number}": _words(line) for number, line in enumerate(request.checks, 1)}


def _words(line: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(line))
    except ValueError as error:
        raise InvalidRequest(f"the check {line[:80]!r} cannot be split into words: {error}") from error
    if not words or not words[0].strip() or "\0" in line or len(line) > _CHECK_CHARS:
        raise InvalidRequest(f"the check {line[:80]!r} is no command of at most {_CHECK_CHARS} characters")
    return words
