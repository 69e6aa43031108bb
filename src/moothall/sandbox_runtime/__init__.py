"""What runs inside a sandbox, and the words that both sides of its wall share: standard library
only, nothing else of ours.

The whole folder lies in every sandbox, compiled (`workspace/bundle.py`); what costs start time is
imported where it is used.
"""
