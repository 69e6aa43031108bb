"""Tool plans of several steps: checked before anything runs, run through the gate, and taken up
again after a crash.
"""
