"""Which terms a stage's cost is fitted to, under which circumstances, and which stages share one fit.

The terms were chosen on calibration runs alone: of the physical candidates, those that predict an arm, and a model,
that is left out of the fit best.
"""

from __future__ import annotations

from dataclasses import dataclass

SYNC_TERMS = ("call", "tensor", "gb", "first", "first_gb")


@dataclass(frozen=True, slots=True)
class CostModel:
    """The shape of one fit.

    Attributes:
        stages: whose spans are fitted together, each of which gets the result.
        where: circumstances that make costs of their own.
        terms: as ``harness.simulate.terms`` counts them.
        scaled_by: a circumstance that changes all terms by one factor; where it is another than in most spans, the cost
            is that of most spans times what its own spans are of that.
        only: circumstances of the spans that it is for.
    """

    stages: tuple[str, ...]
    where: tuple[str, ...]
    terms: tuple[str, ...]
    scaled_by: str | None = None
    only: tuple[tuple[str, str], ...] = ()


COST_MODELS = (
    CostModel(
        ("generate",),
        ("engine", "precision", "threads", "device"),
        ("prompt_gflop", "decode_layer", "weight_gb", "row_layer", "row_gflop"),
        "placement",
    ),
    CostModel(("score",), ("task",), ("call", "group", "response")),
    CostModel(("prepare_batch",), (), ("call", "group", "response", "token")),
    CostModel(
        ("old_logprobs", "reference_logprobs"),
        ("precision", "threads", "device"),
        ("microbatch", "position_gflop", "logit_gb"),
        "placement",
    ),
    CostModel(
        ("update",),
        ("precision", "threads", "device"),
        ("parameter_gb", "position_gflop", "position_layer", "pair_gb"),
        "placement",
    ),
    CostModel(("weight_publish",), ("transport",), SYNC_TERMS),
    CostModel(("weight_transfer",), ("transport",), SYNC_TERMS),
    CostModel(("weight_load",), ("engine", "precision"), SYNC_TERMS),
    CostModel(("weight_verify",), ("part",), SYNC_TERMS, only=(("part", "generator"),)),
    CostModel(("weight_verify",), ("part", "transport"), SYNC_TERMS, only=(("part", "learner"),)),
    CostModel(("checkpoint",), (), ("call", "tensor", "gb")),
    CostModel(("call",), ("call", "way", "placement"), ("call", "group", "response")),
    CostModel(("record",), (), ("call", "group", "response", "token")),
)
