"""What the house's parts are looked at for, and how."""

from __future__ import annotations

from collections.abc import Sequence

from moothall.bus.registry import EVENTS
from moothall.config import Settings
from moothall.domain.overview import Condition
from moothall.errors import Temporary
from moothall.graph.store import CypherGraph
from moothall.model.looking import look
from moothall.sandbox.probe import Layer
from moothall.services.checkup import Checkup, Probe
from moothall.wiring.bus import Bus
from moothall.wiring.fleet import Hosts

Found = tuple[Condition, str]


def checkup(settings: Settings, *, bus: Bus, model_url: str, graph: CypherGraph, fleet: Hosts, walls: Sequence[Layer]) -> Checkup:
    """Return what looks at all parts. The graph is behind the answers: nothing waits for it."""

    async def see_bus() -> Found:
        state = await bus.state(EVENTS.name)
        return Condition.HEALTHY, f"{state.messages} events, the last is {state.last_seq}"

    async def see_model() -> Found:
        answering, there, wrong = await look(settings.llm, model_url)
        said = f"{answering} of {there} servers answer"
        return (Condition.DEGRADED, f"{said}; {wrong}") if wrong else (Condition.HEALTHY, said)

    async def see_graph() -> Found:
        return Condition.HEALTHY, f"written up to event {await graph.position()}"

    async def see_fleet() -> Found:
        alive, there = await fleet.alive()
        if not alive:
            raise Temporary(f"none of {there} hosts answers")
        return Condition.HEALTHY if alive == there else Condition.DEGRADED, f"{alive} of {there} hosts are at work"

    async def see_sandbox() -> Found:
        missing = [layer.name for layer in walls if not layer.ok]
        if missing:
            return Condition.DEGRADED, f"missing, as allowed: {', '.join(missing)}"
        return Condition.HEALTHY, f"all {len(walls)} layers hold"

    return Checkup(
        {
            "bus": Probe(see_bus),
            "model": Probe(see_model),
            "fleet": Probe(see_fleet),
            "sandbox": Probe(see_sandbox),
            "graph": Probe(see_graph, needed=False),
        }
    )
