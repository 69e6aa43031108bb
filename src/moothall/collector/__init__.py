"""Folding of events into outcomes. The log is authoritative: all state here can be rebuilt
from it.
"""
