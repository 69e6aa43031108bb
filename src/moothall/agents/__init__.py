"""Agents as a service: what other orchestrators ask, put before the tools and the councils that
there are.
"""
