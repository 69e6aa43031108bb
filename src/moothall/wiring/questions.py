"""The graph's questions for commands that only list or check them, without a graph or a bus."""

from moothall.graph.questions import QUESTIONS, prepared

__all__ = ["QUESTIONS", "prepared"]
