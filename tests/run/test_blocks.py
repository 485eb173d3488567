"""What is said of the arms while blocks come in, and when there are enough of them."""

from math import exp, sqrt

from harness.run.experiment import BlockWatch


def feed(watch: BlockWatch, block: int, arm: str, seconds: list[float], **flags: object) -> None:
    listener = watch.listener(block, arm)
    for step, wall_s in enumerate(seconds):
        listener({"kind": "step", "step": step, "wall_s": wall_s, "stages_s": {}} | flags, wall_s)


def test_the_first_arm_is_the_baseline_and_steps_are_paired() -> None:
    watch = BlockWatch(["a", "b"], 4, None, alternated=True)
    feed(watch, 0, "a", [1.0, 2.0, 4.0])
    feed(watch, 0, "b", [1.1, 2.2, 8.0])  # ratios 1.1, 1.1, 2: the median is 1.1
    (block,) = watch.paired("b")
    assert (block.before, block.after, block.alternated) == ((1.0, 2.0, 4.0), (1.1, 2.2, 8.0), True)
    assert watch.line(0) == "block 1 of 4: b takes 1.100 times the step time of a"


def test_what_is_no_measured_step_is_left_out() -> None:
    watch = BlockWatch(["a", "b"], 2, None, alternated=True)
    for arm in ("a", "b"):
        listener = watch.listener(0, arm)
        rows = [
            {"kind": "step", "step": 0, "wall_s": 9.0, "stages_s": {}, "warmup": True},
            {"kind": "step", "step": 1, "wall_s": 9.0, "stages_s": {"evaluate": 5.0}},
            {"kind": "evaluation", "step": 2, "metrics": {}},
            {"kind": "step", "step": 2, "wall_s": 9.0, "stages_s": {}, "profiled": True},
            {"kind": "step", "step": 3, "wall_s": 1.0, "stages_s": {"update": 1.0}},
        ]
        for row in rows:
            listener(row, 0.0)
    assert [block.before for block in watch.paired("b")] == [(9.0, 1.0)]


def test_the_line_tells_the_t_interval() -> None:
    watch = BlockWatch(["a", "b"], 2, None, alternated=False)
    for block, log_ratio in enumerate((0.0, 0.02)):
        feed(watch, block, "a", [1.0])
        feed(watch, block, "b", [exp(log_ratio)])
    # mean 0.01, sd 0.02 / sqrt(2), t(0.975, 1) = 12.7062 (https://www.itl.nist.gov/div898/handbook/eda/section3/eda3672.htm)
    reach = 12.7062 * (0.02 / sqrt(2)) / sqrt(2)
    expected = f"95% interval {exp(0.01 - reach):.3f} to {exp(0.01 + reach):.3f}"
    assert watch.line(1) == f"block 2 of 2: b takes 1.010 times the step time of a, {expected}"


def test_it_is_enough_when_every_interval_is_narrow_and_never_below_ten_blocks() -> None:
    watch = BlockWatch(["a", "b", "c"], 40, 0.01, alternated=True)
    for block in range(10):
        assert not watch.is_enough
        feed(watch, block, "a", [1.0])
        feed(watch, block, "b", [1.2 + 0.001 * (block % 2)])
        feed(watch, block, "c", [1.0 + 0.001 * (block % 2)])
    assert watch.is_enough
    wide = BlockWatch(["a", "b"], 40, 0.01, alternated=True)
    for block in range(12):
        feed(wide, block, "a", [1.0])
        feed(wide, block, "b", [1.0 + 0.2 * (block % 2)])
    assert not wide.is_enough


def test_without_a_width_all_blocks_are_made() -> None:
    watch = BlockWatch(["a", "b"], 8, None, alternated=True)
    for block in range(8):
        feed(watch, block, "a", [1.0])
        feed(watch, block, "b", [1.0])
    assert not watch.is_enough


def test_an_arm_that_failed_is_said_to_have_nothing_to_compare() -> None:
    watch = BlockWatch(["a", "b"], 3, None, alternated=True)
    feed(watch, 0, "a", [1.0])
    watch.listener(0, "b")
    assert watch.line(0) == "block 1 of 3: b: no step to compare with a"
    assert BlockWatch(["a"], 3, None, alternated=False).line(1) == "block 2 of 3 done"
