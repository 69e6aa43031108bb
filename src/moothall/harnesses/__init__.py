"""Runs agents of other projects in workspaces, over the Agent Client Protocol."""
