"""Who comes first, and why: gates, evidence, order. Pure; no model and no clock has a say here."""

from moothall.ranking.assess import Assessment, assess
from moothall.ranking.gates import passes_gates
from moothall.ranking.order import rank, ties

__all__ = ["Assessment", "assess", "passes_gates", "rank", "ties"]
