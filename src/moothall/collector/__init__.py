"""Folds what happened into outcomes. The log is the truth; all that is kept here can be rebuilt
from it.
"""

from moothall.collector.collector import Collector

__all__ = ["Collector"]
