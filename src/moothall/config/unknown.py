"""Error messages for names that are not settings, among them those that earlier versions had."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Final

REMOVED: Final[dict[str, str]] = {
    **dict.fromkeys(
        (
            "limits.counter_proofs",
            "limits.counter_cases",
            "limits.apart_seconds",
            "limits.inputs",
            "limits.inputs_seconds",
            "limits.inputs_tokens",
        ),
        "the checks that it limited no longer exist",
    ),
    **dict.fromkeys(
        (
            "workspace.setup_bytes",
            "runner.kept_bytes",
            "runner.agents_at_once",
            "runner.recursion",
            "wasm.table_elements",
            "limits.text_turns",
            "limits.map_files",
            "limits.map_bytes",
            "limits.map_seconds",
            "limits.coach_seconds",
            "limits.steer_chars",
            "guard.visit_result_bytes",
            "guard.visit_seconds",
            "guard.workflow_steps",
            "guard.workflow_attempts",
            "guard.workflow_parallelism",
            "guard.cache_bytes",
            "guard.audit_sync_records",
            "agents.answer_chars",
            "agents.stream_buffer",
            "agents.breaker_share",
            "grpc.keepalive_seconds",
            "web.head_bytes",
            "web.sessions",
            "web.link_seconds",
            "graph.drain_seconds",
        ),
        "its former default always applies",
    ),
    "workspace.namespace": "use workspaces.namespace of the chart",
    "workspace.image": "use jobs.images",
    "web.head_seconds": "it is always 20 seconds",
    "web.stall_seconds": "it is always 60 seconds",
    "web.body_seconds": "it is always 30 seconds",
    "web.body_bytes": "it is always 4,000,000 bytes",
    "limits.message_bytes": "it is always 4,000,000 bytes",
    "web.grace_seconds": "grpc.grace_seconds applies to HTTP too",
    "forge.call_seconds": "it is always 30 seconds",
    "oidc.seconds": "it is always 10 seconds",
    "webhook.seconds": "it is always 10 seconds",
    "guard.policy_cache_seconds": "it is always 60 seconds",
    "agents.breaker_seconds": "it is always 30 seconds",
    "agents.endpoint_pause_seconds": "it is always 0.5 seconds",
    "serve.lease_seconds": "it is always 6 seconds",
    "webhook.tries": "it is always 8",
    "agents.breaker_calls": "it is always 20",
    "agents.file_bytes": "it is always 256,000 bytes",
    "agents.endpoint_chars": "it is always 1,000,000 characters",
    "guard.calls_in_flight": "it is always 32",
    "guard.seat_in_flight": "it is always 4",
    "guard.breaker_failures": "it is always 5",
    "guard.alert_denials": "it is always 20",
    "guard.alert_escapes": "it is always 3",
    "guard.grace_seconds": "it is always 8 seconds",
    "guard.alert_seconds": "it is always 60 seconds",
    "guard.argument_bytes": "it is always 1,000,000 bytes",
    "guard.result_bytes": "it is always 60,000 bytes",
    "guard.event_bytes": "it is always 16,000 bytes",
    "graph.connect_seconds": "it is always 5 seconds",
    "graph.retry_seconds": "it is always 15 seconds",
    "trace.delay_seconds": "it is always 2 seconds",
    "trace.timeout_seconds": "it is always 3 seconds",
    "metrics.report_seconds": "it is always 5 seconds",
    "graph.batch": "it is always 2,000",
    "trace.queue_spans": "it is always 8,192",
    "http.redirects": "it is always 5",
    "trace.attribute_chars": "it is always 2,000 characters",
    "browser.actions": "it is always 20",
    "browser.processes": "it is always 400",
    "docker.built": "it is always 4",
    "mcp.at_once": "it is always 4",
    "browser.text_chars": "it is always 20,000 characters",
    "browser.screenshot_bytes": "it is always 5,000,000 bytes",
    "docker.output_bytes": "it is always 30,000 bytes",
    "mcp.schema_bytes": "it is always 20,000 bytes",
    "mcp.result_bytes": "it is always 50,000 bytes",
    "db.result_bytes": "it is always 50,000 bytes",
    "workspace.check_factor": "it is always 5",
    "workspace.max_patch_files": "it is always 1,000",
    "workspace.stopped_seconds": "it is always 3,600 seconds",
    "limits.quorum": "it is always 0.5",
    "limits.stuck_turns": "it is always 3",
    "limits.plan_tasks": "it is always 64",
    "limits.grace_seconds": "it is always 10 seconds",
    "limits.own_check_seconds": "it is always 10 seconds",
    "llm.connect_seconds": "it is always 5 seconds",
    "bus.check_seconds": "it is always 3,600 seconds",
    "limits.agent_chars": "it is always 4,000 characters",
    "runner.offer_from_tokens": "it is always 16,000 tokens",
    "llm.function_tokens": "it is always 512 tokens",
    "wasm.module_bytes": "it is always 20,000,000 bytes",
    "llm.local_threads": "all cores but one are used",
    "bus.blob_bytes": "it is always 256,000 bytes",
    "bus.max_deliver": "it is always 5",
    "bus.in_flight": "it is always 1,024",
    "bus.retry_seconds": "it is always 0.5 seconds",
    "bus.publish_seconds": "it is always 30 seconds",
    "oidc.sign_in_seconds": "it is always 600 seconds",
    "llm.retry_seconds": "it is always 0.5 seconds",
    "llm.max_reply_bytes": "it is always 4,000,000 bytes",
    "http.response_bytes": "it is always 1,000,000 bytes",
    "http.download_bytes": "it is always 5,000,000 bytes",
    "browser.action_seconds": "it is always 15 seconds",
    "browser.transfer_bytes": "it is always 30,000,000 bytes",
    "db.receive_bytes": "it is always 8,000,000 bytes",
    "docker.ttl_seconds": "it is always 1,800 seconds",
    "docker.containers": "it is always 4",
    "docker.processes": "it is always 128",
    "docker.scratch_bytes": "it is always 64,000,000 bytes",
    "docker.context_files": "it is always 500",
    "docker.context_bytes": "it is always 20,000,000 bytes",
    "mcp.tools": "it is always 100",
    "mcp.receive_bytes": "it is always 8,000,000 bytes",
}
"""What applies instead of each removed setting."""

_MIN_SIMILARITY = 0.75


def describe_unknown(keys: Sequence[str], word: str, names: Iterable[str], prefix: str = "") -> str:
    """Return the error message for a name that is not a setting, without the name itself.

    keys: its parts; word: the part that may be misspelled; names: what could be right instead of
    `word`; prefix: stands before it in the message.
    """
    in_models = keys[0] == "models" and len(keys) > 2  # noqa: PLR2004 - models.NAME.key
    section = ("llm", *keys[2:]) if in_models else keys
    if reason := REMOVED.get(".".join(section)):
        return f"was removed: {reason}. Delete it"
    matches = get_close_matches(word, list(names), n=1, cutoff=_MIN_SIMILARITY)
    return "is not a setting; " + (
        f"did you mean {prefix}{matches[0]}?" if matches else "`moothall config` lists all"
    )
