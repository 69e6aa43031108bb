"""The kill matrix covers the whole registry."""

from __future__ import annotations

import pytest

from moothall.events.event_specs import EVENT_SPECS
from support.recovery.matrix import check_covered
from support.recovery.scene import NOT_SCRIPTED


def test_an_event_type_neither_produced_nor_explained_fails_the_matrix() -> None:
    scripted = EVENT_SPECS.keys() - NOT_SCRIPTED.keys()
    check_covered(scripted)
    with pytest.raises(AssertionError, match=r"no run produces moothall\.seat\.turn"):
        check_covered(kind for kind in scripted if kind.value != "moothall.seat.turn")
    with pytest.raises(AssertionError, match=r"moothall\.plan\.derived.* cannot come, and it came"):
        check_covered(EVENT_SPECS)
