"""Councils: deliberation protocols, the agent loops, prompts and reviews; evidence selects an
answer.
"""
