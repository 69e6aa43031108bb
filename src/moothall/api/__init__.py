"""The callers' door: gRPC servers. Protobuf is known here and nowhere else."""
