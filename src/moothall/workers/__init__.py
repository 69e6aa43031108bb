"""Hosts, and the three ways to run them: in the process, in child processes, or on Ray. Their work
travels over the bus. No other package imports ray.
"""
