"""``harness report``: what an experiment's page holds, that nothing in it can act, and which file it is written to."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from harness.core.types import ExampleRollout, Metric, Metrics
from harness.results import RunFolder, find_runs
from harness.results.counters import CounterRow
from harness.results.rows import COUNTERS, HeaderRow
from tests.report.html_reader import Page

Make = Callable[..., RunFolder]
REPOSITORY = Path(__file__).parents[2]
REFERENCE = REPOSITORY / "results" / "reference"
LOG = REPOSITORY / "tests" / "data" / "importers" / "trl_1.16_trainer_state.json"
EVIL = '<script>document.title="owned"</script><img src=x onerror="document.title=1">'
EVALUATIONS = {0: (0.2, 12.0), 2: (0.4, 15.0), 4: (0.6, 18.0)}


def _metrics(step: int) -> Metrics:
    kl = {f"kl/{pair}_k3": Metric(0.01 * step, count=9) for pair in ("reference", "previous")}
    return kl | {"grad_norm": Metric(1.0 + step), "clip_fraction": Metric(0.1 * step, count=9)}


def _report(folder: Path, out: Path, *options: str) -> str:
    assert main(["report", str(folder), "-o", str(out), *options]) == 0
    return out.read_text(encoding="utf-8")


def _row(text: str, table: str, name: str) -> list[str]:
    """Return the cells of a row of the table of this title, or of the short table."""
    start = f"<caption>{table}" if table else '<section id="c1-comparison"'
    rows = text.partition(start)[2].partition("</table>")[0]
    match = re.search(rf'<th scope="row">{re.escape(name)}</th>(.*?)</tr>', rows)
    assert match is not None, name
    return re.findall(r">([^<]*)</td>", match[1])


# ---- what is on it


def test_the_sections_in_order_and_the_numbers_of_the_short_table_and_of_the_critical_path(
    lagged: Path, tmp_path: Path
) -> None:
    """Every step takes 1 s.

    lag1, from the second step on, in milliseconds: generate 768 after transfer 20, verify 2, load 10. The Learner waits
    200, updates 700, publishes 10, verifies 2, and 88 belong to no stage; of the 200, score has 100, transfer 20,
    verify 2, load 10, generate 68. The first step, with syncs of five times the length, is warm-up.
    """
    text = _report(lagged, tmp_path / "r.html")
    assert _row(text, "", "whole step")[:2] == ["1.00", "1.00"]
    assert _row(text, "", "generate")[:2] == ["0.768", "0.748"]
    assert _row(text, "", "update")[:2] == ["0.700", "0.700"]
    assert _row(text, "", "validation reward")[:2] == ["0.600", "0.600"]
    critical = {
        name: _row(text, "Seconds per training step: busy", name)[0].split()
        for name in ("score", "generate", "update", "unattributed")
    }
    assert critical == {
        "score": ["0.100", "/", "0.100", "10.0%"],
        "generate": ["0.768", "/", "0.068", "6.8%"],
        "update": ["0.700", "/", "0.700", "70.0%"],
        "unattributed": ["-", "/", "0.088", "8.8%"],
    }
    assert "update in lag1 (70.0% of a step) and lag3 (70.0%)" in text
    page = Page(text)
    assert page.text("h1") == ["async_lag_sweep / 20261121-120000"]
    sections = [
        "At a glance", "Verdicts", "Where the time goes", "What was learned", "Lag and waste", "Weight syncs",
        "Provenance",
    ]  # fmt: skip
    assert page.text("h2") == sections
    assert page.text("a")[1:] == sections
    assert page.folded == [f"c1-{key}-title" for key in ("off_policy", "syncs", "provenance")]
    ids = Counter(attributes["id"] for _, attributes in page.tags if "id" in attributes)
    assert max(ids.values()) == 1
    links = {str(attributes["href"]) for _, attributes in page.tags if "href" in attributes}
    assert {link.removeprefix("#") for link in links} <= {*ids}


def test_counters_are_shown_where_a_run_has_them(make_run: Make, tmp_path: Path) -> None:
    """0.5 s of CPU time in each second is half a core; 1 GiB; 2 s over the loop's 4 s."""
    folder = make_run(metrics=_metrics).folder
    second = 1_000_000_000
    rows = [
        CounterRow((2 + at) * second, "driver", {"cpu_s": 10.0 + 0.5 * at, "rss_bytes": 2.0**30, "threads": 4.0})
        for at in range(5)
    ]
    rows.append(CounterRow(6 * second, "gpu", {}, {"gpu": "no <driver>"}))
    header = HeaderRow("harness.counters", 1)
    (folder / COUNTERS).write_bytes(b"".join(row.line() for row in (header, *rows)))
    text = _report(folder, tmp_path / "r.html")
    assert "Resources" in Page(text).text("h2")
    assert _row(text, "What processes used", "sync_k") == ["driver", "2.00", "0.500", "1.00", "4"]
    assert "No GPU numbers of sync_k: no &lt;driver&gt;." in text


def test_what_was_not_measured_is_left_out_and_folders_above_the_scenario(make_run: Make, tmp_path: Path) -> None:
    folder = make_run(metrics=lambda step: {}).folder
    (folder / "spans.jsonl").unlink()
    page = Page(_report(folder, tmp_path / "r.html"))
    assert page.text("h2") == ["At a glance", "Where the time goes", "What was learned", "Provenance"]
    folder = make_run(scenario="timed", arm="k1").folder
    text = _report(folder, tmp_path / "r.html")
    assert f"whatif .../{folder.relative_to(folder.parents[2])} --scale update=0.9" in text
    assert str(tmp_path) not in text


# ---- runs of every kind


@pytest.mark.parametrize("fields", [{"steps": 0, "status": "failed"}, {"status": "killed"}], ids=["no step", "killed"])
def test_a_run_that_did_not_get_to_its_end_is_shown(make_run: Make, tmp_path: Path, fields: dict[str, Any]) -> None:
    page = Page(_report(make_run(**fields).folder, tmp_path / "r.html"))
    told = "failed after 0 of 4 steps" if "steps" in fields else "did not finish after 4 of 4 steps"
    assert any(told in text for text in page.text("p"))


def test_an_imported_log_shows_what_it_has(tmp_path: Path) -> None:
    assert main(["import", "trl", str(LOG), "--out", str(tmp_path / "results")]) == 0
    text = _report(tmp_path / "results", tmp_path / "r.html")
    for title in ("Training reward", "Response length", "tokens per second, prompts included", "Seconds of a training"):
        assert title in text
    assert "To run it again" not in text
    assert "Seconds of a training step by stage" not in text  # the log has no stage but the evaluation


def test_a_transport_sweep_is_its_times(tmp_path: Path) -> None:
    text = _report(REFERENCE / "transport_sweep", tmp_path / "r.html")
    page = Page(text)
    assert page.text("h2")[:2] == ["At a glance", "Transports"]
    assert _row(text, "Publish to own tensors, ms: 1 receiver, 1 tensor", "nixl") == [
        "3.82 +-8%", "7.95 +-5%", "41.0 +-4%", "173 +-5%",
    ]  # fmt: skip

    assert "A weight sync by size" in text


@pytest.mark.slow
def test_every_committed_run_has_its_report(tmp_path: Path) -> None:
    text = _report(REFERENCE, tmp_path / "r.html", "--all")
    page = Page(text)
    experiments = {(run.manifest.scenario, run.manifest.experiment) for run in find_runs(REFERENCE)[0]}
    assert len(page.text("h2")) == len(experiments) + 1
    assert len(text) < 300_000 * len(experiments)
    assert max(Counter(own["id"] for _, own in page.tags if "id" in own).values()) == 1


# ---- nothing in it can act


def test_what_runs_say_is_shown_and_never_obeyed(tmp_path: Path, make_run: Make) -> None:
    rollouts = [
        ExampleRollout(f"Say: {EVIL}", f"before {EVIL}\n</pre><script>1</script>", "x", 0.0, 5, "stop", 0),
        ExampleRollout(f"Say: {EVIL}", f"after {EVIL}\x1b[31m\u202e", "x", 1.0, 4, "stop", 4),
    ]
    settings = "description: '</title><script>2</script>'\nsteps: 4\nmax_lag: '<b onclick=x>'\n"
    hostile: dict[str, Any] = {
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


def test_the_newest_experiment_is_shown_and_all_on_demand(
    make_run: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(scenario="older", started_at="2026-11-19T11:15:00.000Z", experiment="20261119-111500")
    make_run(scenario="newer")
    results, out = tmp_path / "results", tmp_path / "r.html"
    page = Page(_report(results, out))
    assert capsys.readouterr().out == f"report: {out} ({out.stat().st_size / 1e3:,.0f} kB)\n"
    assert page.text("h1") == ["newer / 20261120-111500"]
    assert page.text("h2")[0] == "Experiments"
    with out.open() as reader:  # of the old file, whose place the new one takes
        page, old = Page(_report(results, out, "--all")), reader.read()
    assert capsys.readouterr().out.endswith(", in place of an earlier one)\n")
    assert old != out.read_text()
    assert page.text("h1") == ["2 experiments"]
    assert page.text("h2") == ["Experiments", "newer / 20261120-111500", "older / 20261119-111500"]


def test_bad_input_leaves_the_old_report_and_other_files(
    make_run: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
