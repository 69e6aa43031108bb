"""Whether a seat goes in circles: a pure function of what its turns came to.

A seat that does is not repaired for ever: it starts anew, with fresh context and another seed. What is decided is recorded
with the turn, so that a run that is taken up again goes the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FINISH = "finish"
"""What a step asks for that says that the work is done."""
UNUSABLE = "the same unusable reply"
TOO_EARLY = "it says that it is done, and it is not"
NOT_GREEN, DOUBTED = "the function is not green", "the function is green, and what its docstring shows does not hold"
"""Of a seat that is asked for one function, after `llm.function_turns`."""
_LOOKS = 3
"""The same step on the same files so often, and nothing changed: then the seat goes in circles."""


@dataclass(frozen=True, slots=True)
class TurnStep:
    """What a turn came to. `asked` is a digest of what it asked for, `tree` of the change as it stood afterwards (empty: the
    base). `changed`: this turn changed something, and `red` are the cases that were red then.
    """

    asked: str
    tree: str = ""
    changed: bool = False
    red: frozenset[str] = frozenset()
    malformed: bool = False


def again(steps: Sequence[TurnStep]) -> bool:
    """Whether the last turn asked for what an earlier one had asked for already, on the same files, and changed nothing."""
    return bool(steps) and not steps[-1].changed and _same_looks(steps) > 1


def stuck(steps: Sequence[TurnStep], red_turns: int) -> str:
    """Return why the last turn shows a seat that goes in circles, or nothing. `red_turns`: changes with the same red cases."""
    if not steps:
        return ""
    last = steps[-1]
    if last.malformed:
        return UNUSABLE if last in steps[:-1] else ""
    if not last.changed:
        said = TOO_EARLY if last.asked == FINISH else f"the same step {_LOOKS} times, and nothing changed"
        return said if _same_looks(steps) >= _LOOKS else ""
    return _circle([step for step in steps if step.changed], red_turns)


def _circle(changes: Sequence[TurnStep], red_turns: int) -> str:
    last, earlier = changes[-1], changes[:-1]
    if any(step.asked == last.asked for step in earlier):
        return "the same change as in an earlier turn"
    if any(step.tree == last.tree for step in earlier):
        return "back where it was in an earlier turn"
    if last.red and len(changes) >= red_turns and all(step.red == last.red for step in changes[-red_turns:]):
        return f"the same tests red for {red_turns} turns"
    return ""


def _same_looks(steps: Sequence[TurnStep]) -> int:
    last = steps[-1]
    return sum(not step.changed and (step.asked, step.tree) == (last.asked, last.tree) for step in steps)
