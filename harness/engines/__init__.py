"""Sampling: tokens and their log-probabilities from a policy's weights.

May import models and what stands below them; vLLM in ``vllm`` and ``vllm_worker`` alone, SGLang in ``sglang``. Start
with ``native``: its sampling loop is ``batch``, its forward pass ``decode`` over ``weights``. ``serving`` is what vLLM
and SGLang share. ``limits`` refuses what no engine can serve.
"""
