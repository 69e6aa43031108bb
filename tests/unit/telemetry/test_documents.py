"""The documentation matches the metrics, the spans and the dashboard."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from moothall.telemetry.metrics import REGISTRY, Histogram
from support.documents import table

ROOT = Path(__file__).resolve().parents[3]
DASHBOARD: dict[str, Any] = json.loads(
    (ROOT / "deploy" / "grafana" / "moothall.json").read_text(encoding="utf-8")
)


def queried_metrics() -> set[str]:
    panels = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
    return {
        name
        for panel in panels
        for target in panel["targets"]
        for name in re.findall(r"(?:moothall|gen_ai_client)_\w+", target["expr"])
    }


def samples() -> dict[str, str]:
    """Return the samples that Prometheus stores, by their metric."""
    figure_names = {}
    for figure in REGISTRY.figures.values():
        for end in ("_bucket", "_sum", "_count") if isinstance(figure, Histogram) else ("",):
            figure_names[f"{figure.name}{end}"] = figure.name
    return figure_names


def test_every_metric_is_documented() -> None:
    assert table("telemetry.md", "figure") == [
        [f"`{figure.name}`", figure.kind, ", ".join(figure.labels), figure.about]
        for figure in REGISTRY.figures.values()
    ]


def test_metric_names_follow_the_prometheus_conventions() -> None:
    for figure in REGISTRY.figures.values():
        assert re.fullmatch(r"(?:moothall|gen_ai_client)_[a-z_]+", figure.name)
        assert figure.name.endswith("_total") == (figure.kind == "counter")
        assert figure.about.endswith(".")


def test_the_dashboard_queries_existing_metrics() -> None:
    assert queried_metrics() <= set(samples())


def test_every_metric_has_a_panel() -> None:
    assert {samples()[name] for name in queried_metrics()} == set(REGISTRY.figures)


def test_labels_in_the_dashboard_belong_to_their_metrics() -> None:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            for by, name in re.findall(
                r"by \(([^)]*)\) \(rate\(((?:moothall|gen_ai_client)_\w+)", target["expr"]
            ):
                figure = REGISTRY.figures[samples()[name]]
                assert {label.strip() for label in by.split(",")} <= {
                    *figure.labels,
                    "process",
                    "le",
                }, target["expr"]
            legend = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            grouped = re.search(r"by \(([^)]*)\)", target["expr"])
            if grouped:
                assert legend <= {label.strip() for label in grouped[1].split(",")}, target


def test_the_dashboard_is_valid() -> None:
    panels = DASHBOARD["panels"]
    assert (DASHBOARD["uid"], DASHBOARD["schemaVersion"] >= 36) == ("moothall", True)
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    covered = [
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(covered) == len(set(covered)), "panels overlap"
    for panel in panels:
        expressions = [target["expr"] for target in panel.get("targets", ())]
        assert all(expression.count("(") == expression.count(")") for expression in expressions)
        assert bool(expressions) == (panel["type"] != "row")


def test_the_dashboard_matches_the_output_of_its_script() -> None:
    subprocess.run([sys.executable, ROOT / "scripts" / "dashboard.py", "--check"], check=True)
