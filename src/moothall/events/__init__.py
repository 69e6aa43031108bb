"""Rules shared by every bus: encoding, streams and subjects, deliveries, dead letters. `nats` is
the implementation for production.
"""
