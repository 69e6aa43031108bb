"""The names of all spans, and what each is about. `docs/telemetry.md` is checked against this."""

from __future__ import annotations

from collections.abc import Mapping

SPANS: Mapping[str, str] = {
    "<package>.<Service>/<Method>": "a gRPC call, in the trace that its caller named",
    "<METHOD> <route>": "an HTTP request, in the trace that its caller named",
    "submit": "checking what is asked, pinning the base commit, recording, enqueueing",
    "publish": "an event on its way to the bus's disk",
    "deliberation": "a host's work on one deliberation; delivered again, it is a second span of the same trace",
    "prepare": "the repository's checkout, setup and first checks",
    "seat": "a seat's proposal, or a revision of it",
    "turn": "one reply of the model and what came of it",
    "chat": "a model call, its retries included; the server's own spans join it",
    "execute_tool": "a tool call from door to door of the gate",
    "own checks": "the checks in a seat's own workspace after a turn",
    "check": "one check on a clean checkout",
    "decide": "the collector's decision; linked to the event that made it ready",
    "deliver": "making the winner a commit and a branch",
}
