"""What a seat's work came to, and how it can come to nothing."""

from __future__ import annotations

from dataclasses import dataclass

from moothall.domain.repository import Patch
from moothall.errors import PatchRefused, Permanent


class NoChanges(Permanent):
    """A seat ended without having changed anything: never a proposal."""

    code = "NO_CHANGES"


class MalformedReplies(Permanent):
    """The model kept replying with what is no turn."""

    code = "MALFORMED_REPLIES"


class OutOfTurns(Permanent):
    """All turns are used and nothing was changed."""

    code = "OUT_OF_TURNS"


class InCircles(Permanent):
    """Every attempt went in circles, and nothing was changed."""

    code = "IN_CIRCLES"


@dataclass(frozen=True, slots=True)
class Draft:
    """What a seat's work came to. `patch` is None about text and for an answer. `green` and `worth` (more is better) as the
    seat's own workspace saw it.
    """

    content: str
    patch: Patch | None = None
    green: bool = False
    worth: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Attempt:
    """How an attempt ended: the best that came of it, if anything; its last turn; where it went in circles, how; and why its last
    change could not be taken over, if it could not.
    """

    draft: Draft | None
    turn: int
    stuck: str
    refused: PatchRefused | None = None
