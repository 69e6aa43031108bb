"""Measure models, protocols and council sizes on tasks from the history of a repository."""

DEFAULT_TASKS, DEFAULT_COMMITS = 10, 200
