"""Agents as a service: queries from other orchestrators, answered with the existing tools and
councils.
"""
