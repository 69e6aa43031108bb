"""Configuration of all unit tests."""

from __future__ import annotations

import gc

from hypothesis import HealthCheck, settings

# Few examples, because the suite runs often; each run draws new ones. scripts/test-e2e runs the
# properties once more with the profile `thorough`. No deadline, because machines may stall.
settings.register_profile("unit", max_examples=10, deadline=None)
settings.register_profile(
    "thorough", max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("unit")

# Imported and collected objects live to the end: walking them repeatedly is a third of the work of
# collecting tests.
gc.disable()


def pytest_collection_finish() -> None:
    """Exclude the existing objects from later garbage collections."""
    gc.freeze()
    gc.enable()
