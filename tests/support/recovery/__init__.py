"""The kill matrix: every process kind is killed, and stopped, at every boundary of scripted
deliberations.

    scripts/test-recovery [--kinds host,bus] [--types seat.turn] [--every N] [--lanes N] [--no-stop]
    [--no-kill] [--report FILE]

A lane is one server of real processes with files of its own: a bus, a model server, a door (gRPC
and
desk), a
collector and a host with its executors; Ray alone is left out, whose part (starting again what
died) the harness
plays. One deliberation after another runs in a lane. At its boundary, an event that appears on the
log, one process
gets its blow. What it ends in must be what it ended in without a blow.
"""
