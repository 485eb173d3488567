"""The lines that a person reads of a training run. Old code: ``log.txt`` held versions and failures only."""

from dataclasses import replace
from pathlib import Path

from harness.core.trace import RecordingTracer
from harness.core.types import (
    ExampleRollout,
    Metric,
    Purpose,
    RolloutGroup,
    ScoredBatch,
    UpdateResult,
    WeightHandle,
    WorkItem,
)
from harness.loop import StepReport
from harness.loop.replay import ReplayDraw
from harness.results import Manifest, RolloutRow, RunFolder, Scrubber, load_run
from harness.results.recorder import RunRecorder
from harness.results.training_log import evaluation_line, rollout_lines, step_line

METRICS = {
    "reward/total": Metric(0.75, count=4),
    "loss": Metric(-0.012345),
    "response_length": Metric(17.25, count=4),
    "kl/reference_k3": Metric(0.00123456, count=69),
    "kl/penalty": Metric(0.5, count=69),
    "grad_norm": Metric(1.5),
    "clip_fraction": Metric(0.125, count=69),
    "learning_rate": Metric(1e-5),
    "token_entropy": Metric(2.0),
}
ROLLOUT = ExampleRollout(
    "Say \x1b[31m hi", "hi\nyou \u202e", "hi", 1.0, 40, "stop", 7, 0.7071, (-0.5, -0.0004, *[-0.25] * 30)
)


def test_a_step_is_one_line_of_what_a_person_wants_to_know() -> None:
    assert step_line(12, METRICS, 0.04567) == (
        "step 12: reward 0.75, loss -0.0123, length 17.2, KL to the reference 0.00123, KL penalty 0.5, "
        "gradient norm 1.5, clip fraction 0.125, learning rate 1e-05, 0.0457 s"
    )
    assert step_line(0, {}, 2.0) == "step 0: 2 s"  # a simulated step, where nothing is learnt
    scores = {"validation/reward": Metric(0.5, count=64), "validation/response_length": Metric(9.0, count=64)}
    assert evaluation_line(10, scores) == "validation of policy version 10: reward 0.5, length 9"


def test_a_rollout_is_shown_with_advantage_and_log_probs_bounded_and_with_nothing_left_to_act() -> None:
    head, line = rollout_lines(5, [ROLLOUT])
    assert head == "step 5 trained on 1 rollouts of: Say \\x1b[31m hi"
    log_probs = " ".join(["-0.5", "0", *["-0.25"] * 14])  # 16 of 40 tokens
    assert line == f"  reward 1, advantage 0.707, version 7, log-probs {log_probs} and 24 more: hi\\nyou \\u202e"
    long = replace(ROLLOUT, prompt="p" * 5000, response="r" * 5000, log_probs=(-1.0,) * 64, num_tokens=5000)
    assert max(map(len, rollout_lines(5, [long]))) < 500
    assert rollout_lines(5, []) == []


def test_the_recorder_logs_versions_steps_and_rollouts_and_tells_whoever_listens(
    tmp_path: Path, scrubber: Scrubber
) -> None:
    """What is echoed is the log without its times, once it is on disk; the rollouts are in ``rollouts.jsonl`` too."""
    now, heard, on_disk = [0], list[str](), list[int]()
    item = WorkItem(Purpose.TRAIN, 5, 0, (0,), 2, 0)

    def echo(line: str) -> None:
        heard.append(line)
        on_disk.append(len((folder.folder / "log.txt").read_text().splitlines()))

    with RunFolder.create(tmp_path, "s", "c", None, scrubber=scrubber, echo=echo) as folder:
        folder.write_manifest(Manifest(scenario="s", experiment="c", started_at="2026-11-20T11:15:00.000Z"))
        recorder = RunRecorder(folder, RecordingTracer(lambda: now[0]))
        recorder.loop_starts(["generator", "learner"])
        now[0] = 2_000_000_000
        recorder.on_version("learner", 6)
        recorder.on_version("generator", 6)
        assert heard == []
        result = UpdateResult(6, 1, {"loss": Metric(0.5)}, (), (ROLLOUT, replace(ROLLOUT, reward=0.0, advantage=-0.5)))
        group = RolloutGroup(0, 5, 5, 5, (20, 20), rewards=(1.0, 0.0))
        scored = ScoredBatch(item, (group,), {"reward/total": Metric(0.5, count=2)})
        recorder.on_step(StepReport(5, (scored,), (ReplayDraw(group, 1, 0),), result, WeightHandle(6, 0, 0)))
        recorder.on_evaluation(6, replace(scored, metrics={"validation/reward": Metric(1.0)}))
        _, *rollouts = rollout_lines(5, result.examples)
        assert heard == [
            "2.000000 s: learner holds policy version 6",
            "2.000000 s: generator holds policy version 6",
            "2.000000 s: step 5: reward 0.5, loss 0.5, 2 s",
            "2.000000 s: step 5 trained on 2 rollouts of: Say \\x1b[31m hi",
            *(f"2.000000 s: {line}" for line in rollouts),
            "2.000000 s: validation of policy version 6: reward 1",
        ]
        assert on_disk == [6] * 6 + [7]
        lines = (folder.folder / "log.txt").read_text().splitlines()
        assert [line.partition(" ")[2] for line in lines] == heard
        first, _ = load_run(folder.folder).rollouts()
    assert first == RolloutRow(
        "train", 7, ROLLOUT.prompt, ROLLOUT.response, "hi", 1.0, 40, "stop", 5, 0.7071, ROLLOUT.log_probs
    )
