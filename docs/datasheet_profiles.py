"""Machine profiles of GPUs that nobody here has measured, derived from their data sheets as rooflines.

``python docs/datasheet_profiles.py`` writes them into ``profiles/machines``; a test compares them with
what stands there. Decoding reads weights and keys and values at a share of the memory's bandwidth, prompts and updates
compute at a share of the peak, weights travel at a share of the link (Williams et al. 2009, Comm. ACM 52:65). Bounds
are added up instead of taking the larger one, which is pessimistic by a factor of 2 at most. One GPU holds each part.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.simulate.machine import FOLDER, Device, MachineProfile, StageCost, profile_yaml, rounded, save_machine

MADE = "2026-11-21"

TRAINING_SHARE = 0.4
"""Of the peak. Llama 3's pre-training reached 38-43% on H100 (arXiv:2407.21783, table 4): assumed for updates, and for
passes without gradients."""
PREFILL_SHARE = 0.5
"""Of the peak. PaLM 540B reached 76% in prefill at large batches (Pope et al. 2022, arXiv:2211.05102); prompts of
reinforcement learning are shorter: assumed."""
MEMORY_SHARE = 0.6
"""Of the memory's bandwidth, in decoding and for the optimizer: of the size that LLM servers report
(https://www.databricks.com/blog/llm-inference-performance-engineering-best-practices): assumed."""
LINK_SHARE = 0.7
"""Of one direction of the link: assumed."""
ADAMW_STREAMS = 7
"""Times the size of the weights in float32 that AdamW reads (weights, gradients, two moments) or writes (three)."""
BACKWARD = 3
"""Operations of a pass with gradients over those of one without: see ``harness.models.flops``."""
NARROW_CACHE = 0.5
"""``context_gb`` counts keys and values in float32; engines for GPUs keep them in bfloat16."""
STEP_S, CALL_S, RESPONSE_S, DISK_GB_S = 1e-3, 2e-3, 1e-4, 1.0
"""A decode step's scheduling and sampling; one way of a call to an actor, as on the measured CPU machine; scoring one
response; writing a checkpoint. Assumed."""
LOG_SD = 0.35
"""Spread of the truth around these costs. Shares of the peak from 0.25 to 0.6 are reported for training; that range, as
90% of a normal distribution of logarithms, has a standard deviation of ln(0.6 / 0.25) / 3.29 = 0.27. Another 0.2 is for
what is left out: attention's own products, launches, padding."""
NOISE_LOG_SD = 0.05


@dataclass(frozen=True, slots=True)
class DataSheet:
    """What a maker says of a GPU.

    Attributes:
        name: of the profile.
        gpu: model.
        tflops: dense bfloat16 on tensor cores with float32 accumulation; sheets name twice that, with sparsity.
        memory_gb_s: of its memory.
        memory_gib: as the sheet has it.
        link_gb_s: in one direction; sheets name both together.
        link: its name.
        source: web address of the sheet.
    """

    name: str
    gpu: str
    tflops: float
    memory_gb_s: float
    memory_gib: float
    link_gb_s: float
    link: str
    source: str


DATA_SHEETS = (
    DataSheet(
        "a100-80gb",
        "A100 80GB SXM",
        312,
        2039,
        80,
        300,
        "NVLink 3",
        "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/"
        "nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf",
    ),
    DataSheet("h100-sxm", "H100 SXM", 989, 3350, 80, 450, "NVLink 4", "https://www.nvidia.com/en-us/data-center/h100/"),
    DataSheet(
        "h200-sxm", "H200 SXM", 989, 4800, 141, 450, "NVLink 4", "https://www.nvidia.com/en-us/data-center/h200/"
    ),
    DataSheet(
        "b200-sxm",
        "B200 SXM",
        2250,
        8000,
        180,
        900,
        "NVLink 5",
        "https://nvdam.widen.net/s/wwnsxrhm2w/blackwell-datasheet-3384703",
    ),
    DataSheet("l40s", "L40S", 362, 864, 48, 32, "PCIe 4.0 x16", "https://www.nvidia.com/en-us/data-center/l40s/"),
    DataSheet(
        "rtx-4090",
        "GeForce RTX 4090",
        165.2,
        1008,
        24,
        32,
        "PCIe 4.0 x16",
        "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf",
    ),
)
EFFICIENCY_SOURCES = (
    "https://arxiv.org/abs/2407.21783",
    "https://arxiv.org/abs/2211.05102",
    "https://www.databricks.com/blog/llm-inference-performance-engineering-best-practices",
)


def datasheet_profile(sheet: DataSheet) -> MachineProfile:
    """Return the profile that is derived from a data sheet."""
    return MachineProfile(
        name=sheet.name,
        description=f"{sheet.gpu}, not measured: a roofline from its data sheet and assumed efficiencies",
        origin="datasheet",
        made=MADE,
        device=Device(
            name=sheet.gpu,
            gpus=1,
            flops=sheet.tflops * 1e12,
            memory_gb_s=sheet.memory_gb_s,
            memory_gib=sheet.memory_gib,
            link_gb_s=sheet.link_gb_s,
        ),
        sources=(sheet.source, *EFFICIENCY_SOURCES),
        notes=tuple(_notes(sheet)),
        stages=tuple(_stages(sheet)),
    )


def _notes(sheet: DataSheet) -> Iterator[str]:
    yield (
        f"{sheet.tflops:g} TFLOP/s dense bfloat16, {sheet.memory_gb_s:g} GB/s of memory, {sheet.link_gb_s:g} GB/s one "
        f"way over {sheet.link}: {sheet.source}"
    )
    yield (
        f"assumed: {TRAINING_SHARE:.0%} of the peak in passes and updates (38-43% reported, {EFFICIENCY_SOURCES[0]}), "
        f"{PREFILL_SHARE:.0%} for prompts (up to 76% reported, {EFFICIENCY_SOURCES[1]})"
    )
    yield (
        f"assumed: {MEMORY_SHARE:.0%} of the memory's bandwidth (see {EFFICIENCY_SOURCES[2]}), {LINK_SHARE:.0%} of the "
        "link"
    )
    yield (
        f"assumed: {1e3 * STEP_S:g} ms for a decode step's scheduling, {1e3 * CALL_S:g} ms for each way of a call, "
        f"{1e3 * RESPONSE_S:g} ms to score a response, {DISK_GB_S:g} GB/s to disk"
    )


def _stages(sheet: DataSheet) -> Iterator[StageCost]:
    gflop_s = 1 / (1e3 * sheet.tflops)
    memory_s = 1 / (MEMORY_SHARE * sheet.memory_gb_s)
    link_s = 1 / (LINK_SHARE * sheet.link_gb_s)
    decode = {"decode_step": STEP_S, "weight_gb": memory_s, "context_gb": NARROW_CACHE * memory_s}
    products = {"prompt_gflop": gflop_s / PREFILL_SHARE, "row_gflop": gflop_s / PREFILL_SHARE}
    one_pass = gflop_s / TRAINING_SHARE
    yield _cost("generate", decode | products)
    yield _cost("score", {"call": CALL_S, "response": RESPONSE_S})
    yield _cost("prepare_batch", {"call": CALL_S})
    yield _cost("old_logprobs", {"call": CALL_S, "position_gflop": one_pass})
    yield _cost("reference_logprobs", {"call": CALL_S, "position_gflop": one_pass})
    yield _cost(
        "update", {"call": CALL_S, "position_gflop": BACKWARD * one_pass, "parameter_gb": ADAMW_STREAMS * memory_s}
    )
    yield _cost("weight_publish", {"call": CALL_S, "gb": 2 * memory_s})
    yield _cost("weight_transfer", {"call": CALL_S, "gb": link_s, "further_gb": link_s})
    yield _cost("weight_load", {"call": CALL_S, "gb": 2 * memory_s})
    yield _cost("weight_verify", {"call": CALL_S, "gb": memory_s})
    yield _cost("checkpoint", {"call": CALL_S, "gb": 1 / DISK_GB_S})
    yield _cost("call", {"call": CALL_S})
    yield _cost("record", {"call": CALL_S})


def _cost(stage: str, seconds: dict[str, float]) -> StageCost:
    return StageCost(
        stage=stage,
        seconds={feature: rounded(value) for feature, value in seconds.items()},
        unseen_log_sd=LOG_SD,
        step_log_sd=NOISE_LOG_SD,
        run_log_sd=NOISE_LOG_SD,
    )


def main(folder: Path = Path(FOLDER)) -> int:
    """Write every profile into a folder; those that stand there as they should are left alone."""
    for sheet in DATA_SHEETS:
        profile, path = datasheet_profile(sheet), folder / f"{sheet.name}.yaml"
        if not path.is_file() or path.read_text(encoding="utf-8") != profile_yaml(profile):
            save_machine(profile, path)
            print(f"wrote {path}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
