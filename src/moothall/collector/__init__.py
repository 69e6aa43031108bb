"""Folds what happened into outcomes. The log is the truth; all that is kept here can be rebuilt from it."""

from moothall.collector.collector import Collector
from moothall.collector.decide import decide, ready
from moothall.collector.fold import DeliberationState, fold
from moothall.collector.progress import Progress, ProgressStep, describe

__all__ = ["Collector", "DeliberationState", "Progress", "ProgressStep", "decide", "describe", "fold", "ready"]
