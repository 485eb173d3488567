"""The tables of docs/sorting.md, from the results of the sorting scenarios; and what can be had without any run.

python tests/benchmarks/sorting_tables.py                       # what needs no run: responses, untrained policies
python tests/benchmarks/sorting_tables.py results/sorting_grid  # final rewards, and what was settled on
python tests/benchmarks/sorting_tables.py results/sorting       # of a run with a policy: KL and its estimates
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean

from harness.compare.experiment import arm_labels
from harness.compare.stats.intervals import t_interval
from harness.results import Run, find_runs
from harness.results.frames import table_of
from harness.tasks.sorting import SORTING_PROMPTS, SORTING_REWARDS, numbers_in

NUMBERS = range(5)
RARE = 0.001
LOSSES = ("naive", "unclipped", "grpo_clip")
DELTAS = ("rewards", "centered_rewards", "normalized_rewards", "max_rewards", "max_centered_rewards")
DELTA_PAIRS = (
    ("normalized_rewards", "rewards"),
    ("normalized_rewards", "centered_rewards"),
    ("max_centered_rewards", "max_rewards"),
    ("normalized_rewards", "max_centered_rewards"),
)
Response = tuple[int, ...]


def responses() -> Iterator[Response]:
    """All 125."""
    return product(NUMBERS, repeat=3)


def neighbours(response: Response) -> Iterator[Response]:
    """The responses that differ in one position: 12."""
    for position, number in product(range(3), NUMBERS):
        if number != response[position]:
            yield (*response[:position], number, *response[position + 1 :])


def print_enumeration() -> None:
    """For each reward and prompt: best and mean reward, and the responses that no single change improves."""
    print("| reward | prompt | highest | mean over all 125 | responses that no change of one number improves |")
    print("|---|---|---|---|---|")
    for (name, reward), prompt in product(SORTING_REWARDS.items(), SORTING_PROMPTS):
        of = {response: reward(prompt, response) for response in responses()}
        stuck = Counter(of[r] for r in of if of[r] < max(of.values()) and all(of[n] <= of[r] for n in neighbours(r)))
        shown = ", ".join(f"{count} of reward {value:g}" for value, count in sorted(stuck.items())) or "none"
        print(f"| {name} | {' '.join(map(str, prompt))} | {max(of.values()):g} | {fmean(of.values()):.3f} | {shown} |")


def print_untrained(seeds: int = 10) -> None:
    """How one-sided the policies are before the first training step."""
    import torch

    from harness.models.sorting import sorting_policy

    prompts_PL = torch.tensor(SORTING_PROMPTS)
    right_PT1 = prompts_PL.sort(dim=1).values[..., None]
    with torch.no_grad():
        logits_SPTV = torch.stack([sorting_policy(seed)[0](prompts_PL) for seed in range(seeds)]).double()
    probabilities_SPTV = logits_SPTV.softmax(-1)
    entropy = float(-(probabilities_SPTV * logits_SPTV.log_softmax(-1)).sum(-1).mean())
    likeliest = float(probabilities_SPTV.amax(-1).mean())
    right = probabilities_SPTV.gather(-1, right_PT1.expand(seeds, -1, -1, 1))
    print(f"\nUntrained policies of seeds 0 to {seeds - 1}, means over prompts and positions:")
    print(f"token entropy {entropy:.3f} nats (even: {torch.tensor(5.0).log():.3f}); likeliest number {likeliest:.2f}")
    print(f"the right number has a probability below {RARE} at {(right < RARE).double().mean():.0%} of the positions")


def by_variant(folder: Path) -> dict[str, list[Run]]:
    """The completed runs by variant, in the order of the scenario, seeds in order."""
    runs, damaged = find_runs(folder)
    for item in damaged:
        print(f"left out {item.folder.name}: {item.error.what}", file=sys.stderr)
    runs = sorted((run for run in runs if run.status == "completed"), key=lambda run: run.manifest.position or 0)
    labels = arm_labels([(run.manifest.arm, run.manifest.point) for run in runs], "all")
    variants: dict[str, list[Run]] = {}
    for label, run in zip(labels, runs, strict=True):
        variants.setdefault(label, []).append(run)
    return variants


def rewards(run: Run) -> list[float]:
    """The validation rewards of a run's evaluations, in order."""
    return table_of(run).rewards.reward.tolist()


def print_rewards(variants: dict[str, list[Run]]) -> None:
    """Untrained and final validation reward over the seeds, with the share of the maximum."""
    print("| variant | seeds | untrained | final, 95% interval | of the maximum | seeds above untrained |")
    print("|---|---|---|---|---|---|")
    for label, runs in variants.items():
        first, last = ([rewards(run)[end] for run in runs] for end in (0, -1))
        highest = 3.0 if runs[0].setting("task.reward") == "positions" else 5.0
        interval = t_interval(last)
        ends = "" if interval is None else f" ({interval.low:.2f} to {interval.high:.2f})"
        above = sum(after > before for before, after in zip(first, last, strict=True))
        print(
            f"| {label} | {len(runs)} | {fmean(first):.2f} | {fmean(last):.2f}{ends} | {fmean(last) / highest:.0%} "
            f"| {above} of {len(runs)} |"
        )


def final_responses(run: Run) -> dict[str, Counter[str]]:
    """What the last evaluation's kept rollouts say to each prompt."""
    newest = max(row.version for row in run.rollouts())
    found: dict[str, Counter[str]] = {}
    for row in run.rollouts():
        if row.version == newest and row.purpose == "evaluate":
            found.setdefault(row.prompt, Counter())[row.response] += 1
    return found


def print_settled(label: str, runs: Sequence[Run]) -> None:
    """For each prompt: the commonest response of each seed, its reward, and whether one change would improve it."""
    reward = SORTING_REWARDS[runs[0].setting("task.reward")]
    print(f"\n{label}: the commonest response of each seed\n")
    print("| prompt | response (reward, number of seeds); + where changing one number would earn more |")
    print("|---|---|")
    finals = [final_responses(run) for run in runs]
    kinds: Counter[str] = Counter()
    for prompt in SORTING_PROMPTS:
        text = " ".join(map(str, prompt))
        seeds = Counter(final[text].most_common(1)[0][0] for final in finals)
        cells = []
        for response, count in seeds.most_common():
            numbers = tuple(numbers_in(response) or ())
            better = any(reward(prompt, other) > reward(prompt, numbers) for other in neighbours(numbers))
            kind = "best" if numbers == tuple(sorted(prompt)) else "improvable" if better else "ledge"
            kinds[kind] += count
            cells.append(f"`{response}` ({reward(prompt, numbers):g}, {count}){'+' if better else ''}")
        print(f"| {text} | {', '.join(cells)} |")
    print(f"\nOf {kinds.total()} (prompt, seed) pairs: {dict(kinds)}.")
    shares = [counts.most_common(1)[0][1] / counts.total() for final in finals for counts in final.values()]
    print(f"Pairs in which all responses kept are the same: {sum(share == 1 for share in shares)}.")
    for step in (0, 9, 99):
        print(f"Token entropy in training step {step}, mean over seeds: {fmean(entropies(runs, step)):.3f} nats.")


def entropies(runs: Sequence[Run], step: int) -> list[float]:
    """The policy's mean token entropy in a training step, for each run that has it."""
    found = [row.metric("token_entropy") for run in runs for row in run.steps if row.step == step]
    return [metric.value for metric in found if metric is not None]


def print_reached(runs: Sequence[Run]) -> None:
    """How many numbers end right, by whether the untrained policy ever samples them."""
    import torch

    from harness.models.sorting import sorting_policy

    counts: Counter[tuple[bool, bool]] = Counter()
    for run in runs:
        with torch.no_grad():
            probabilities_PTV = sorting_policy(run.manifest.seed)[0](torch.tensor(SORTING_PROMPTS)).softmax(-1)
        finals = final_responses(run)
        for prompt, probabilities_TV in zip(SORTING_PROMPTS, probabilities_PTV.tolist(), strict=True):
            said = numbers_in(finals[" ".join(map(str, prompt))].most_common(1)[0][0]) or []
            for number, wanted, row in zip(said, sorted(prompt), probabilities_TV, strict=True):
                counts[row[wanted] < RARE, number == wanted] += 1
    rare, common = (f"{counts[kind, True]} of {counts[kind, True] + counts[kind, False]}" for kind in (True, False))
    print(f"Right numbers at the end: {rare} that began below {RARE}, {common} of the others.")


def print_kl(run: Run, rollouts: int = 30) -> None:
    """KL of the trained policy to the untrained one, and of policies on the way there: its value and its estimates.

    Means and standard deviations of the estimates are sums over all 125 responses to each prompt: nothing is sampled.
    """
    import torch
    from safetensors.torch import load_file

    from harness.grpo.kl import exact_kl, kl_estimate
    from harness.models.sorting import SortingModel, sorting_policy

    def log_probs(weights: dict[str, torch.Tensor]) -> torch.Tensor:
        model = SortingModel()
        model.load_state_dict(weights)
        with torch.no_grad():
            return model.double()(torch.tensor(SORTING_PROMPTS)).log_softmax(-1)

    first = sorting_policy(run.manifest.seed)[0].state_dict()
    last = load_file(run.folder / "policy" / "model.safetensors")
    chosen_RT = torch.tensor(list(responses()))
    print(f"\nKL to the untrained policy, nats per token; +-: standard deviation of a mean over {rollouts} rollouts\n")
    print("| share of the way | exact | k1 | k2 | k3 |\n|---|---|---|---|---|")
    for share in (0.003, 0.03, 0.3, 1.0):
        on_the_way = {name: first[name].lerp(last[name], share) for name in first}
        log_p_PTV, log_q_PTV = log_probs(on_the_way), log_probs(first)
        log_p_PRT, log_q_PRT = (
            torch.stack([of_prompt[range(3), chosen_RT] for of_prompt in every]) for every in (log_p_PTV, log_q_PTV)
        )
        weights_PR = log_p_PRT.sum(-1).exp()
        cells = [f"{float(exact_kl(log_p_PTV, log_q_PTV).mean()):.2e}"]
        for estimator in ("k1", "k2", "k3"):
            values_PR = kl_estimate(log_p_PRT, log_q_PRT, estimator).mean(-1)
            means_P = (weights_PR * values_PR).sum(-1)
            variance = float((weights_PR * (values_PR - means_P[:, None]).square()).sum(-1).mean())
            cells.append(f"{float(means_P.mean()):.2e} +- {(variance / rollouts) ** 0.5:.1e}")
        print(f"| {share:g} | {' | '.join(cells)} |")


def print_differences(variants: dict[str, list[Run]]) -> None:
    """Paired differences of the final reward over seeds, between deltas and between losses."""
    final = {label: [rewards(run)[-1] for run in runs] for label, runs in variants.items()}
    print("\nFinal reward, paired by seed, with 95% intervals:")
    for reward in SORTING_REWARDS:
        for (delta, other), loss in product(DELTA_PAIRS, LOSSES):
            of = [f"reward={reward}, delta={name}, type={loss}" for name in (delta, other)]
            _print_difference(f"{reward}, {loss}: {delta} less {other}", *(final.get(label, []) for label in of))
        for delta, other in product(DELTAS, LOSSES[:2]):
            of = [f"reward={reward}, delta={delta}, type={name}" for name in ("grpo_clip", other)]
            _print_difference(f"{reward}, {delta}: grpo_clip less {other}", *(final.get(label, []) for label in of))


def _print_difference(what: str, these: Sequence[float], others: Sequence[float]) -> None:
    if these and len(these) == len(others):
        interval = t_interval([this - other for this, other in zip(these, others, strict=True)])
        if interval is not None:
            print(f"{what}: {interval.value:+.2f} ({interval.low:+.2f} to {interval.high:+.2f})")


def main(arguments: Sequence[str]) -> None:
    """Print the tables for the folders; without one, what enumeration gives."""
    if not arguments:
        print_enumeration()
        print_untrained()
    for argument in arguments:
        variants = by_variant(Path(argument))
        print_rewards(variants)
        for label, runs in variants.items():
            if len(variants) == 1 or "normalized_rewards, type=grpo_clip" in label:
                print_settled(label, runs)
                print_reached(runs)
            if len(variants) == 1 and (runs[0].folder / "policy").is_dir():
                print_kl(runs[0])
        if any("delta=" in label for label in variants):
            print_differences(variants)


if __name__ == "__main__":
    main(sys.argv[1:])
