from __future__ import annotations

from typing import get_args

import pytest

from moothall.domain.council import DEFAULT_PROTOCOL, PROTOCOLS, ProtocolName
from moothall.orchestrator.council_registry import check_protocol


def test_the_table_has_every_protocol_name() -> None:
    assert tuple(PROTOCOLS) == get_args(ProtocolName)
    assert check_protocol("") == DEFAULT_PROTOCOL


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_protocol_has_revision_rounds_only_with_a_trigger(name: ProtocolName) -> None:
    protocol = PROTOCOLS[name]
    assert check_protocol(f" {name.upper()} ") == name
    assert bool(protocol.rounds) == bool(protocol.revises_on)
    assert not (
        protocol.one_seat and (protocol.revises_on or protocol.reviews_ties or protocol.stops_early)
    )
