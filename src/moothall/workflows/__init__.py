"""Tool plans of several steps: checked before anything runs, run through the tool gateway, and
resumed after a crash.
"""
