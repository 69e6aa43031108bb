"""Models chosen by the results of earlier tasks: shares, pairs, kinds and budgets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.domain.budget import Budget, Usage
from moothall.orchestrator.seat_choice import (
    MIN_TASKS,
    PRICE_OF_DEAREST,
    Attempt,
    PastTask,
    TaskKind,
    choose_models,
    count_together,
    kind_of,
    main_language,
    pair_share,
    solve_share,
    usual_language,
)

KIND = TaskKind("shop", "python", "src", "short")
MODELS = ("", "cheap", "strong")
COSTS = {"": 0.02, "cheap": 0.001, "strong": 0.1}
UNLIMITED = Budget()


def attempt(model: str, *, solved: bool) -> Attempt:
    return Attempt(model, solved, solved, Usage(1000, 0, 100, 1, COSTS[model]))


def task(kind: TaskKind = KIND, **solved: bool) -> PastTask:
    """Return a task by model; `default` is the default model."""
    return PastTask(
        kind,
        tuple(
            attempt("" if model == "default" else model, solved=value)
            for model, value in solved.items()
        ),
    )


_ATTEMPTS = st.builds(
    lambda model, solved, first: replace(attempt(model, solved=solved), first=first and solved),
    st.sampled_from(MODELS),
    st.booleans(),
    st.booleans(),
)
_KINDS = st.builds(
    TaskKind,
    st.sampled_from(["shop", "bank"]),
    st.sampled_from(["python", "go", ""]),
    st.sampled_from(["src", ""]),
    st.sampled_from(["short", "long"]),
)
_TASKS = st.lists(
    st.builds(PastTask, _KINDS, st.lists(_ATTEMPTS, min_size=1, max_size=4).map(tuple)),
    max_size=25,
)
_PAIRS = st.tuples(st.sampled_from(MODELS), st.sampled_from(MODELS))


@given(_TASKS, _PAIRS)
def test_a_pair_is_no_worse_than_its_better_model_in_either_order(
    tasks: Sequence[PastTask], pair: tuple[str, str]
) -> None:
    share = pair_share(pair, tasks, [])
    singles = [solve_share(model, tasks) for model in pair]
    assert max(singles) <= share <= 1
    assert share == pytest.approx(pair_share((pair[1], pair[0]), tasks, []))


@given(_TASKS, st.sampled_from(MODELS), st.sampled_from([0.1, 0.5, 0.9]))
def test_a_solved_task_raises_the_share_and_a_failed_one_lowers_it(
    tasks: list[PastTask], model: str, expected: float
) -> None:
    share = solve_share(model, tasks, expected)
    assert 0 < share < 1
    assert solve_share(model, [*tasks, _single_attempt(model, solved=True)], expected) > share
    assert solve_share(model, [*tasks, _single_attempt(model, solved=False)], expected) < share


def _single_attempt(model: str, *, solved: bool) -> PastTask:
    return PastTask(KIND, (attempt(model, solved=solved),))


@given(_TASKS, _KINDS, st.integers(1, 5), st.sampled_from([0.0, 0.01, 0.05, 1.0]))
def test_a_choice_is_known_affordable_explained_and_independent_of_the_order(
    tasks: list[PastTask], kind: TaskKind, seats: int, dollars: float
) -> None:
    choice = choose_models(kind, tasks, MODELS, seats, Budget(cost_usd=dollars))
    backwards = choose_models(kind, tasks[::-1], MODELS, seats, Budget(cost_usd=dollars))
    assert choice.models == backwards.models
    learned = len(tasks) >= MIN_TASKS and any(
        past.solved for task in tasks for past in task.attempts
    )
    assert bool(choice.models) == learned
    assert choice.reason.startswith("auto: ")
    assert "\n" not in choice.reason
    if not learned:
        assert "nothing to learn from yet" in choice.reason
        return
    assert len(choice.models) == min(seats, 2)
    tried_models = {past.model for task in tasks for past in task.attempts}
    assert {*choice.models} <= tried_models
    unlimited = choose_models(kind, tasks, MODELS, seats, UNLIMITED)
    assert unlimited.share >= choice.share - PRICE_OF_DEAREST
    if choice.cost > dollars > 0:  # then nothing was affordable, and this is the cheapest
        cheapest = choose_models(kind, tasks, MODELS, seats, Budget(cost_usd=1e-9))
        assert cheapest.models == choice.models


@given(_TASKS, st.sampled_from(MODELS))
def test_tasks_that_both_seats_of_a_model_failed_lower_its_pair_share(
    tasks: list[PastTask], model: str
) -> None:
    failed = PastTask(KIND, (attempt(model, solved=False),) * 2)
    pair = (model, model)
    together, solved = count_together(pair, tasks)
    assert count_together(pair, [*tasks, failed]) == (together + 1, solved)
    assert pair_share(pair, [*tasks, failed], []) <= pair_share(pair, tasks, [])


def test_models_that_solve_different_tasks_complement_each_other() -> None:
    """`strong` and the default solve the same tasks; `cheap` solves others."""
    tasks = [task(default=True, strong=True, cheap=False)] * 6
    tasks += [task(default=False, strong=False, cheap=True)] * 4
    choice = choose_models(KIND, tasks, MODELS, 2, UNLIMITED)
    assert choice.models == ("", "cheap")
    assert "default + cheap (" in choice.reason
    assert "default solved 6 of 10, 6 with its first answer" in choice.reason
    assert "cheap solved 4 of 10" in choice.reason
    assert "together 10 of 10" in choice.reason
    assert ". Next best: cheap + strong (" in choice.reason
    assert "10 earlier tasks of this repository (python, src, short)" in choice.reason


def test_the_cheaper_of_two_equal_pairs_is_chosen() -> None:
    tasks = [task(cheap=True, strong=True)] * 10
    assert choose_models(KIND, tasks, MODELS, 2, UNLIMITED).models == ("cheap", "cheap")


def test_a_budget_excludes_a_pair() -> None:
    tasks = [task(cheap=number < 3, strong=True) for number in range(10)]
    assert choose_models(KIND, tasks, MODELS, 2, UNLIMITED).models == ("cheap", "strong")
    affordable = choose_models(KIND, tasks, MODELS, 2, Budget(cost_usd=0.05))
    assert affordable.models == ("cheap", "cheap")
    # Four seats cost twice as much.
    assert choose_models(KIND, tasks, MODELS, 4, Budget(cost_usd=0.15)).models == ("cheap", "cheap")


def test_without_prices_tokens_are_the_cost() -> None:
    free = [
        PastTask(
            KIND,
            (Attempt("cheap", False, False, Usage(100)), Attempt("strong", True, True, Usage(900))),
        )
    ] * 8
    assert choose_models(KIND, free, MODELS, 2, UNLIMITED).models == ("cheap", "strong")
    limited = choose_models(KIND, free, MODELS, 2, Budget(tokens=500))
    assert (limited.models, limited.cost) == (("cheap", "cheap"), 200)
    assert "200 tokens" in limited.reason


def test_each_kind_has_its_models_and_a_rare_kind_is_generalised() -> None:
    go = replace(KIND, language="go")
    tasks = [task(cheap=True, strong=False)] * 6 + [task(go, cheap=False, strong=True)] * 6
    assert choose_models(KIND, tasks, MODELS, 1, UNLIMITED).models == ("cheap",)
    assert choose_models(go, tasks, MODELS, 1, UNLIMITED).models == ("strong",)
    rare = choose_models(replace(go, area="cmd", size="long"), tasks, MODELS, 1, UNLIMITED)
    assert rare.models == ("strong",)
    assert "of this repository (go)" in rare.reason
    generalised = choose_models(TaskKind("bank", "go"), tasks, MODELS, 1, UNLIMITED)
    assert generalised.models == ("strong",)
    assert "of all repositories (go)" in generalised.reason


def test_models_removed_from_the_settings_are_ignored() -> None:
    tasks = [task(cheap=True, strong=True)] * 6
    assert choose_models(KIND, tasks, ("strong",), 2, UNLIMITED).models == ("strong", "strong")
    assert choose_models(KIND, tasks, ("",), 2, UNLIMITED).models == ()


@pytest.mark.parametrize(
    ("text", "language", "area", "size"),
    [
        ("Fix the rounding in src/shop/total.py", "python", "src", "short"),
        ("`./cmd/main.go` panics. See docs/a.md", "go", "cmd", "short"),
        ("total.rs: overflow", "rust", "", "short"),
        ("See https://example.org/a/b.py", "javascript", "", "short"),
        ("Make it faster, i.e. twice", "javascript", "", "short"),
        ("word " * 41, "javascript", "", "long"),
    ],
)
def test_the_kind_of_a_task_is_read_from_its_text(
    text: str, language: str, area: str, size: str
) -> None:
    assert kind_of(text, "shop", "javascript") == TaskKind("shop", language, area, size)


@given(st.text())
def test_any_text_has_a_kind(text: str) -> None:
    kind = kind_of(text, "shop", "")
    assert kind.size in {"short", "long"}
    assert len(kind_of(f"{'x' * 999}/{text}/y.py", "shop", "").area) <= 40


def test_the_main_language_is_detected() -> None:
    assert main_language(["a.py", "b/c.go", "d.py", "README"]) == "python"
    assert main_language(["README"]) == ""
    assert usual_language([task(), task(replace(KIND, repository="x"))], "shop") == "python"
    assert usual_language([], "shop") == ""
