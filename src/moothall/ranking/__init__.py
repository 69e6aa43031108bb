"""Who comes first, and why: acceptance checks, evidence, order. Pure; no model and no clock has a
say here.

Below it, `syntax` reads patches and code.
"""

from moothall.ranking.assess import assess, is_done
from moothall.ranking.baseline import Diagnosis, diagnose
from moothall.ranking.gates import passes_gates
from moothall.ranking.order import changed_files, rank, ties

__all__ = [
    "Diagnosis",
    "assess",
    "changed_files",
    "diagnose",
    "is_done",
    "passes_gates",
    "rank",
    "ties",
]
