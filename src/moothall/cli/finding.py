"""What `moothall doctor` says of one part."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One part: whether it works, what was seen, and what would mend it."""

    part: str
    ok: bool
    detail: str
    mend: str = ""
