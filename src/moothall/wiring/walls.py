"""No wall, no start."""

from __future__ import annotations

from collections.abc import Callable

from moothall.config import Settings
from moothall.sandbox.cgroups import way
from moothall.sandbox.probe import Layer, probe, require
from moothall.telemetry import get_logger, metrics

log = get_logger(__name__)


async def check_walls(settings: Settings, tell: Callable[[str], None] | None = None) -> tuple[Layer, ...]:
    """Probe every layer of the sandbox by a forbidden act and return them; raise `SandboxUnavailable` for one that is missing.

    Layers that the operator accepts as missing are named in the log at every start.
    """
    layers = await probe(settings.sandbox)
    require(layers, settings.sandbox.allow_degraded)
    missing = [layer.name for layer in layers if not layer.ok]
    for layer in layers:
        metrics.SANDBOX_LAYER.set(float(layer.ok), layer.name)
    log.info("the sandbox is tried", layers=len(layers), missing=missing, memory_and_processes=way())
    if missing:
        log.warning("the sandbox is degraded, as allowed", missing=missing)
    if tell is not None:
        tell(
            f"sandbox: {len(layers) - len(missing)} of {len(layers)} layers hold"
            + (f"; missing: {', '.join(missing)}" if missing else "")
        )
    return layers
