"""Workspaces on the nodes of a cluster, whatever carries the calls to them."""
