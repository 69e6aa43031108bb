"""Councils: deliberation protocols, the agent loop, prompts and reviews. An answer is selected by
evidence.
"""
