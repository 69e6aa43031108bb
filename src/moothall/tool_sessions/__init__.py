"""External callers the councils: each opens a workspace, is given a token for it, acts through
the gate, and closes it.
"""
