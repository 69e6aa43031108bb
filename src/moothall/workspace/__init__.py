"""Workspaces: prepares bases, opens isolated checkouts of them, and runs tools in them."""
