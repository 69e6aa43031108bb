"""Workspaces as Jobs of Kubernetes. docs/operating.md says how they are set up,
docs/architecture.md how they work.
"""
