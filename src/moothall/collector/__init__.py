"""Folds what happened into outcomes. The log is the truth; all that is kept here can be rebuilt from it."""

from moothall.collector.decide import decide, ready
from moothall.collector.fold import State, fold
from moothall.collector.progress import Progress, Step, describe
from moothall.collector.runner import Collector

__all__ = ["Collector", "Progress", "State", "Step", "decide", "describe", "fold", "ready"]
