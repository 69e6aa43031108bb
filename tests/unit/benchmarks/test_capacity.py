"""The capacity model: the simulation stays within the arithmetic bounds, and reaches them if
nothing else limits it.
"""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from benchmarks.capacity import PHASES, Demand, Fleet, bound, hosts_for, simulate, single_ms

_MS = st.floats(0.5, 20.0)
_CORES = st.floats(0.1, 1.0)


@given(
    demand=st.builds(Demand, _MS, _MS, _MS, st.floats(0.0, 200.0)),
    fleet=st.builds(Fleet, st.lists(_CORES, min_size=1, max_size=4).map(tuple), _CORES, _CORES),
    at_once=st.integers(1, 32),
)
@example(Demand(1.0, 1.0, 20.0, 0.0), Fleet((1.0,), 1.0, 0.1015625), 26)
def test_no_simulation_exceeds_the_bound(demand: Demand, fleet: Fleet, at_once: int) -> None:
    load = simulate(demand, fleet, at_once, seconds=4)
    assert load.rate <= bound(demand, fleet, at_once) * 1.2 + 0.1, (
        "jobs vary by a half, and the window cuts some"
    )


@pytest.mark.e2e
def test_many_callers_saturate_the_busiest_part() -> None:
    demand = Demand(serve_ms=3, host_ms=5, bus_ms=1, model_ms=50)
    assert simulate(demand, Fleet((0.25,)), 64).rate == pytest.approx(50, rel=0.05)
    assert simulate(demand, Fleet((0.25, 0.25)), 64).rate == pytest.approx(100, rel=0.05)
    assert simulate(demand, Fleet((1.0,) * 4), 256).rate == pytest.approx(333, rel=0.05), (
        "serve is the bottleneck then"
    )


def test_a_single_caller_never_waits_for_others() -> None:
    demand, fleet = Demand(serve_ms=3, host_ms=5, bus_ms=1, model_ms=50), Fleet((1.0,))
    single_call_ms = single_ms(demand, fleet)
    assert single_call_ms > PHASES * 50
    assert simulate(demand, fleet, 1).wait * 1000 == pytest.approx(single_call_ms, rel=0.02)


@pytest.mark.e2e
def test_a_smaller_host_gets_less_work() -> None:
    demand = Demand(serve_ms=0.1, host_ms=10, bus_ms=0.1, model_ms=10)
    assert simulate(demand, Fleet((0.9, 0.1)), 64).rate == pytest.approx(100, rel=0.05)


def test_hosts_keep_spare_capacity() -> None:
    assert hosts_for(Demand(3, 5, 1, 50), 140, busy=0.7) == pytest.approx(1.0)
