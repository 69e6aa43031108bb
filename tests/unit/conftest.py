"""How all unit tests run."""

from __future__ import annotations

from hypothesis import settings

# Few examples, because the suite runs often; each run draws new ones. No deadline, because machines stall.
settings.register_profile("unit", max_examples=30, deadline=None)
settings.load_profile("unit")
