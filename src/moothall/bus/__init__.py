"""The event log and everything that moves over it: NATS JetStream behind the ports of `moothall.ports`."""
