"""What every bus keeps to: events and their bytes, streams and subjects, deliveries, dead letters.
`nats` is the real one.
"""
