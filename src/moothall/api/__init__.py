"""The API: gRPC and HTTP servers, and clients of remote servers. Only this package knows
protobuf.
"""
