"""``record`` on programs that know nothing of it: the seams of a trainer, how it ends, what is refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from harness.cli import main
from harness.core.trace import Stage
from harness.results import find_runs

ROOT = Path(__file__).parents[2]
FILES = {
    "trl/__init__.py": "",
    "trl/extras/__init__.py": "",
    "trl/extras/profiling.py": """
        from contextlib import contextmanager
        class ProfilingContext:
            def __init__(self, name):
                self.name = name
            def __enter__(self):
                return self
            def __exit__(self, *error):
                return False
        def profiling_context(trainer, name):
            return ProfilingContext(f"{trainer.__class__.__name__}.{name}")
    """,
    "trl/trainer/__init__.py": "",
    "trl/trainer/grpo_trainer.py": """
        from transformers.trainer import Trainer
        from trl.extras.profiling import profiling_context
        class GRPOTrainer(Trainer):
            def _get_per_token_logps_and_entropies(self, model):
                with profiling_context(self, "_get_per_token_logps_and_entropies"):
                    return model
            def _generate_and_score_completions(self, inputs):
                with profiling_context(self, "transformers.generate"):
                    pass
                with profiling_context(self, "_calculate_rewards"), profiling_context(self, "my_reward"):
                    pass
                self._get_per_token_logps_and_entropies(self.model)
                self._get_per_token_logps_and_entropies(self.ref_model)
                return {"completion_mask": Mask()}
            def compute_loss(self):
                with profiling_context(self, "compute_loss"):
                    self._get_per_token_logps_and_entropies(self.model)
        class Mask:
            shape = (4, 9)
            def sum(self):
                return 20
    """,
    "transformers/__init__.py": "class TrainerCallback: pass",
    "transformers/trainer.py": """
        class Named:
            def __init__(self, **values):
                self.__dict__.update(values)
        class Trainer:
            def __init__(self, model, ref_model):
                self.model, self.ref_model, self.callbacks = model, ref_model, []
                self.args, self.state = Named(world_size=1, process_index=0), Named(global_step=0)
                self.accelerator = Named(sync_gradients=True)
            def add_callback(self, callback):
                self.callbacks.append(callback)
            def tell(self, event, **more):
                for callback in self.callbacks:
                    if hasattr(callback, event):
                        getattr(callback, event)(self.args, self.state, None, **more)
            def get_batch_samples(self):
                pass
            def training_step(self):
                self._generate_and_score_completions(None)
                self.compute_loss()
            def _maybe_log_save_evaluate(self):
                self.tell("on_log", logs={"loss": 0.5, "reward": 1.25, "text": "no"})
            def evaluate(self):
                self.model.training = False
                self._generate_and_score_completions(None)
            def _save_checkpoint(self):
                pass
            def train(self, steps):
                for self.state.global_step in range(steps):
                    self.get_batch_samples()
                    self.tell("on_step_begin")
                    for self.accelerator.sync_gradients in (False, True):
                        self.training_step()
                    self.tell("on_step_end")
                    self._maybe_log_save_evaluate()
                self.evaluate()
    """,
    "train.py": """
        from transformers.trainer import Named
        from trl.trainer.grpo_trainer import GRPOTrainer
        trainer = GRPOTrainer(Named(training=True), Named(training=False))
        trainer.train(3)
        print("trained")
    """,
}
"""A trainer with TRL's places and names; the real one is recorded where it is installed, below."""


@pytest.fixture
def trainer(tmp_path, monkeypatch):
    folder = tmp_path / "trainer"
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


def record(tmp_path, *command, options=()):
    out = tmp_path / "out"
    code = main(["record", "--out", str(out), *options, "--", *map(str, command)])
    runs, damaged = find_runs(out)
    assert not damaged
    return code, runs[-1]


def test_a_trainers_stages_are_recorded_and_no_line_of_it_is_changed(tmp_path, trainer, capfd):
    code, run = record(tmp_path, sys.executable, trainer / "train.py", options=("--trainer", "trl", "--arm", "a"))
    assert (code, run.status, run.manifest.arm, len(run.steps)) == (0, "completed", "a", 3)
    said = capfd.readouterr().out
    assert "trained" in said
    assert "recorded 3 training steps" in said
    assert "not recorded" not in said
    assert "python -m harness" not in said  # neither bench nor whatif can make it again
    of_step = [span.stage.value for span in sorted(run.spans(), key=lambda span: span.start_ns) if span.step == 1]
    half = ["update", "generate", "score", "score", "old_logprobs", "reference_logprobs", "update", "update"]
    assert of_step == [*half, *half, "update", "log", "prepare_batch"]
    # twice, for accumulated gradients, the training step and in it generation, rewards, log-probs, the loss with its
    # own; then once what is left of the update; between the steps what is logged, and the next batch
    last = [span.stage for span in sorted(run.spans(), key=lambda span: span.start_ns)][-6:]
    assert last == [Stage.EVALUATE] * 6  # and all that is in it
    assert run.steps[2].metric("response_tokens").value == 40  # none of an evaluation's
    row = run.steps[0]
    names = ("response_tokens", "response_length", "loss", "reward/total")
    values = {name: row.metric(name).value for name in names}
    assert values == {"response_tokens": 40, "response_length": 5, "loss": 0.5, "reward/total": 1.25}


def test_a_place_that_a_version_lacks_is_told_by_name(tmp_path, trainer, capfd):
    path = trainer / "trl/trainer/grpo_trainer.py"
    path.write_text(path.read_text().replace("_get_per_token_logps_and_entropies", "_get_logps"))
    _, run = record(tmp_path, sys.executable, trainer / "train.py", options=("--trainer", "trl"))
    place = "trl.trainer.grpo_trainer.GRPOTrainer._get_per_token_logps_and_entropies"
    assert f"not recorded: this version of trl has no {place}" in capfd.readouterr().out
    assert Stage.GENERATE in {span.stage for span in run.spans()}


def test_the_context_of_older_versions_is_recorded_too(tmp_path, trainer):
    path = trainer / "trl/extras/profiling.py"
    path.write_text(
        "from contextlib import contextmanager\n\n@contextmanager\ndef profiling_context(trainer, name):\n    yield\n"
    )
    _, run = record(tmp_path, sys.executable, trainer / "train.py", options=("--trainer", "trl"))
    stages = {span.stage.value for span in run.spans() if span.step == 1}
    assert stages == {"update", "generate", "score", "old_logprobs", "reference_logprobs", "log", "prepare_batch"}


OWN = """
import sys, time
from harness import record
for n in range(2):
    record.step(n)
    with record.span("update"):
        time.sleep(0.01)
{end}
"""


@pytest.mark.parametrize(
    ("end", "code", "status", "error"),
    [
        ("sys.exit(3)", 1, "failed", "exit code 3"),
        ("raise ValueError('x')", 1, "failed", "exit code 1"),
        ("import os; os.kill(os.getpid(), 9)", 1, "failed", "signal 9"),
        ("", 0, "completed", None),
    ],
)
def test_how_the_command_ends_is_told_and_nothing_is_lost(tmp_path, monkeypatch, end, code, status, error):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    found, run = record(tmp_path, sys.executable, "-c", OWN.format(end=end))
    assert (found, run.status, run.manifest.error, len(run.steps)) == (code, status, error, 2)
    assert len([span for span in run.spans() if span.stage is Stage.UPDATE]) == 2


def test_an_interrupt_ends_the_command_with_all_that_it_started(tmp_path):
    """The command ignores the first signals, its child knows of none: both are gone, and the run is there."""
    program = tmp_path / "stubborn.py"
    program.write_text(
        "import os, signal, subprocess, sys, time\nfrom harness import record\n"
        "for each in (signal.SIGINT, signal.SIGTERM): signal.signal(each, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "record.step(0)\nwith record.span('update'): pass\n"
        f"open({str(tmp_path / 'pids')!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}\\n')\ntime.sleep(600)\n"
    )
    shell = (
        "import harness.run.recorded as recorded; recorded.GRACE_S = 0.2; "
        "from harness.cli import main; import sys; sys.exit(main())"
    )
    typed = [sys.executable, "-c", shell, "record", "--out", tmp_path / "out", "--", sys.executable, program]
    process = subprocess.Popen(typed, env=os.environ | {"PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, text=True)
    pids = tmp_path / "pids"
    while not (pids.exists() and pids.read_text().endswith("\n")):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130
    assert "what was recorded so far is in" in said
    assert [pid for pid in pids.read_text().split() if _lives(pid)] == []
    (run,) = find_runs(tmp_path / "out")[0]
    assert (run.status, len(run.steps)) == ("interrupted", 1)


def _lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_what_cannot_be_recorded_is_refused(tmp_path, capsys):
    out = ["record", "--out", str(tmp_path / "out")]
    for typed, words in (
        (out, "there is no command"),
        ([*out, "--", "no-such-program"], "cannot be found"),
        ([*out, "--", sys.executable, "-c", "pass"], "recorded no training step"),
        ([*out, "--trainer", "mine", "--", "true"], "--trainer"),
    ):
        assert main(typed) == 2
        assert words in capsys.readouterr().err
