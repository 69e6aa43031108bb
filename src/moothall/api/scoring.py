"""WorkspaceService: the rigor score of a finished job's evidence."""

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
    """The gRPC servicer of WorkspaceService."""

    async def ScoreWorkspace(
        self, request: pb.ScoreWorkspaceRequest, context: Any
    ) -> pb.ScoreWorkspaceResponse:
        """Score a report."""
        report = request.report
        if report.job_id and request.job_id and report.job_id != request.job_id:
            raise InvalidRequest(
                f"job_id is {request.job_id[:80]!r}, but the report has {report.job_id[:80]!r}"
            )
        parts = {
            name: json_format.MessageToDict(getattr(report, name), preserving_proto_field_name=True)
            for name in _SCORED
            if report.HasField(name)  # type: ignore[arg-type]
        }
        rating = rate(load(JobReport, parts), request.rigor_level)
        return pb.ScoreWorkspaceResponse(
            score=rating.score,
            rigor=rating.rigor,
            reasons=rating.reasons,
            gating_decision=rating.decision,
        )
