"""``harness report``: what an experiment's page holds, that nothing in it can act, and which file it is written to."""

import re
from pathlib import Path

import pytest

from harness.cli import main
from harness.core.types import ExampleRollout, Metric
from harness.results.counters import CounterRow
from tests.report.html_reader import Page

REPOSITORY = Path(__file__).parents[2]
REFERENCE = REPOSITORY / "results" / "reference"
LOG = REPOSITORY / "tests" / "data" / "importers" / "trl_1.16_trainer_state.json"
EVIL = '<script>document.title="owned"</script><img src=x onerror="document.title=1">'
EVALUATIONS = {0: (0.2, 12.0), 2: (0.4, 15.0), 4: (0.6, 18.0)}


def _metrics(step):
    kl = {f"kl/{pair}_k3": Metric(0.01 * step, count=9) for pair in ("reference", "previous")}
    return kl | {"grad_norm": Metric(1.0 + step), "clip_fraction": Metric(0.1 * step, count=9)}


@pytest.fixture
def _not_drawn(monkeypatch):
    """Leave charts out of the page: they take seconds."""
    monkeypatch.setattr("harness.report.document.Chart.figure", None)
    monkeypatch.setattr("harness.report.svg.page_svg", lambda figure, prefix: "")


def _report(folder, out, *options):
    assert main(["report", str(folder), "-o", str(out), *options]) == 0
    return out.read_text(encoding="utf-8")


def _row(text, table, name):
    """Return the cells of a row of the table of this title, or of the short table."""
    start = f"<caption>{table}" if table else '<section id="c1-comparison"'
    rows = text.partition(start)[2].partition("</table>")[0]
    match = re.search(rf'<th scope="row">{re.escape(name)}</th>(.*?)</tr>', rows)
    assert match is not None, name
    return re.findall(r">([^<]*)</td>", match[1])


# ---- what is on it


def test_the_sections_in_order_and_the_numbers_of_the_short_table_and_of_the_critical_path(lagged, tmp_path):
    """Every step takes 1 s.

    lag1, from the second step on, in milliseconds: generate 768 after transfer 20, verify 2, load 10. The Learner waits
    200, updates 700, publishes 10, verifies 2, and 88 belong to no stage; of the 200, score has 100, transfer 20,
    verify 2, load 10, generate 68. The first step, with syncs of five times the length, is warm-up.
    """
    text = _report(lagged, tmp_path / "r.html")
    short = {"whole step": "1.00", "generate": "0.768", "update": "0.700", "validation reward": "0.600"}
    assert {name: _row(text, "", name)[0] for name in short} == short
    critical = {
        "score": "0.100 / 0.100 10.0%", "generate": "0.768 / 0.068 6.8%", "update": "0.700 / 0.700 70.0%",
        "unattributed": "- / 0.088 8.8%",
    }  # fmt: skip
    busy = {name: _row(text, "Seconds per training step: busy", name)[0].split() for name in critical}
    assert {name: " ".join(cell) for name, cell in busy.items()} == critical
    page = Page(text)
    assert page.text("h1") == ["async_lag_sweep / 20261121-120000"]
    sections = [
        "At a glance", "Verdicts", "Where the time goes", "What was learned", "Lag and waste", "Weight syncs",
        "Provenance",
    ]  # fmt: skip
    assert page.text("h2") == page.text("a")[1:] == sections
    assert page.folded == [f"c1-{key}-title" for key in ("off_policy", "syncs", "provenance")]


@pytest.mark.usefixtures("_not_drawn")
def test_counters_are_shown_where_a_run_has_them(make_run, tmp_path):
    """0.5 s of CPU time in each second is half a core; 1 GiB; 2 s over the loop's 4 s."""
    run, second = make_run(metrics=_metrics, status="running"), 1_000_000_000
    for at in range(5):
        used = {"cpu_s": 10.0 + 0.5 * at, "rss_bytes": 2.0**30, "threads": 4.0}
        run.append(CounterRow((2 + at) * second, "driver", used))
    run.append(CounterRow(6 * second, "gpu", {}, {"gpu": "no <driver>"}))
    run.finish("completed", None, {})
    text = _report(run.folder, tmp_path / "r.html")
    assert "Resources" in Page(text).text("h2")
    assert _row(text, "What processes used", "sync_k") == ["driver", "2.00", "0.500", "1.00", "4"]
    assert "no &lt;driver&gt;." in text


@pytest.mark.usefixtures("_not_drawn")
def test_what_was_not_measured_is_left_out_and_folders_above_the_scenario(make_run, tmp_path):
    folder = make_run(metrics=lambda step: {}).folder
    (folder / "spans.jsonl").unlink()
    page = Page(_report(folder, tmp_path / "r.html"))
    assert page.text("h2") == ["At a glance", "Where the time goes", "What was learned", "Provenance"]
    folder = make_run(scenario="timed", arm="k1").folder
    text = _report(folder, tmp_path / "r.html")
    assert f"whatif .../{folder.relative_to(folder.parents[2])} --scale update=0.9" in text
    assert str(tmp_path) not in text


# ---- runs of every kind


def test_an_imported_log_and_a_transport_sweep_show_what_they_have(tmp_path):
    assert main(["import", "trl", str(LOG), "--out", str(tmp_path / "results")]) == 0
    text = _report(tmp_path / "results", tmp_path / "r.html")
    for title in ("Training reward", "Response length", "Seconds of a training step"):
        assert title in text
    assert "Seconds of a training step by stage" not in text  # the log has no stage but the evaluation
    text = _report(REFERENCE / "transport_sweep", tmp_path / "r.html")
    assert Page(text).text("h2")[:2] == ["At a glance", "Transports"]
    row = _row(text, "Publish to own tensors, ms: 1 receiver, 1 tensor", "nixl")
    assert row == ["3.82 +-8%", "7.95 +-5%", "41.0 +-4%", "173 +-5%"]


# ---- nothing in it can act


def test_what_runs_say_is_shown_and_never_obeyed(tmp_path, make_run):
    rollouts = [
        ExampleRollout(f"Say: {EVIL}", f"before {EVIL}\n</pre><script>1</script>", "x", 0.0, 5, "stop", 0),
        ExampleRollout(f"Say: {EVIL}", f"after {EVIL}\x1b[31m\u202e", "x", 1.0, 4, "stop", 4),
    ]
    settings = "description: '</title><script>2</script>'\nsteps: 4\nmax_lag: '<b onclick=x>'\n"
    hostile = {
        "evaluations": EVALUATIONS, "rollouts": rollouts, "settings": settings, "metrics": _metrics,
        "versions": {"python": "<i>3</i>", "torch": None}, "machine": {"cpu": "<svg onload=x>", "cores": 2},
    }  # fmt: skip
    make_run(arm='a"><script>3</script>', error="<u>failed</u>", status="failed", **hostile)
    make_run(arm="$b$ javascript:x", **hostile)
    found = Page(_report(tmp_path / "results", tmp_path / "r.html"))
    found.assert_harmless()
    shown = found.text("pre")
    assert f"Say: {EVIL}" in shown
    assert f"before {EVIL}\n</pre><script>1</script>" in shown
    assert f"after {EVIL}\\x1b[31m\\u202e" in shown
    assert "</title><script>2</script>" in found.text("p")
    assert {"<svg onload=x>", "<i>3</i>", "<b onclick=x>"} <= {*found.text("td")}
    assert 'a"><script>3</script>' in found.text("th")
    assert any("<u>failed</u>" in each for each in found.text("p"))


# ---- the command


@pytest.mark.usefixtures("_not_drawn")
def test_the_newest_experiment_is_shown_and_all_on_demand(make_run, tmp_path, capsys):
    make_run(scenario="older", started_at="2026-11-19T11:15:00.000Z", experiment="20261119-111500")
    make_run(scenario="newer")
    results, out = tmp_path / "results", tmp_path / "r.html"
    page = Page(_report(results, out))
    assert capsys.readouterr().out == f"report: {out} ({out.stat().st_size / 1e3:,.0f} kB)\n"
    assert (page.text("h1"), page.text("h2")[0]) == (["newer / 20261120-111500"], "Experiments")
    with out.open() as reader:  # of the old file, whose place the new one takes
        page, old = Page(_report(results, out, "--all")), reader.read()
    assert "earlier one" in capsys.readouterr().out
    assert old != out.read_text()
    assert page.text("h1") == ["2 experiments"]
    assert page.text("h2") == ["Experiments", "newer / 20261120-111500", "older / 20261119-111500"]


@pytest.mark.usefixtures("_not_drawn")
def test_bad_input_leaves_the_old_report_and_other_files(make_run, tmp_path, capsys):
    out, results = tmp_path / "r.html", tmp_path / "results"
    old = _report(make_run().folder, out)
    capsys.readouterr()
    (tmp_path / "file").write_text("mine")
    (tmp_path / "empty").mkdir()
    refused = {
        (tmp_path / "nowhere", out): "does not exist", (tmp_path / "empty", out): "no run",
        (results, tmp_path): "is a folder",
        (results, tmp_path / "file"): "is no report of this command",
        (results, tmp_path / "file" / "r.html"): "there is no folder",
    }  # fmt: skip
    for (folder, target), words in refused.items():
        assert main(["report", str(folder), "-o", str(target)]) == 2
        error = capsys.readouterr().err
        assert (words in error, error.count("error:"), "Traceback" in error) == (True, 1, False), (folder, target)
    assert (out.read_text(), (tmp_path / "file").read_text()) == (old, "mine")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file", "r.html", "results"]
