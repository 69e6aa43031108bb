"""WorkspaceService: how good the evidence of a finished job is."""

from __future__ import annotations

from typing import Any

from google.protobuf import json_format

from moothall.domain.codec import load
from moothall.errors import InvalidRequest
from moothall.pb.workspace.v1 import workspace_pb2 as pb
from moothall.pb.workspace.v1 import workspace_pb2_grpc as pb_grpc
from moothall.stories.rigor import JobReport, rate

_SCORED = ("build", "unit", "static", "e2e")


class Scoring(pb_grpc.WorkspaceServiceServicer):
    """The gRPC door of rigor scoring."""

    async def ScoreWorkspace(
        self, request: pb.ScoreWorkspaceRequest, context: Any
    ) -> pb.ScoreWorkspaceResponse:
        """Score a report."""
        said = request.report
        if said.job_id and request.job_id and said.job_id != request.job_id:
            raise InvalidRequest(
                f"job_id is {request.job_id[:80]!r}, and the report is of {said.job_id[:80]!r}"
            )
        parts = {
            name: json_format.MessageToDict(getattr(said, name), preserving_proto_field_name=True)
            for name in _SCORED
            if said.HasField(name)  # type: ignore[arg-type]
        }
        found = rate(load(JobReport, parts), request.rigor_level)
        return pb.ScoreWorkspaceResponse(
            score=found.score,
            rigor=found.rigor,
            reasons=found.reasons,
            gating_decision=found.decision,
        )
