"""How often a process looks for garbage that only its collector can find."""

from __future__ import annotations

import gc

_YOUNG, _MIDDLE, _OLD = 20_000, 20, 20
"""New objects before a look at the young ones; looks at those before one at the next generation; the same again."""


def settle() -> None:
    """Call once a long-lived process is set up: what it holds by now stays, and is never looked through again.

    By default the collector looks after every 700 new objects and ever again at all that lives: an eighth of what a
    deliberation costs. Nearly everything that one leaves goes without it, by its count of references.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)
