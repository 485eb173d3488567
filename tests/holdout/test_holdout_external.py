"""The examination on published figures: what is arithmetic in it, on figures of the tests' own."""

from pathlib import Path

import pytest

from tests.holdout.external import (
    Published,
    Serving,
    arithmetic,
    figure_rows,
    fit,
    load,
    predict,
    run_rows,
    serving_rows,
    simulated_tokens_s,
)


def made_up(running=(1, 4, 16, 64)):
    """Return a curve of 2 ms a step and 50 us a request in it."""
    return Serving(
        running=running,
        tokens_s=tuple(c / (0.002 + 0.00005 * c) for c in running),
        formula={"most_tokens_s": 20000, "half": 40},
        arms={"running": (5, 9), "formula_off": (-0.2, -0.1)},
    )


def test_a_hyperbola_is_fitted_exactly_and_is_what_the_simulated_engine_decodes():
    decode = fit(made_up())
    for running in (4, 63):
        assert simulated_tokens_s(decode, running) == pytest.approx(running / (0.002 + 0.00005 * running), rel=1e-6)


@pytest.mark.parametrize(("generate_s", "update_s"), [(4.0, 3.0), (1 / 1.5, 1 / 2.5)])
def test_the_trainer_of_a_two_rate_queue_starves_by_what_the_slower_rate_lacks(generate_s, update_s):
    found = predict(Published(generate_s=generate_s, update_s=update_s), {})
    assert found.figure("idle") == pytest.approx((1 - update_s / generate_s,) * 2, abs=1e-9)
    assert found.figure("step") == pytest.approx((generate_s,) * 2)
    assert found.figure("wait") == pytest.approx((generate_s - update_s,) * 2)


def test_a_sync_stops_the_busier_lane_and_everything_adds_up_without_a_lag():
    apart = {"generate_s": 5.0, "update_s": 2.0, "sync_s": 1.5}
    for changed, step_s in (({}, 6.5), ({"max_lag": 0}, 8.5), ({"update_s": 9.0}, 10.5)):
        ours, added_up = predict(Published(**apart | changed), {}).figure("step")
        assert ours == pytest.approx(step_s)
        assert added_up == pytest.approx(step_s, rel=2e-3)  # the last step of a run has no weights to load


def test_numbers_are_arithmetic_and_nothing_else():
    assert arithmetic("(1 - 0.25) * 4 / 2") == 1.5
    assert arithmetic(3) == 3
    for text in ("open('x')", "a + 1", "1 +"):
        with pytest.raises(ValueError, match="arithmetic"):
            arithmetic(text)


def test_every_figure_names_a_source_and_runs_that_there_are():
    data = load()
    figures = (*data.figures, *data.corrected)
    assert {figure.source for figure in figures} <= data.sources.keys()
    assert {name for figure in figures for name in (figure.run, figure.minus) if name} == data.runs.keys()
    assert all(figure.why for figure in data.corrected)


def test_the_committed_page_has_what_comes_out_now():
    """Of the runs some: all of them take seconds. 1 - 1.95 / 2.75, for one, is a starvation of 29.09%."""
    data, page = load(), Path("docs/measured/external_forecasts.md").read_text(encoding="utf-8")
    assert "| `two rates` | 30 % | 29.09 % | -3.0% | 29.09 % | -3.0% |" in page
    decode, runs = fit(data.serving), ("qwen async", "qwen sync", "snowball C2 by steps", "two rates")
    few = [figure for figure in data.figures if figure.run in runs]
    assert len(few) == 7
    rows = [*serving_rows(data, decode), *figure_rows(data, few, decode), *run_rows(data)]
    assert [row for row in rows if f"| {' | '.join(row)} |\n" not in page] == []
