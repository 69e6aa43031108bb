"""Who comes first, and why: gates, evidence, order. Pure; no model and no clock has a say here.

Below it: `syntax` reads patches and code, `screening` finds what a person should look at, `rewriting` puts tests in other words for the
counter-proof, `inputs` finds inputs that tell answers apart.
"""

from moothall.ranking.assess import assess, is_done
from moothall.ranking.base import Diagnosis, diagnose
from moothall.ranking.gates import passes_gates
from moothall.ranking.order import changed_files, rank, rivals, ties

__all__ = ["Diagnosis", "assess", "changed_files", "diagnose", "is_done", "passes_gates", "rank", "rivals", "ties"]
