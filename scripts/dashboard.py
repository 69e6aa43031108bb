"""Write deploy/grafana/moothall.json. Run it after a change of a metric.

Every metric of `moothall.telemetry.metrics` must be in a panel; a test compares both, and this
script with the file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve().parent.parent / "deploy" / "grafana" / "moothall.json"

_P = '{process=~"$process"}'


def rate(name: str, by: str = "") -> str:
    """Return a query of events a second over the rate interval of Grafana."""
    return (
        f"sum by ({by}) (rate({name}{_P}[$__rate_interval]))"
        if by
        else f"sum(rate({name}{_P}[$__rate_interval]))"
    )


def quantile(name: str, share: float, by: str = "") -> str:
    """Return a query of a quantile of a histogram."""
    labels = f"le, {by}" if by else "le"
    return (
        f"histogram_quantile({share}, sum by ({labels}) "
        f"(rate({name}_bucket{_P}[$__rate_interval])))"
    )


def times(name: str, by: str = "") -> list[tuple[str, str]]:
    """Return queries of the median and the 95th percentile, with legends."""
    legend = "{{" + by + "}} " if by else ""
    return [(quantile(name, 0.5, by), f"{legend}p50"), (quantile(name, 0.95, by), f"{legend}p95")]


ROWS: list[tuple[str, list[tuple[str, str, list[tuple[str, str]]]]]] = [
    (
        "Deliberations",
        [
            (
                "Requested",
                "ops",
                [
                    (
                        rate("moothall_deliberations_requested_total", "role, protocol"),
                        "{{role}} {{protocol}}",
                    )
                ],
            ),
            (
                "Decided",
                "ops",
                [
                    (
                        rate("moothall_deliberations_decided_total", "status, final_state"),
                        "{{status}} {{final_state}}",
                    )
                ],
            ),
            ("Duration", "s", times("moothall_deliberation_seconds", "status")),
            (
                "Running",
                "short",
                [
                    (f"sum(moothall_deliberations_in_flight{_P})", "in hosts"),
                    (f"sum(moothall_collector_under_way{_P})", "undecided in the collector"),
                ],
            ),
            (
                "Ends of seats",
                "ops",
                [(rate("moothall_seats_finished_total", "status"), "{{status}}")],
            ),
            (
                "Deciding and delivering",
                "s",
                [
                    (quantile("moothall_decide_seconds", 0.95), "decide p95"),
                    (quantile("moothall_deliver_seconds", 0.95), "deliver p95"),
                ],
            ),
            ("Work on stories", "ops", [(rate("moothall_story_steps_total", "step"), "{{step}}")]),
        ],
    ),
    (
        "Models",
        [
            (
                "Calls by outcome",
                "ops",
                [(rate("moothall_model_calls_total", "model, outcome"), "{{model}} {{outcome}}")],
            ),
            ("Latency", "s", times("moothall_model_call_seconds", "model")),
            (
                "Tokens",
                "short",
                [(rate("moothall_model_tokens_total", "model, kind"), "{{model}} {{kind}}")],
            ),
            (
                "Calls by provider",
                "s",
                times("gen_ai_client_operation_duration_seconds", "gen_ai_provider_name"),
            ),
            (
                "Tokens of a call",
                "short",
                times("gen_ai_client_token_usage", "gen_ai_token_type"),
            ),
            (
                "In flight, retried, replayed",
                "short",
                [
                    (f"sum(moothall_model_calls_in_flight{_P})", "in flight"),
                    (rate("moothall_model_retries_total"), "retries a second"),
                    (rate("moothall_model_calls_replayed_total"), "replayed a second"),
                ],
            ),
            (
                "Reachable model servers",
                "percentunit",
                [(f"min by (model) (moothall_model_up{_P})", "{{model}}")],
            ),
            (
                "Cost an hour",
                "currencyUSD",
                [(f"3600 * {rate('moothall_model_cost_dollars_total', 'model')}", "{{model}}")],
            ),
            (
                "Refused by budgets",
                "ops",
                [(rate("moothall_budget_refusals_total", "of"), "{{of}}")],
            ),
        ],
    ),
    (
        "Tools, checks, sandbox layers",
        [
            (
                "Tool calls by outcome",
                "ops",
                [(rate("moothall_tool_calls_total", "tool, status"), "{{tool}} {{status}}")],
            ),
            (
                "Tool latency and calls in flight",
                "s",
                [
                    *times("moothall_tool_call_seconds", "tool"),
                    (
                        f"sum by (tool) (moothall_tool_calls_in_flight{_P})",
                        "{{tool}} in flight (calls)",
                    ),
                ],
            ),
            (
                "Cores used by tools",
                "short",
                [(rate("moothall_tool_cpu_seconds_total", "tool"), "{{tool}}")],
            ),
            (
                "Memory used by tools, p95",
                "bytes",
                [(quantile("moothall_tool_memory_bytes", 0.95, "tool"), "{{tool}}")],
            ),
            (
                "Policy decisions, and alerts of the tool gateway",
                "short",
                [
                    (
                        rate("moothall_policy_decisions_total", "tool, decision"),
                        "{{tool}} {{decision}} a second",
                    ),
                    (rate("moothall_guard_alerts_total", "kind"), "alert: {{kind}} a second"),
                    (
                        rate("moothall_wasm_limits_total", "tool, limit"),
                        "{{tool}} over {{limit}} a second",
                    ),
                ],
            ),
            (
                "Checks on clean checkouts",
                "short",
                [
                    (
                        rate("moothall_checks_total", "check, verdict"),
                        "{{check}} {{verdict}} a second",
                    ),
                    (quantile("moothall_check_seconds", 0.95, "check"), "{{check}} p95 seconds"),
                    (quantile("moothall_slot_wait_seconds", 0.95), "wait for a slot p95 seconds"),
                ],
            ),
            (
                "Sandbox layers (1 holds, 0 is missing)",
                "short",
                [(f"min by (layer) (moothall_sandbox_layer{_P})", "{{layer}}")],
            ),
        ],
    ),
    (
        "Bus",
        [
            ("Publishing", "s", times("moothall_bus_publish_seconds", "to")),
            (
                "Lag of consumers",
                "short",
                [
                    (
                        f"max by (durable) (moothall_bus_lag_messages{_P})",
                        "{{durable}} not delivered",
                    ),
                    (
                        f"max by (durable) (moothall_bus_unacked_messages{_P})",
                        "{{durable}} not acknowledged",
                    ),
                ],
            ),
            (
                "Redeliveries and dead letters",
                "ops",
                [
                    (rate("moothall_bus_redeliveries_total", "durable"), "{{durable}} redelivered"),
                    (rate("moothall_bus_dead_letters_total", "durable"), "{{durable}} dead"),
                ],
            ),
            (
                "Stored",
                "bytes",
                [(f"max by (stream) (moothall_bus_stored_bytes{_P})", "{{stream}}")],
            ),
        ],
    ),
    (
        "Clients and processes",
        [
            (
                "gRPC calls",
                "ops",
                [(rate("moothall_grpc_calls_total", "method, code"), "{{method}} {{code}}")],
            ),
            (
                "gRPC latency and calls in flight",
                "s",
                [
                    *times("moothall_grpc_call_seconds", "method"),
                    (f"sum(moothall_grpc_calls_in_flight{_P})", "in flight (calls)"),
                ],
            ),
            (
                "HTTP requests",
                "ops",
                [(rate("moothall_http_requests_total", "route, status"), "{{route}} {{status}}")],
            ),
            (
                "HTTP latency and requests in flight",
                "s",
                [
                    *times("moothall_http_request_seconds", "route"),
                    (f"sum(moothall_http_requests_in_flight{_P})", "in flight (requests)"),
                ],
            ),
            (
                "Cores used by processes",
                "short",
                [(rate("moothall_process_cpu_seconds_total", "process"), "{{process}}")],
            ),
            (
                "Memory of processes",
                "bytes",
                [(f"moothall_process_resident_memory_bytes{_P}", "{{process}}")],
            ),
            (
                "Open files, tracing complaints",
                "short",
                [
                    (f"moothall_process_open_files{_P}", "{{process}} open files"),
                    (
                        rate("moothall_trace_complaints_total", "process"),
                        "{{process}} tracing complaints a second",
                    ),
                ],
            ),
            (
                "Running since",
                "s",
                [
                    (f"time() - moothall_process_start_time_seconds{_P}", "{{process}}"),
                    (f"moothall_build_info{_P}", "{{process}} {{version}} on Python {{python}}"),
                    (f"moothall_host_info{_P}", "{{process}} on {{node}}"),
                    (
                        f"time() - (moothall_host_oldest_start_time_seconds{_P} > 0)",
                        "{{host}} oldest deliberation",
                    ),
                ],
            ),
        ],
    ),
]


def panel(
    number: int, title: str, unit: str, queries: list[tuple[str, str]], at: tuple[int, int]
) -> dict[str, Any]:
    """Return a time series panel, a third of the page wide."""
    source = {"type": "prometheus", "uid": "${source}"}
    return {
        "id": number,
        "type": "timeseries",
        "title": title,
        "datasource": source,
        "gridPos": {"x": at[0], "y": at[1], "w": 8, "h": 8},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": source,
                "expr": query,
                "legendFormat": legend,
            }
            for index, (query, legend) in enumerate(queries)
        ],
    }


def dashboard() -> dict[str, Any]:
    """Return the document of the dashboard."""
    panels: list[dict[str, Any]] = []
    y = 0
    for heading, content in ROWS:
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": heading,
                "collapsed": False,
                "gridPos": {"x": 0, "y": y, "w": 24, "h": 1},
                "panels": [],
            }
        )
        for index, (title, unit, queries) in enumerate(content):
            panels.append(
                panel(
                    len(panels) + 1,
                    title,
                    unit,
                    queries,
                    (8 * (index % 3), y + 1 + 8 * (index // 3)),
                )
            )
        y += 1 + 8 * -(-len(content) // 3)
    return {
        "uid": "moothall",
        "title": "Moothall",
        "tags": ["moothall"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {
            "list": [
                {
                    "name": "source",
                    "label": "Prometheus",
                    "type": "datasource",
                    "query": "prometheus",
                },
                {
                    "name": "process",
                    "label": "Process",
                    "type": "query",
                    "datasource": {"type": "prometheus", "uid": "${source}"},
                    "query": {
                        "query": "label_values(moothall_build_info, process)",
                        "refId": "process",
                    },
                    "refresh": 2,
                    "multi": True,
                    "includeAll": True,
                    "allValue": ".*",
                    "current": {"text": "All", "value": "$__all"},
                },
            ]
        },
        "panels": panels,
    }


def text() -> str:
    """Return the file's content."""
    return json.dumps(dashboard(), indent=2) + "\n"


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(
            0
            if FILE.read_text(encoding="utf-8") == text()
            else f"{FILE} is outdated: run scripts/dashboard.py"
        )
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(text(), encoding="utf-8")
