"""False accepts and false rejects of graders on pairs judged by hand, tests/data/maths/judged_pairs.jsonl.

The harness' grader, math-verify alone (boxes around both, its defaults), and the grader that is published with
"Understanding R1-Zero-Like Training" (arXiv 2503.20783), fast as in its training and slow as in its evaluation. That
one is no part of this project: take ``understand_r1_zero/math_grader.py`` of the repository sail-sg/understand-r1-zero,
and install pylatexenc for it.

    python tests/benchmarks/grader_pairs.py --dr-grpo understand-r1-zero/understand_r1_zero/math_grader.py
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from harness.tasks.maths.reward import REWARD_FUNCTIONS
from harness.tasks.maths.symbolic import AnswerGrader

PAIRS = Path(__file__).parents[1] / "data" / "maths" / "judged_pairs.jsonl"


class Pair(NamedTuple):
    """A line of the file; without a prompt, ``written`` is the answer alone, else a whole response."""

    shape: str
    written: str
    truth: str
    right: bool
    fixed: bool
    prompt: str | None = None


Accepts = Callable[[Pair], bool]


def read_pairs() -> list[Pair]:
    """Return the judged pairs in the order of their file."""
    return [Pair(**json.loads(line)) for line in PAIRS.read_text(encoding="utf-8").splitlines()]


def in_tags(pair: Pair) -> str:
    """Return the response of a pair; an answer alone is put into the tags of r1_zero."""
    return pair.written if pair.prompt else f"</think> <answer>{pair.written}</answer>"


def harness_grader(grader: AnswerGrader) -> Accepts:
    """Return the grader of this project, through the reward function of the pair's prompt."""

    def accepts(pair: Pair) -> bool:
        reward = REWARD_FUNCTIONS[pair.prompt or "r1_zero"](in_tags(pair), pair.truth, agree=grader)
        return reward["reward"] == 1.0

    return accepts


def math_verify_alone() -> Accepts:
    """Return math-verify with its defaults: boxes around truths and answers; responses as they are."""
    from math_verify import parse, verify

    logging.disable(logging.CRITICAL)

    def accepts(pair: Pair) -> bool:
        written = pair.written if pair.prompt else rf"\boxed{{{pair.written}}}"
        try:
            return bool(verify(parse(rf"\boxed{{{pair.truth}}}"), parse(written)))
        except Exception:  # whatever it raises, it has not accepted
            return False

    return accepts


def dr_grpo(file: Path, fast: bool) -> Accepts:
    """Return the published grader: its reward for boxes where the prompt is the question only, else that for tags."""
    spec = importlib.util.spec_from_file_location("dr_grpo_math_grader", file)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def accepts(pair: Pair) -> bool:
        reward = module.boxed_reward_fn if pair.prompt == "question_only" else module.answer_tag_reward_fn
        try:
            return bool(reward(in_tags(pair), pair.truth, fast=fast)[1] == 1.0)
        except Exception:  # whatever it raises, it has not accepted
            return False

    return accepts


def row(name: str, pairs: list[Pair], accepted: dict[Pair, bool]) -> str:
    """Return a line of the table: accepted among the wrong pairs, rejected among the right ones."""
    wrong, right = ([pair for pair in pairs if pair.right is side] for side in (False, True))
    accepts, rejects = sum(accepted[pair] for pair in wrong), sum(not accepted[pair] for pair in right)
    shares = (f"{count} of {len(of)} ({count / len(of):.1%})" for count, of in ((accepts, wrong), (rejects, right)))
    return f"| {name} | {' | '.join(shares)} |"


def main() -> None:
    """Print the table, and with ``--show`` the misjudged pairs of the half that is not fixed."""
    parser = argparse.ArgumentParser(description="Count what graders misjudge of the pairs judged by hand.")
    parser.add_argument("--dr-grpo", type=Path, metavar="FILE", help="math_grader.py of sail-sg/understand-r1-zero")
    parser.add_argument("--show", action="store_true", help="list what the harness misjudges; never of the fixed half")
    arguments = parser.parse_args()

    pairs = read_pairs()
    grader = AnswerGrader(symbolic_timeout_s=60.0)  # so that a busy machine changes no verdict
    graders = {"harness": harness_grader(grader)}
    if not arguments.show:
        graders["math-verify alone"] = math_verify_alone()
        if arguments.dr_grpo:
            graders |= {
                f"Dr. GRPO, {'fast' if fast else 'slow'}": dr_grpo(arguments.dr_grpo, fast) for fast in (True, False)
            }
    parts = {
        "all pairs": pairs,
        "developed on": [pair for pair in pairs if not pair.fixed],
        "fixed beforehand": [pair for pair in pairs if pair.fixed],
        "answers alone, no whole responses": [pair for pair in pairs if pair.prompt is None],
    }
    verdicts = {name: {pair: accepts(pair) for pair in pairs} for name, accepts in graders.items()}
    grader.close()
    for part, chosen in parts.items():
        print(f"\n| {part} ({len(chosen)}) | false accepts | false rejects |\n|---|---|---|")
        for name, accepted in verdicts.items():
            print(row(name, chosen, accepted))
    if arguments.show:
        for pair in parts["developed on"]:
            if verdicts["harness"][pair] is not pair.right:
                kind = "false accept" if verdicts["harness"][pair] else "false reject"
                print(f"{kind:12}  {pair.shape:24} {pair.written!r}  against  {pair.truth!r}")


if __name__ == "__main__":
    main()
