"""The wire contract: names, numbers and types as specified and as clients use them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from moothall.pb.kernel.v1 import kernel_pb2
from moothall.pb.moothall.v1 import common_pb2
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as pb
from moothall.pb.runner.v1 import runner_pb2
from moothall.pb.shannon.agent import agent_pb2
from moothall.pb.shannon.common import common_pb2 as shannon_pb2

# Fields in number order from 1, "= n" where a number is skipped. s string, i int32, l int64, d
# double, b bool,
# [] repeated, map<…> of strings to…; everything else is a message or an enum.
MESSAGES = {
    "DeliberateRequest": "task_description s, role s, constraints TaskConstraints, rounds i?, "
    "num_agents i, task_id s, repository Repository, protocol s, budget Budget, adaptive b, "
    "follows s, fork Fork, hidden_tests map<s>, head s, tests_only b",
    "DeliberateResponse": "results []DeliberationResult, winner_id s, duration_ms l, metadata "
    "OrchestratorMetadata, task_id s, status DeliberationStatus, usage Usage, proven b, branch s, "
    "error_message s, seats []SeatOutcome, evidence_level s",
    "SubmitDeliberationResponse": "task_id s, status DeliberationStatus, agent_count i",
    "GetDeliberationResultRequest": "task_id s",
    "GetDeliberationResultResponse": "task_id s, status DeliberationStatus, results "
    "[]DeliberationResult, winner_id s, duration_ms l, error_message s, metadata "
    "OrchestratorMetadata, usage Usage, proven b, branch s, seats []SeatOutcome, evidence_level s",
    "DeliberationUpdate": "status s, progress_percent i, current_step s, current_agent s, "
    "partial_result DeliberationResult, seq l, event Event, task_id s",
    "WatchDeliberationRequest": "task_id s, after_seq l",
    "CancelDeliberationRequest": "task_id s, reason s",
    "CancelDeliberationResponse": "status DeliberationStatus",
    "SteerDeliberationRequest": "task_id s, message s, request_id s",
    "SteerDeliberationResponse": "",
    "PauseDeliberationRequest": "task_id s",
    "PauseDeliberationResponse": "changed b",
    "ResumeDeliberationRequest": "task_id s",
    "ResumeDeliberationResponse": "changed b",
    "OrchestrateRequest": "task_id s, task_description s, role s, constraints TaskConstraints, "
    "options OrchestratorOptions, case_id s, story_id s, plan_id s, context_options "
    "ContextOptions, repository Repository = 11",
    "OrchestrateResponse": "winner DeliberationResult, candidates []DeliberationResult, "
    "execution_id s, duration_ms l, metadata OrchestratorMetadata",
    "RegisterAgentRequest": (
        "agent_id s, role s, capabilities AgentCapabilities, endpoint s, metadata map<s>"
    ),
    "RegisterAgentResponse": "success b, message s, council_id s",
    "UnregisterAgentRequest": "agent_id s, role s",
    "UnregisterAgentResponse": "success b, message s",
    "CreateCouncilRequest": "role s, num_agents i, config CouncilConfig",
    "CreateCouncilResponse": "council_id s, agents_created i, agent_ids []s",
    "ListCouncilsRequest": "role_filter s, include_agents b",
    "ListCouncilsResponse": "councils []CouncilInfo",
    "DeleteCouncilRequest": "role s",
    "DeleteCouncilResponse": "success b, message s, agents_removed i",
    "ProcessPlanningEventRequest": (
        "event_type s, case_id s, plan_id s, from_state s, to_state s, timestamp_ms l, metadata "
        "map<s>"
    ),
    "ProcessPlanningEventResponse": "processed b, message s, derived_task_ids []s",
    "DeriveSubtasksRequest": "case_id s, plan_id s, roles []s, strategy DerivationStrategy",
    "DerivationStrategy": (
        "parallel_execution b, dependency_order []s, max_tasks_per_role i, auto_publish_to_nats b"
    ),
    "DeriveSubtasksResponse": "tasks []AtomicTask, derivation_id s, total_tasks i",
    "AtomicTask": "task_id s, role s, description s, dependencies []s, constraints "
    "TaskConstraints, case_id s, plan_id s, priority i, repository Repository",
    "GetTaskContextRequest": (
        "task_id s, case_id s, story_id s, role s, phase s, options ContextOptions"
    ),
    "GetTaskContextResponse": "context_text s, blocks ContextBlocks, token_count i, version_hash s",
    "ContextBlocks": "system s, context s, tools s, history s",
    "GetStatusRequest": "include_stats b",
    "GetStatusResponse": "status s, uptime_seconds l, stats OrchestratorStats, reasons []s",
    "OrchestratorStats": "total_deliberations l, total_orchestrations l, avg_deliberation_time_ms "
    "d, active_councils l, role_counts map<l>",
    "Quotas": (
        "tokens_per_day l?, tokens_per_month l?, cost_usd_per_day d?, cost_usd_per_month d?, "
        "deliberations l?"
    ),
    "QuotaUse": "what s, period s, limit d, used d, resets s",
    "QuotaChange": "actor s, time s, quotas Quotas",
    "GetQuotasRequest": "tenant s",
    "GetQuotasResponse": (
        "tenant s, quotas Quotas, own Quotas, uses []QuotaUse, changes []QuotaChange"
    ),
    "SetQuotasRequest": "tenant s, quotas Quotas",
    "SetQuotasResponse": "quotas Quotas",
    "ListDeliberationsRequest": "state s, query s, page_size i, page_token s",
    "ListDeliberationsResponse": "deliberations []DeliberationSummary, next_page_token s",
    "DeliberationSummary": (
        "task_id s, status DeliberationStatus, role s, description s, protocol s, repository s, "
        "principal s, progress i, paused b, error s, winner_id s, evidence_level s, branch s, "
        "requested s, ended s, duration_ms l, agent s"
    ),
    "GetMetricsRequest": "metric_type s, time_range_ms l",
    "GetMetricsResponse": (
        "performance PerformanceMetrics, agents AgentMetrics, councils CouncilMetrics"
    ),
    "PerformanceMetrics": (
        "avg_deliberation_ms d, avg_orchestration_ms d, p50_latency_ms d, p95_latency_ms d, "
        "p99_latency_ms d"
    ),
    "AgentMetrics": (
        "total_agents l, active_agents l, agents_per_role map<l>, avg_agent_response_time_ms d"
    ),
    "CouncilMetrics": "total_councils l, active_councils l, health_per_council map<CouncilHealth>",
    "CouncilHealth": "status s, available_agents i, busy_agents i, success_rate d",
    "TaskConstraints": (
        "rubric s, requirements []s, metadata map<s>, max_iterations i, timeout_seconds i"
    ),
    "OrchestratorOptions": (
        "enable_peer_review b, deliberation_rounds i, enable_architect_selection b, custom_params "
        "map<s>"
    ),
    "ContextOptions": (
        "include_timeline b, include_decisions b, include_summaries b, max_events i, scopes []s"
    ),
    "CouncilConfig": (
        "deliberation_rounds i, enable_peer_review b, model_profile s, custom_params map<s>, "
        "agent_type s"
    ),
    "CouncilInfo": "council_id s, role s, num_agents i, agents []AgentInfo, status s, model s",
    "AgentInfo": "agent_id s, role s, status s, capabilities AgentCapabilities",
    "AgentCapabilities": (
        "supported_tasks []s, model_profile s, max_concurrent_tasks i, languages []s"
    ),
    "DeliberationResult": (
        "proposal Proposal, checks CheckSuite, score d, rank i, evidence []Evidence, reasons []s, "
        "reviews []Review, evidence_level s"
    ),
    "Proposal": "author_id s, author_role s, content s, created_at_ms l, revisions []s, diff s, "
    "commit_sha s, operations []ToolOperation",
    "CheckSuite": (
        "policy PolicyCheck, lint LintCheck, dryrun DryRunCheck, additional_checks "
        "[]AdditionalCheck, all_passed b"
    ),
    "PolicyCheck": "passed b, violations []s, message s",
    "LintCheck": "passed b, error_count i, warning_count i, errors []s",
    "DryRunCheck": "passed b, output s, exit_code i, message s",
    "AdditionalCheck": "check_type s, passed b, score d, message s, details map<s>",
    "SeatOutcome": "agent_id s, status s, error_code s, error_message s, usage Usage",
    "OrchestratorMetadata": "orchestrator_version s, timestamp_ms l, execution_id s, tags map<s>",
}
COMMON = {
    "Repository": "id s, url s, ref s",
    "Budget": "tokens l, seconds i, calls i, cost_usd d",
    "Usage": "prompt_tokens l, cached_tokens l, completion_tokens l, calls i, cost_usd d",
    "Evidence": (
        "check s, verdict s, passed i, failed i, skipped i, duration_ms l, output s, proven b"
    ),
    "Review": "reviewer_id s, score d, met []s, unmet []s, comment s",
    "ToolOperation": "tool s, arguments_digest s, status s, duration_ms l",
    "Event": "id s, type s, subject s, correlation_id s, causation_id s, time s, data Struct",
    "Fork": "task_id s, turn i, seat s, words s",
}
KERNEL = {
    "CreateTaskRequest": (
        "prompt s, workspace s, agent s, budget Budget, task_id s, ref s, follows s"
    ),
    "CreateTaskResponse": "task_id s, capability_token s",
    "StreamTaskEventsRequest": "task_id s, after_seq l",
    "TaskEvent": "seq l, type s, payload Struct, time Timestamp",
    "ExecuteToolRequest": "task_id s, execution_id s, capability_token s, tool s, arguments Struct",
    "ExecuteToolResponse": "status s, output Value, error s",
    "CancelTaskRequest": "task_id s, reason s",
    "CancelTaskResponse": "status s",
}
RPCS = {
    "Deliberate": "DeliberateRequest → DeliberateResponse",
    "SubmitDeliberation": "DeliberateRequest → SubmitDeliberationResponse",
    "GetDeliberationResult": "GetDeliberationResultRequest → GetDeliberationResultResponse",
    "StreamDeliberation": "DeliberateRequest → stream DeliberationUpdate",
    "WatchDeliberation": "WatchDeliberationRequest → stream DeliberationUpdate",
    "CancelDeliberation": "CancelDeliberationRequest → CancelDeliberationResponse",
    "SteerDeliberation": "SteerDeliberationRequest → SteerDeliberationResponse",
    "PauseDeliberation": "PauseDeliberationRequest → PauseDeliberationResponse",
    "ResumeDeliberation": "ResumeDeliberationRequest → ResumeDeliberationResponse",
} | {
    name: f"{name}Request → {name}Response"
    for name in (
        "Orchestrate",
        "RegisterAgent",
        "UnregisterAgent",
        "CreateCouncil",
        "ListCouncils",
        "DeleteCouncil",
        "ProcessPlanningEvent",
        "DeriveSubtasks",
        "GetTaskContext",
        "GetStatus",
        "GetMetrics",
        "GetQuotas",
        "SetQuotas",
        "ListDeliberations",
    )
}
RUNNER = {
    "ExecuteRequest": (
        "task_id s, execution_id s, code s, inputs Struct, tools []s, capability_token s, limits "
        "Limits"
    ),
    "Limits": "timeout_ms i, memory_mb i, max_tool_calls i",
    "ExecuteResponse": (
        "status s, result Value, stdout s, error s, tool_call_count i, usage RunUsage"
    ),
    "RunUsage": "cpu_ms l, max_rss_bytes l, duration_ms l, tier s, reason s",
}
SHANNON = {
    agent_pb2: {
        "ExecuteTaskRequest": "metadata TaskMetadata, query s, context Struct, mode ExecutionMode, "
        "available_tools []s, config AgentConfig, session_context SessionContext",
        "SessionContext": "session_id s, history []s, persistent_context Struct, files_created "
        "[]s, tools_used []s, total_tokens_used i, total_cost_usd d, user_id s",
        "AgentConfig": (
            "max_iterations i, timeout_seconds i, enable_sandbox b, memory_limit_mb l, "
            "enable_learning b"
        ),
        "ExecuteTaskResponse": "task_id s, status StatusCode, result s, tool_calls []ToolCall, "
        "tool_results []ToolResult, metrics ExecutionMetrics, error_message s, final_state "
        "AgentState, metadata Struct",
        "TaskUpdate": (
            "task_id s, state AgentState, message s, tool_call ToolCall, tool_result ToolResult, "
            "progress d, delta s"
        ),
        "GetCapabilitiesResponse": "supported_tools []s, supported_modes []ExecutionMode, "
        "max_memory_mb l, max_concurrent_tasks i, version s",
        "HealthCheckResponse": (
            "healthy b, message s, uptime_seconds l, active_tasks i, memory_usage_percent d"
        ),
        "DiscoverToolsRequest": (
            "query s, categories []s, tags []s, exclude_dangerous b, max_results i"
        ),
        "DiscoverToolsResponse": "tools []ToolCapability",
        "GetToolCapabilityRequest": "tool_id s",
        "GetToolCapabilityResponse": "tool ToolCapability",
        "ToolCapability": "id s, name s, description s, category s, input_schema Struct, "
        "output_schema Struct, required_permissions []s, estimated_duration_ms l, is_dangerous b, "
        "version s, author s, tags []s, examples []ToolExample, rate_limit RateLimit, cache_ttl_ms "
        "l",
        "ToolExample": "description s, input Struct, output Struct",
        "RateLimit": "requests_per_minute i, requests_per_hour i",
    },
    shannon_pb2: {
        "TaskMetadata": "task_id s, user_id s, session_id s, tenant_id s, created_at Timestamp, "
        "labels map<s>, max_agents i, token_budget d",
        "TokenUsage": (
            "prompt_tokens i, completion_tokens i, total_tokens i, cost_usd d, model s, tier "
            "ModelTier, provider s"
        ),
        "ExecutionMetrics": (
            "latency_ms l, token_usage TokenUsage, cache_hit b, cache_score d, agents_used i, mode "
            "ExecutionMode"
        ),
        "ToolCall": "name s, parameters Struct, tool_id s",
        "ToolResult": (
            "tool_id s, output Value, status StatusCode, error_message s, execution_time_ms l"
        ),
    },
}
SHANNON_ENUMS = {
    agent_pb2: {"AgentState": "IDLE PLANNING EXECUTING WAITING COMPLETED FAILED"},
    shannon_pb2: {
        "StatusCode": "OK ERROR TIMEOUT RATE_LIMITED BUDGET_EXCEEDED",
        "ExecutionMode": "SIMPLE STANDARD COMPLEX",
        "ModelTier": "SMALL MEDIUM LARGE",
        "CognitiveStrategy": "DIRECT DECOMPOSE EXPLORATORY REACT RESEARCH SCIENTIFIC",
    },
}
SCALARS = {
    FieldDescriptor.TYPE_STRING: "s",
    FieldDescriptor.TYPE_INT32: "i",
    FieldDescriptor.TYPE_INT64: "l",
    FieldDescriptor.TYPE_DOUBLE: "d",
    FieldDescriptor.TYPE_BOOL: "b",
}


def kind_of(field: FieldDescriptor) -> str:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = field.message_type.fields
        assert key.type == FieldDescriptor.TYPE_STRING
        return f"map<{kind_of(value)}>"
    if field.message_type is not None:
        kind = field.message_type.name
    elif field.enum_type is not None:
        kind = field.enum_type.name
    else:
        kind = SCALARS[field.type]
    optional = "?" if field.has_presence and field.message_type is None else ""
    return f"[]{kind}" if field.is_repeated else kind + optional


def describe_message(message: Descriptor) -> dict[str, tuple[int, str]]:
    return {field.name: (field.number, kind_of(field)) for field in message.fields}


def read_specification(table: str) -> dict[str, tuple[int, str]]:
    fields: dict[str, tuple[int, str]] = {}
    for number, entry in enumerate(filter(None, table.split(", ")), start=1):
        match = re.fullmatch(r"(\w+) (\S+)(?: = (\d+))?", entry)
        assert match is not None, entry
        fields[match[1]] = (int(match[3] or number), match[2])
    return fields


@pytest.mark.parametrize("name", MESSAGES)
def test_orchestrator_messages_match_the_specification(name: str) -> None:
    assert describe_message(pb.DESCRIPTOR.message_types_by_name[name]) == read_specification(
        MESSAGES[name]
    )


@pytest.mark.parametrize("name", COMMON)
def test_shared_messages_match_the_specification(name: str) -> None:
    assert describe_message(
        common_pb2.DESCRIPTOR.message_types_by_name[name]
    ) == read_specification(COMMON[name])


@pytest.mark.parametrize("name", KERNEL)
def test_kernel_messages_match_the_specification(name: str) -> None:
    assert describe_message(
        kernel_pb2.DESCRIPTOR.message_types_by_name[name]
    ) == read_specification(KERNEL[name])


def test_kernel_rpcs_match_the_specification() -> None:
    assert set(kernel_pb2.DESCRIPTOR.message_types_by_name) == set(KERNEL)
    service = kernel_pb2.DESCRIPTOR.services_by_name["AgentKernel"]
    assert service.full_name == "kernel.v1.AgentKernel"
    assert {rpc.name: (rpc.output_type.name, rpc.server_streaming) for rpc in service.methods} == {
        "CreateTask": ("CreateTaskResponse", False),
        "StreamTaskEvents": ("TaskEvent", True),
        "ExecuteTool": ("ExecuteToolResponse", False),
        "CancelTask": ("CancelTaskResponse", False),
    }


def test_no_message_is_outside_the_specification() -> None:
    assert set(pb.DESCRIPTOR.message_types_by_name) == set(MESSAGES)
    assert set(common_pb2.DESCRIPTOR.message_types_by_name) == set(COMMON)


def test_runner_messages_match_the_specification() -> None:
    assert (
        runner_pb2.DESCRIPTOR.services_by_name["SecureRunner"].full_name == "runner.v1.SecureRunner"
    )
    messages = {
        name: describe_message(message)
        for name, message in runner_pb2.DESCRIPTOR.message_types_by_name.items()
    }
    assert messages == {name: read_specification(table) for name, table in RUNNER.items()}


def test_orchestrator_rpcs_match_the_specification() -> None:
    service = pb.DESCRIPTOR.services_by_name["OrchestratorService"]
    assert service.full_name == "orchestrator.v1.OrchestratorService"
    assert {
        rpc.name: f"{rpc.input_type.name} → "
        f"{'stream ' if rpc.server_streaming else ''}{rpc.output_type.name}"
        for rpc in service.methods
        if not rpc.client_streaming
    } == RPCS


def test_deliberation_states_match_the_specification() -> None:
    names = ("UNKNOWN", "PENDING", "IN_PROGRESS", "COMPLETED", "FAILED", "TIMEOUT", "CANCELLED")
    assert pb.DeliberationStatus.items() == [
        (f"DELIBERATION_STATUS_{name}", number) for number, name in enumerate(names)
    ]


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, named in SHANNON.items() for name in named]
)
def test_agent_service_messages_match_the_specification(module: Any, name: str) -> None:
    assert describe_message(module.DESCRIPTOR.message_types_by_name[name]) == read_specification(
        SHANNON[module][name]
    )


def test_the_agent_service_matches_the_specification() -> None:
    assert (agent_pb2.DESCRIPTOR.package, shannon_pb2.DESCRIPTOR.package) == (
        "shannon.agent",
        "shannon.common",
    )
    methods = agent_pb2.DESCRIPTOR.services_by_name["AgentService"].methods
    called = {
        method.name: (method.input_type.name, method.output_type.name, method.server_streaming)
        for method in methods
    }
    unary = ("GetCapabilities", "HealthCheck", "DiscoverTools", "GetToolCapability")
    assert called == {
        "ExecuteTask": ("ExecuteTaskRequest", "ExecuteTaskResponse", False),
        "StreamExecuteTask": ("ExecuteTaskRequest", "TaskUpdate", True),
        **{name: (f"{name}Request", f"{name}Response", False) for name in unary},
    }
    for module, enums in SHANNON_ENUMS.items():
        for name, words in enums.items():
            values = module.DESCRIPTOR.enum_types_by_name[name].values
            assert [value.number for value in values] == list(range(len(words.split()) + 1))
            assert all(
                value.name.endswith(f"_{word}")
                for value, word in zip(values, ["UNSPECIFIED", *words.split()], strict=True)
            )


ROOT = Path(__file__).parents[3]
BUF = Path(sysconfig.get_path("scripts")) / "buf"


def breaks(folder: Path, change: tuple[str, str] | None = None) -> str:
    """Return what `buf breaking` says of the protos, with one change, against those of the last
    release.
    """
    shutil.copytree(ROOT / "protos", folder / "protos")
    shutil.copy(ROOT / "buf.yaml", folder)
    path = folder / "protos/orchestrator/v1/orchestrator.proto"
    text = path.read_text(encoding="utf-8")
    if change is not None:
        assert text.count(change[0]) == 1
        path.write_text(text.replace(*change), encoding="utf-8")
    command = [str(BUF), "breaking", "--against", "protos/released.binpb"]
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert (process.returncode == 0) == (process.stdout == ""), process.stderr
    return process.stdout


@pytest.mark.skipif(not BUF.exists(), reason="needs buf: scripts/setup dev")
def test_the_protos_are_compatible_with_clients_of_the_last_release(tmp_path: Path) -> None:
    assert breaks(tmp_path) == ""


@pytest.mark.e2e  # buf checks all protos for each change
@pytest.mark.skipif(not BUF.exists(), reason="needs buf: scripts/setup dev")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            (
                "  string task_description = 1;\n  // dev",
                "  string task_description = 20;\n  // dev",
            ),
            'Previously present field "1"',
        ),
        (("  optional int32 rounds = 4;", "  optional string rounds = 4;"), "changed type"),
        (("  bool adaptive = 10;\n", ""), 'Previously present field "10"'),
        (
            ("  DELIBERATION_STATUS_TIMEOUT = 5;", "  DELIBERATION_STATUS_TIMEOUT = 15;"),
            'enum value "5"',
        ),
        (("  rpc GetStatus(", "  rpc FetchStatus("), "Previously present RPC"),
    ],
)
def test_a_breaking_change_is_detected(
    tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    assert message in breaks(tmp_path, change)
