"""The meaning of `--config`, and the configurations that can be compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from moothall.config import Settings
from moothall.domain.budget import Usage
from moothall.errors import ConfigurationError, InvalidRequest
from moothall.evaluate.runner import (
    Configuration,
    Options,
    check_configurations,
    read_configurations,
)
from moothall.evaluate.tasks import Lines
from moothall.orchestrator.seat_choice import Attempt, PastTask, TaskKind
from moothall.settings import load_settings


def _read_configurations(tmp_path: Path, *named: str) -> list[Configuration]:
    return read_configurations(named, load_settings(), Options(agents=3), tmp_path, load_settings)


def _file(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_the_current_settings_are_measured_by_default(tmp_path: Path) -> None:
    (configuration,) = _read_configurations(tmp_path)
    assert (configuration.name, configuration.options.agents, configuration.settings.data_dir) == (
        "default",
        3,
        tmp_path / "data",
    )


def test_seats_have_no_network_access(tmp_path: Path) -> None:
    path = _file(tmp_path, "open.toml", '[http]\nallow = ["127.0.0.1"]\n')
    (configuration,) = _read_configurations(tmp_path, f"open={path}")
    closed_settings: Settings = configuration.settings
    assert (closed_settings.http.allow, closed_settings.http.only_allowed) == ((), True)  # type: ignore[attr-defined] # a family's section


def test_a_configuration_may_have_its_own_options(tmp_path: Path) -> None:
    path = _file(tmp_path, "small.toml", "[limits]\nturns = 7\n")
    inline, small = _read_configurations(tmp_path, "one=,agents=1,protocol=single", f"small={path}")
    assert (inline.options, small.options) == (
        Options(agents=1, protocol="single"),
        Options(agents=3),
    )
    assert small.settings.limits.turns == 7


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (("small.toml",), "NAME=FILE"),
        (("=small.toml",), "NAME=FILE"),
        (("../x=,agents=1",), "a name has"),
        (("a=,agents=1", "a=,agents=2"), "twice"),
        (("a=,agents=0",), "not an option"),
        (("a=,seats=3",), "not an option"),
    ],
)
def test_an_invalid_configuration_is_refused(
    tmp_path: Path, named: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        _read_configurations(tmp_path, *named)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"--config a: .*nothing\.toml"):
        _read_configurations(tmp_path, f"a={tmp_path / 'nothing.toml'}")


def test_equal_configurations_are_refused(tmp_path: Path) -> None:
    path = _file(tmp_path, "same.toml", "[llm]\n")
    with pytest.raises(InvalidRequest, match="a and b have the same settings"):
        check_configurations(
            _read_configurations(tmp_path, f"a={path}", f"b={path}"),
            Lines(tmp_path / "results.jsonl"),
        )


def test_a_changed_configuration_needs_another_name(tmp_path: Path) -> None:
    results = Lines(tmp_path / "results.jsonl")
    (configuration,) = _read_configurations(tmp_path, "one=,agents=1")
    results.add({"task": "t", "config": "one", "digest": configuration.digest})
    check_configurations([configuration], results)
    with pytest.raises(InvalidRequest, match="measured with other settings"):
        check_configurations(_read_configurations(tmp_path, "one=,agents=2"), results)


def test_a_broken_configuration_may_be_corrected_under_its_name(
    tmp_path: Path,
) -> None:
    results = Lines(tmp_path / "results.jsonl")
    (configuration,) = _read_configurations(tmp_path, "one=,agents=1")
    results.add(
        {
            "task": "t",
            "config": "one",
            "digest": configuration.digest,
            "broken": True,
            "why": "no model server",
        }
    )
    check_configurations(_read_configurations(tmp_path, "one=,agents=2"), results)


def test_a_plus_separates_the_models_of_the_seats(tmp_path: Path) -> None:
    (pair,) = _read_configurations(tmp_path, "pair=,model=small+large")
    assert pair.options.model == "small,large"
    assert not pair.leaves_choice


def _past_tasks(*solved: bool) -> list[PastTask]:
    usage = Usage(1000, 0, 100, 1, 0.01)
    return [
        PastTask(
            TaskKind("shop"),
            (Attempt("", not value, not value, usage), Attempt("deep", value, value, usage)),
        )
        for value in solved
    ]


def test_models_are_chosen_from_the_results_of_other_tasks(tmp_path: Path) -> None:
    path = _file(tmp_path, "auto.toml", 'seats = "auto"\n[models.deep]\nmodel = "deep"\n')
    (by_setting,) = _read_configurations(tmp_path, f"a={path}")
    (by_option,) = _read_configurations(tmp_path, f"a={path},model=auto,agents=2")
    assert by_setting.leaves_choice
    assert by_option.leaves_choice
    chosen, reason = by_option.choose(TaskKind("shop"), _past_tasks(*[True] * 6, *[False] * 4))
    assert (chosen.options.model, chosen.options.agents) == ("default,deep", 2)
    assert "together 10 of 10" in reason
    single, _ = _read_configurations(tmp_path, f"a={path},model=auto,protocol=single")[0].choose(
        TaskKind("shop"), _past_tasks(*[True] * 6)
    )
    assert (single.options.model, single.options.agents) == ("deep", 1)
    cold, reason = by_setting.choose(TaskKind("shop"), [])
    assert (cold.options.model, cold.options.agents) == ("default", 3)
    assert "nothing to learn from yet" in reason
