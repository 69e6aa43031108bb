"""Tools that need a client library and run on the trusted side, on behalf of a workspace that has
no network of its own.
"""
