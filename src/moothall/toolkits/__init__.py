"""Tools that need a client library and run on the trusted side, for a workspace without a
network.
"""
