"""Rigor scoring: how good the evidence of a finished job is, by the weights and thresholds of
`rigor.yaml`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Annotated, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from moothall.errors import InvalidRequest

DEFAULT_LEVEL = "L1"
Part = Literal["build", "unit", "coverage", "static", "e2e"]
PARTS: tuple[Part, ...] = ("build", "unit", "coverage", "static", "e2e")
Decision = Literal["pass", "warn", "block"]
_Points = Annotated[int, Field(ge=0, le=100)]
_Count = Annotated[int, Field(ge=0)]
_CRITICAL, _MAJOR = 0.25, 0.05
"""The share of the points of `static` that each new finding costs."""


class _FrozenModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Level(_FrozenModel):
    """The requirements of a rigor level: points for each part, required parts, and the points from
    which a job passes or is warned of.
    """

    weights: Mapping[Part, _Points]
    required: tuple[Part, ...]
    coverage: Annotated[float, Field(gt=0, le=1)] = 1.0
    pass_: Annotated[_Points, Field(alias="pass")]
    warn: _Points

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if sum(self.weights.values()) != 100:  # noqa: PLR2004 - of 100 points
            raise ValueError(f"the weights sum to {sum(self.weights.values())}, not to 100")
        if self.warn > self.pass_ or not set(self.required) <= set(self.weights):
            raise ValueError("warn is above pass, or a required part has no weight")
        return self


class Build(_FrozenModel):
    """The result of a build."""

    ok: bool = False


class SuiteRun(_FrozenModel):
    """A run of tests; `coverage` is the share of lines, 0 to 1."""

    ok: bool = False
    passed: _Count = 0
    failed: _Count = 0
    coverage: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.0


class SonarResult(_FrozenModel):
    """The findings of SonarQube; `quality_gate` is OK or ERROR, empty if it is unknown."""

    project_key: str = ""
    quality_gate: str = ""
    new_critical: _Count = 0
    new_major: _Count = 0


class Static(_FrozenModel):
    """The results of linters and type checkers."""

    ok: bool = False
    sonar: SonarResult = SonarResult()


class JobReport(_FrozenModel):
    """The evidence of a job. A part that is None was not run."""

    build: Build | None = None
    unit: SuiteRun | None = None
    static: Static | None = None
    e2e: SuiteRun | None = None


class Rating(_FrozenModel):
    """A score of 0 to 100 points, the level, the reasons for missing points, and whether the job
    may pass.
    """

    score: _Points
    rigor: str
    reasons: tuple[str, ...]
    decision: Decision


@cache
def levels() -> Mapping[str, Level]:
    """Return the levels by name. An invalid file is a bug and raises a pydantic error."""
    text = files("moothall.stories").joinpath("rigor.yaml").read_text(encoding="utf-8")
    return TypeAdapter(dict[str, Level]).validate_python(yaml.safe_load(text))


def rate(report: JobReport, level_name: str = "") -> Rating:
    """Rate the evidence of a job. Raises `InvalidRequest` for an unknown level."""
    name = level_name.strip().upper() or DEFAULT_LEVEL
    level = levels().get(name)
    if level is None:
        raise InvalidRequest(
            f"rigor_level is {level_name[:40]!r}; allowed are {', '.join(levels())}"
        )
    reasons: list[str] = []
    points = 0.0
    for part in PARTS:
        if weight := level.weights.get(part, 0):
            share, reason = _earned_share(part, report, level)
            points += weight * share
            if share < 1:
                reasons.append(f"{reason}: {round(weight * share)} of {weight} points")
    blocking = list(_blocking_reasons(report, level))
    score = math.floor(points + 1e-6)
    decision: Decision = (
        "block" if blocking or score < level.warn else "warn" if score < level.pass_ else "pass"
    )
    if decision != "pass" and not blocking:
        reasons.append(
            f"{score} points; {name} passes from {level.pass_} and warns from {level.warn}"
        )
    return Rating(
        score=score,
        rigor=name,
        reasons=(*(f"blocks: {blocker}" for blocker in blocking), *reasons),
        decision=decision,
    )


def _blocking_reasons(report: JobReport, level: Level) -> Iterator[str]:
    for part in level.required:
        if _find_evidence(part, report) is None:
            yield f"no evidence of {part}, which this level requires"
    if report.build is not None and not report.build.ok:
        yield "the build failed"


def _find_evidence(part: Part, report: JobReport) -> object:
    """Return the evidence of a part, or None. A run without tests counts as none."""
    evidence = getattr(report, "unit" if part == "coverage" else part)
    if isinstance(evidence, SuiteRun):
        return evidence if evidence.passed + evidence.failed else None
    return evidence


def _earned_share(part: Part, report: JobReport, level: Level) -> tuple[float, str]:
    """Return the share of a part's points that was earned, 0 to 1, and the reason if it is less
    than 1.
    """
    evidence = _find_evidence(part, report)
    if evidence is None:
        return 0.0, f"{part}: not run"
    if part == "coverage" and isinstance(evidence, SuiteRun):
        return min(
            1.0, evidence.coverage / level.coverage
        ), f"coverage: {evidence.coverage:.0%} of the lines, required are {level.coverage:.0%}"
    if isinstance(evidence, SuiteRun):
        passed = evidence.ok and not evidence.failed
        return (
            float(passed),
            f"{part}: {evidence.failed} of {evidence.passed + evidence.failed} tests failed"
            if evidence.failed
            else f"{part}: not ok",
        )
    if isinstance(evidence, Static):
        return _static_share(evidence)
    return float(isinstance(evidence, Build) and evidence.ok), f"{part}: failed"


def _static_share(result: Static) -> tuple[float, str]:
    sonar = result.sonar
    if not result.ok:
        return 0.0, "static: not ok"
    if sonar.quality_gate and sonar.quality_gate.upper() != "OK":
        return 0.0, f"static: the quality gate says {sonar.quality_gate[:20]!r}"
    share = max(0.0, 1 - _CRITICAL * sonar.new_critical - _MAJOR * sonar.new_major)
    return (
        share,
        f"static: {sonar.new_critical} new critical and {sonar.new_major} new major findings",
    )
