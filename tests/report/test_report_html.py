"""An experiment's report: its sections and sentences, the same bytes each time, and nothing in it that could act."""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from harness.cli import main
from harness.core.errors import UserError
from harness.core.types import ExampleRollout, Metric, Metrics
from harness.loop import Count, RolloutCounts
from harness.loop.replay import ReplayStats
from harness.report.html.page import make_report
from harness.results import RunFolder, find_runs
from harness.results.counters import COUNTERS, CounterRow
from harness.results.rows import HeaderRow

Make = Callable[..., RunFolder]
EVIL = '<script>document.title="owned"</script><img src=x onerror="document.title=1">'
EVALUATIONS = {0: (0.2, 12.0), 2: (0.4, 15.0), 4: (0.6, 18.0)}
VOID = {"meta", "br", "col"}
SECTIONS = [
    "What the figures say",
    "Verdicts",
    "Where the time goes",
    "Timeline",
    "What was learned",
    "Lag and waste",
    "Weight syncs",
    "Provenance",
]


class Page(HTMLParser):
    """What a browser would see: elements in order, their text, and whether every one of them is closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.stack: list[str] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(page)
        assert self.stack == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.stack[-1] if self.stack else "", data))

    def text(self, tag: str) -> list[str]:
        """Return the texts right inside elements of this name."""
        return [text for name, text in self.texts if name == tag]


def _metrics(step: int) -> Metrics:
    kl = {f"kl/{pair}_k3": Metric(0.01 * step, count=9) for pair in ("reference", "previous")}
    return kl | {"grad_norm": Metric(1.0 + step), "clip_fraction": Metric(0.1 * step, count=9)}


def _report(folder: Path, out: Path, everything: bool = False) -> str:
    make_report([folder], out, everything)
    return out.read_text(encoding="utf-8")


def test_a_experiment_has_its_sections_in_order(lagged: Path, tmp_path: Path) -> None:
    page = Page(_report(lagged, tmp_path / "report.html"))
    assert page.text("h1") == ["async_lag_sweep"]
    assert page.text("h3") == SECTIONS
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [attributes["href"] for tag, attributes in page.tags if tag == "a"]
    assert links[0] == "#content"
    assert [page.text("a")[1:], len(links)] == [SECTIONS, len(SECTIONS) + 1]
    used = links + [attributes["href"] for tag, attributes in page.tags if tag == "use"]
    assert {str(link).removeprefix("#") for link in used} <= set(ids)


def test_exposed_times_stand_beside_the_times_spent(lagged: Path, tmp_path: Path) -> None:
    page = _report(lagged, tmp_path / "report.html")
    # lag1, from the second step on, milliseconds: the Learner waits 200, updates 700, publishes 10, verifies 2, and 88
    # belong to no stage; of the 200, scoring has 100, transfer 20, verify 2, load 10, generate 68. The first step, with
    # syncs of five times the length, is warm-up.
    spent = page.partition("<caption>Seconds per training step, spent and exposed")[2].partition("</table>")[0]
    rows = dict(re.findall(r'<th scope="row">(\w+|no stage)</th>((?:<td class="n">[^<]*</td>)+)', spent))
    cells = {name: re.findall(r">([^<]*)</td>", row)[:3] for name, row in rows.items()}
    assert cells["update"][1] == "0.700 [0.700, 0.700]"
    assert cells["score"][1] == "0.100 [0.100, 0.100]"
    assert cells["generate"][1] == "0.068 [0.068, 0.068]"
    assert cells["no stage"][1] == "0.088 [0.088, 0.088]"
    assert "<title>no stage: 0.088 s</title>" in page
    assert "its exposed time, is update in lag1 (70% of a step) and lag3 (70% of a step)." in page


def test_spent_and_exposed_are_of_the_same_runs(make_run: Callable[..., RunFolder], tmp_path: Path) -> None:
    """The lanes take turns, and the one of two blocks without spans is twice as slow: it looked as if half of the time
    spent had been hidden."""
    for block in (0, 1):
        run = make_run(scenario="turns", block=block, seed=block, pace=lambda step, block=block: 1.0 + block)
    (run.folder / "spans.jsonl").unlink()
    page = _report(tmp_path / "results", tmp_path / "report.html")
    table = page.partition("<caption>Seconds per training step, spent and exposed")[2].partition("</figure>")[0]
    for stage, seconds in (("generate", "0.300"), ("update", "0.500")):
        row = re.search(rf'<th scope="row">{stage}</th>((?:<td class="n">[^<]*</td>)+)', table)
        assert row is not None
        assert re.findall(r">([^<]*)</td>", row[1])[:2] == [seconds, seconds]
    assert "of the 1 of 2 runs that kept their spans" in table


def test_the_timeline_shows_six_steps_by_rule(lagged: Path, tmp_path: Path) -> None:
    page = _report(lagged, tmp_path / "report.html")
    # the first window after a quarter of 12 steps: steps 3 to 8, 6 s; the update of step 3 goes from 0.2 to 0.9 s
    assert "lag1 training steps 3 to 8 in 6.00 s" in page.replace("\u00a0", " ")
    rect = '<rect x="3.333%" width="11.667%" y="13" height="18" class="st-update">'
    assert f"{rect}<title>update, step 3: 0.700 s</title></rect>" in page
    wait = '<rect x="0%" width="3.333%" y="13" height="18" class="wait">'
    assert f"{wait}<title>wait_for_batch, step 3: 0.200 s</title></rect>" in page
    assert page.count('class="version"') >= 24  # generator and learner, six steps, two arms


def test_a_sync_is_shown_as_its_parts(lagged: Path, tmp_path: Path) -> None:
    page = _report(lagged, tmp_path / "report.html")
    anatomy = page.partition("What a weight sync is made of")[2].partition("</figure>")[0]
    bars = re.findall(r'<rect x="([\d.]+)%" width="([\d.]+)%"[^>]*><title>([^<]*)', anatomy)
    # lag3 takes 10 + 30 + 20 ms and verifies for 2 on both sides: 64, so the axis ends at 80; lag1 10 + 20 + 10 + 4
    assert bars[:4] == [
        ("0", "12.5", "publish: 10.0 ms"),
        ("12.5", "25", "transfer: 20.0 ms"),
        ("37.5", "12.5", "load: 10.0 ms"),
        ("50", "5", "verify: 4.00 ms"),
    ]
    assert bars[5] == ("12.5", "37.5", "transfer: 30.0 ms")


@pytest.mark.parametrize("status", ["killed", "running", "interrupted"])
def test_a_run_that_was_cut_short_is_shown(make_run: Make, tmp_path: Path, status: str) -> None:
    page = Page(_report(make_run(status=status, metrics=_metrics).folder, tmp_path / "report.html"))
    assert page.text("h3")[1:4] == ["Where the time goes", "Timeline", "What was learned"]


def test_the_report_loads_nothing_heavy(make_run: Make, tmp_path: Path) -> None:
    folder, out = make_run().folder, tmp_path / "report.html"
    code = (
        "import sys; from harness.cli import main; "
        f"assert main(['report', {str(folder)!r}, '-o', {str(out)!r}]) == 0; "
        "print({'torch', 'ray', 'matplotlib', 'seaborn', 'pandas', 'pydantic'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


@pytest.mark.slow
def test_every_committed_run_has_its_report(tmp_path: Path) -> None:
    reference = Path(__file__).parents[2] / "results" / "reference"
    text = _report(reference, tmp_path / "report.html", everything=True)
    page = Page(text)
    experiments = {(run.manifest.scenario, run.manifest.experiment) for run in find_runs(reference)[0]}
    assert len(page.text("h2")) == len(experiments)
    assert len(text) < 250_000 * len(experiments)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_the_same_runs_give_the_same_bytes(lagged: Path, tmp_path: Path) -> None:
    first = _report(lagged, tmp_path / "one.html")
    assert first == _report(lagged, tmp_path / "two.html")
    assert len(first) < 3_000_000


def test_the_page_may_do_nothing_but_show_itself(lagged: Path, tmp_path: Path) -> None:
    text = _report(lagged, tmp_path / "report.html")
    page = Page(text)
    (policy,) = [a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"]
    (style,) = page.text("style")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "img", "iframe", "link", "object", "embed", "form", "base", "foreignobject"}
    attributes = {name for _, found in page.tags for name in found}
    assert "style" not in attributes
    assert not any(name.startswith("on") or name in ("src", "srcset", "action") for name in attributes)
    assert "//" not in re.sub(r"[\w ]+//[\w ]+", "", text.replace("</", ""))  # no address of anything
    assert "url(" not in style.replace("url(#hatch-", "")


def test_what_runs_say_is_shown_and_never_obeyed(tmp_path: Path, make_run: Make) -> None:
    rollouts = [
        ExampleRollout(f"Say: {EVIL}", f"before {EVIL}\n</pre><script>1</script>", "x", 0.0, 5, "stop", 0),
        ExampleRollout(f"Say: {EVIL}", f"after {EVIL}\x1b[31m", "x", 1.0, 4, "stop", 4),
    ]
    settings = "description: '</title><script>2</script>'\nsteps: 4\nmax_lag: '<b onclick=x>'\n"
    folder = make_run(
        arm='a"><script>3</script>', evaluations=EVALUATIONS, rollouts=rollouts, settings=settings,
        versions={"python": "<i>3</i>", "torch": None}, machine={"cpu": "<svg onload=x>", "cores": 2},
        metrics=_metrics, error="<u>failed</u>", status="failed",
    ).folder  # fmt: skip
    text = _report(folder, tmp_path / "report.html")
    page = Page(text)
    assert not {"script", "img", "b", "i", "u"} & {tag for tag, _ in page.tags}
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    shown = page.text("pre")
    assert f"Say: {EVIL}" in shown
    assert f"before {EVIL}\n</pre><script>1</script>" in shown
    assert f"after {EVIL}\\x1b[31m" in shown
    assert "</title><script>2</script>" in page.text("p")
    assert any("<svg onload=x>" in text for text in page.text("p"))


def test_training_curves_and_growth_of_kl_stand_in_the_page(make_run: Make, tmp_path: Path) -> None:
    """Old code: neither loss nor training reward nor groups without a signal were in any page."""
    make_run(
        steps=40,
        settings="steps: 40\nloss: {kl: {reference: frozen}}\n",
        optimizer_steps=2,
        optimizer_step_metrics=lambda step: [{"loss": Metric(0.1)}, {"loss": Metric(0.2)}],
        metrics=lambda step: {
            "kl/reference_k3": Metric(0.001 * min(step, 20) + 0.01 * max(0, step - 20), count=9),
            "reward/total": Metric(0.5, count=64),
            "loss": Metric(0.15),
            "zero_variance_fraction": Metric(1.0, count=8),
        },
        evaluations=dict.fromkeys(range(0, 41, 10), (0.5, 9.0)),
    )
    text = _report(tmp_path / "results", tmp_path / "report.html")
    for title in ("Training reward", "Loss", "Groups without a signal", "Reward over the same steps", "Over optimizer"):
        assert title in text
    assert "and grows exponentially (R2 0.98), fastest around step 24" in text
    assert "had nothing to learn from: in every training step" in text


def test_what_was_not_measured_is_left_out(make_run: Make, tmp_path: Path) -> None:
    folder = make_run(metrics=lambda step: {}).folder
    (folder / "spans.jsonl").unlink()
    page = Page(_report(folder, tmp_path / "report.html"))
    assert page.text("h3") == ["What the figures say", "Where the time goes", "Provenance"]
    empty = Page(_report(make_run(scenario="empty", steps=0, status="failed").folder, tmp_path / "empty.html"))
    assert empty.text("h3") == ["What the figures say", "Provenance"]
    assert any("failed after 0 steps" in text for text in empty.text("li"))


def test_dropped_rollouts_show_as_waste_with_their_length(make_lagged_run: Make, tmp_path: Path) -> None:
    counts = {"trained": Count(24, 240), "dropped": Count(8, 160)}
    folder = make_lagged_run(settings="lag_control: drop\n", ledger=RolloutCounts(Count(32, 400), **counts)).folder
    text = _report(folder, tmp_path / "report.html")
    # 240 of 400 tokens; a dropped rollout has 20 tokens, a generated one 12.5
    said = "Trained on, of the generated tokens: lag1 60.0% (dropped rollouts have 1.60 times the mean length)."
    assert said in text
    assert '<rect x="60%" width="40%" y="0" height="20" class="led-dropped">' in text
    assert "<td>dropped as too old</td>" in text


def test_a_replay_buffer_is_described_in_words_and_in_a_table(make_lagged_run: Make, tmp_path: Path) -> None:
    """Old code: the page said nothing of the sampling rule, or of how groups left."""
    settings = "replay: {capacity: 4, sampling: signal_weighted, max_age: 3}\n"
    stats = [ReplayStats(2 * step + 2, evicted_age=step, evicted_unused=step // 2) for step in range(8)]
    counts = RolloutCounts(Count(32, 320), trained=Count(20, 200), trained_again=Count(12, 120))
    folder = make_lagged_run(settings=settings, ledger=counts, replay=lambda step: (stats[step], 4)).folder
    text = _report(folder, tmp_path / "report.html")
    caption = text.partition("Ageing and sampling in the replay buffer.")[2].partition("</figcaption>")[0]
    assert "a wider spread of rewards likelier (signal_weighted)" in caption
    assert "used 1.60 times on average" in caption  # (20 + 12) / 20
    assert "Of 7 groups that left, 7 became too old; 3 had never been drawn." in caption
    cells = [cell for row in re.findall(r"<tr>(.*?)</tr>", text) for cell in re.findall(r">([^<]+)<", row)]
    assert cells[cells.index("oldest age allowed, versions") + 1] == "3"
    assert cells[cells.index("groups that became too old") + 1] == "7"
    without = _report(make_lagged_run(scenario="without").folder, tmp_path / "without.html")
    assert "Ageing and sampling" not in without


def test_lag_is_set_against_the_arm_without_it(make_run: Make, tmp_path: Path) -> None:
    lasts = {"sync": (0.6, 0.6, 0.6), "lag1": (0.5, 0.51, 0.52), "lag2": (0.55, 0.6, 0.65), "lag3": (0.7, 0.71, 0.72)}
    for arm, rewards in lasts.items():
        for seed, reward in enumerate(rewards):
            settings = f"steps: 4\nmax_lag: {0 if arm == 'sync' else arm[-1]}\n"
            evaluations = {0: (0.2, 12.0), 4: (reward, 12.0)}
            make_run(arm=arm, point={"seed": seed}, seed=seed, evaluations=evaluations, settings=settings)
    text = _report(tmp_path / "results", tmp_path / "report.html")
    # four variants have six pairs: t(1 - 0.05 / 12, 2) = 10.886
    # differences -0.10, -0.09, -0.08: mean -0.09, sd 0.01: 10.886 * 0.01 / sqrt(3) = 0.063
    together = "for all 6 pairs of variants together, n = 3"
    assert f"(-0.090 against sync, 95% interval -0.153 to -0.027 {together}: lag hurt); lag2 0.600" in text
    # mean 0, sd 0.05: 10.886 * 0.05 / sqrt(3) = 0.314
    assert f"(+0.000 against sync, 95% interval -0.314 to +0.314 {together}: no difference shown); lag3 0.710" in text
    assert f"(+0.110 against sync, 95% interval +0.047 to +0.173 {together}: lag did not hurt)." in text


def test_counters_are_shown_where_a_run_has_them(make_run: Make, tmp_path: Path) -> None:
    folder = make_run(metrics=_metrics).folder
    second = 1_000_000_000
    rows = [
        CounterRow((2 + at) * second, "driver", {"cpu_s": 10.0 + 0.5 * at, "rss_bytes": 2.0**30, "threads": 4.0})
        for at in range(5)
    ]
    rows.append(CounterRow(6 * second, "gpu", {}, {"gpu": "no <driver>"}))
    header = HeaderRow("harness.counters", 1)
    (folder / COUNTERS).write_bytes(b"".join(row.line() for row in (header, *rows)))
    text = _report(folder, tmp_path / "report.html")
    assert "Resources" in Page(text).text("h3")
    # 0.5 s of CPU time in each second: half a core; 1 GiB; 2 s over the loop's 4 s
    row = '<th scope="row">sync_k</th><td>driver</td>' + "".join(
        f'<td class="n">{cell}</td>' for cell in ("2.00", "0.500", "1.00", "4")
    )
    assert row in text
    assert "No GPU figures of sync_k: no &lt;driver&gt;." in text


def test_the_newest_experiment_is_shown_and_all_on_demand(
    make_run: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(scenario="older", started_at="2026-11-19T11:15:00.000Z", experiment="20261119-111500")
    make_run(scenario="newer")
    results, out = str(tmp_path / "results"), tmp_path / "r.html"
    assert main(["report", results, "-o", str(out)]) == 0
    assert capsys.readouterr().out == f"report: {out} ({out.stat().st_size / 1e3:,.0f} kB)\n"
    page = Page(out.read_text())
    assert page.text("h1") == ["newer"]
    assert "Show all 2 experiments that were found" in page.text("summary")
    assert main(["report", results, "-o", str(out), "--all"]) == 0
    page = Page(out.read_text())
    assert page.text("h1") == ["2 experiments"]
    assert page.text("h2") == ["newer / 20261120-111500", "older / 20261119-111500"]


def test_one_arm_alone_is_reported_alone(make_run: Make, tmp_path: Path) -> None:
    folders = [make_run(arm=arm).folder for arm in ("k1", "k4")]
    text = _report(folders[1], tmp_path / "r.html")
    assert "k4" in text
    assert "k1" not in text


def test_a_damaged_run_is_left_out_and_named(
    make_run: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad, worse = (make_run(arm=arm).folder for arm in ("k1", "k2", "k4"))
    (bad / "manifest.json").write_text("{")
    spans = (worse / "spans.jsonl").read_text().splitlines(keepends=True)
    (worse / "spans.jsonl").write_text("".join([spans[0], "no json\n", *spans[1:]]))  # found when spans are read
    worst = make_run(arm="k8").folder
    (worst / "rollouts.jsonl").write_text("no json\n")  # found when examples are looked for
    out = tmp_path / "r.html"
    assert main(["report", str(good.parent), "-o", str(out)]) == 0
    warned = capsys.readouterr().err
    assert warned.count("warning: left out") == 3
    page = Page(out.read_text())
    assert any(text.startswith("k2: ") for text in page.text("li"))
    assert any(text.startswith("k4: ") and "line 2" in text for text in page.text("li"))
    assert any(text.startswith("k8: ") and "rollouts.jsonl" in text for text in page.text("li"))
    assert page.text("h1") == ["sync_k"]


def test_a_reader_of_the_old_report_keeps_it_whole(make_run: Make, tmp_path: Path) -> None:
    out = tmp_path / "r.html"
    old = _report(make_run().folder, out)
    with out.open() as reader:
        _report(make_run(scenario="other").folder, out)
        assert (
            reader.read() == old != out.read_text()
        )  # the new file took its place, nothing was written into the old one


def test_bad_input_leaves_the_old_report(make_run: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "r.html"
    old = _report(make_run().folder, out)
    assert main(["report", str(tmp_path / "nowhere"), "-o", str(out)]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert out.read_text() == old
    folder = str(tmp_path / "results")
    assert main(["report", folder, "-o", str(tmp_path)]) == 2
    assert "is a folder" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="there is no folder"):
        make_report([Path(folder)], tmp_path / "file" / "r.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "r.html", "results"]
