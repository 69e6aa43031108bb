"""Ranking of candidates: acceptance checks, evidence and order. Pure: no models, no clock.

The subpackage `syntax` parses patches and code.
"""

from moothall.ranking.assess import assess, is_done
from moothall.ranking.baseline import Diagnosis, diagnose
from moothall.ranking.criteria import passes_acceptance_checks
from moothall.ranking.order import changed_files, find_ties, have_same_change, rank

__all__ = [
    "Diagnosis",
    "assess",
    "changed_files",
    "diagnose",
    "find_ties",
    "have_same_change",
    "is_done",
    "passes_acceptance_checks",
    "rank",
]
