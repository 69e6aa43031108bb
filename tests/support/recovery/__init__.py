"""The kill matrix: every process kind is killed, and stopped, at every boundary of scripted
deliberations.

    scripts/test-recovery [--kinds host,bus] [--types seat.turn] [--every N] [--lanes N] [--no-stop]
    [--no-kill] [--report FILE]

A lane is one deployment of real processes with private files: a bus, a model server, an API server,
a collector, and a host with its executors. Ray is left out; the harness plays its part and restarts
what died. A lane runs one deliberation after another. At its boundary, an event that appears on the
log, one process gets its blow. The outcome must be the same as without a blow.
"""
