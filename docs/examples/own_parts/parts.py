"""Parts of one's own: a task, an engine, a transport, a tracker and an advantage. parts.yaml runs with all of them."""

import csv
import os
import time
from pathlib import Path

import torch

from harness.core.types import Prompt, WeightHandle
from harness.engines.native import native_engine
from harness.transports.catalogue import TransportKind


class Counting:
    """The task to write as many full stops as are asked for."""

    def __init__(self, most=40):
        prompts = tuple(Prompt(f"Write {number} full stops: ", str(number)) for number in range(1, most + 1))
        self.train_prompts, self.validation_prompts = prompts[: most // 2], prompts[most // 2 :]

    def reward(self, response, ground_truth):
        right = float(response.count(".") == int(ground_truth))
        return {"reward": right, "format_reward": 1.0, "answer_reward": right}


class Remote:
    """An engine: the harness's own, behind a pause such as a server's."""

    def __init__(self, model, tokenizer, ends=None, max_batch=256, should_stop=None, pause_s=0.01):
        self.engine = native_engine(model, tokenizer, ends=ends, max_batch=max_batch, should_stop=should_stop)
        self.pause_s = pause_s

    def load_weights(self, weights, version=0):
        self.engine.load_weights(weights, version)

    def generate(self, prompts, num_samples, sampling, seed, places=None):
        time.sleep(self.pause_s)
        return self.engine.generate(prompts, num_samples, sampling, seed, places)


class FileSender:
    """The Learner's end of a transport by files of torch."""

    def __init__(self, options):
        self.folder, self.notes, self.kept = Path(options.settings.options["folder"]).absolute(), (), {}
        self.folder.mkdir(parents=True, exist_ok=True)

    def publish_weights(self, weights, version, still_needed):
        if version in self.kept:
            raise ValueError(f"version {version} is published already")
        for old in self.kept.keys() - still_needed:
            self.kept.pop(old).unlink()
        self.kept[version] = self.folder / f"{os.getpid()}-{version}.pt"
        torch.save({name: tensor.detach().cpu() for name, tensor in weights.items()}, self.kept[version])
        num_bytes = sum(tensor.nbytes for tensor in weights.values())
        return WeightHandle(version, num_bytes, len(weights), None, str(self.kept[version]))

    def published(self, version):
        if version not in self.kept:
            raise ValueError(f"version {version} is not held")
        return torch.load(self.kept[version])

    def outgoing(self, version):
        return []

    def close(self):
        for path in self.kept.values():
            path.unlink()


class FileReceiver:
    """A Generator's end."""

    def __init__(self, options):
        self.notes = ()

    def receive(self, weight_handle, arrived=None):
        return torch.load(weight_handle.payload)

    def close(self):
        pass


FILES = TransportKind("files", FileSender, FileReceiver)


class Csv:
    """A tracker: metrics.csv, a number a line."""

    def __init__(self, folder):
        self.path = Path(folder) / "metrics.csv"

    def log(self, step, kind, values):
        with self.path.open("a", newline="") as file:
            csv.writer(file).writerows((step, kind, name, value) for name, value in values.items())

    def close(self):
        pass


def best_only(rewards):
    """An advantage (P, G): the best rollouts of each group against the others."""
    best = (rewards == rewards.amax(dim=1, keepdim=True)).float()
    return best - best.mean(dim=1, keepdim=True)
