"""Measure models, protocols and council sizes on tasks from the history of a repository."""
