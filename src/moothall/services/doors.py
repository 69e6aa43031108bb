"""What a server lets callers through to."""

from __future__ import annotations

from dataclasses import dataclass

from moothall.ports import Briefings, Councils, Deliberations, Plans, Tallies


@dataclass(frozen=True, slots=True)
class Doors:
    """The rooms behind the services; `model` is the name of the model that seats use, where one is configured."""

    desk: Deliberations
    councils: Councils
    plans: Plans
    tallies: Tallies
    briefings: Briefings
    model: str = ""
