"""Language models: the project's own decoder, folders of Hugging Face models, tokenizers, and arithmetic of their size.

May import tasks and what stands below them. Start with ``decoder`` and ``storage``; ``policy`` scores tokens for
training, ``shared_prompt`` computes a group's prompt once and ``shared_rows`` does so in models that transformers runs,
``tensor_parallel`` cuts a model over ranks, ``matmul`` multiplies by what is faster on the processor; ``config`` and
``flops`` know a model's size without loading it. Modules without torch: ``config``, ``published``, ``limits``,
``flops``.
"""
