"""The graph's questions for commands that only list or check them, without a graph or a bus."""

from moothall.graph.questions import QUESTIONS, prepare

__all__ = ["QUESTIONS", "prepare"]
