"""The HTTP door: JSON for callers without gRPC."""
