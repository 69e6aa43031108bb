"""Repositories on the trusted side: from a source to a pinned commit in a clone of our own, and
from a diff to a branch.
"""
