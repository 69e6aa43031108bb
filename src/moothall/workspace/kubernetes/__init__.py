"""Workspaces as Kubernetes Jobs. docs/operating.md describes their set-up."""
