"""The HTTP API: JSON for callers without gRPC."""
