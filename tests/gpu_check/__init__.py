"""``make gpu-check``: what a new machine with a GPU is asked before anything is believed of it; see docs/gpu_check.md.

Each phase is a function of one module that takes a ``Report``, and runs in a process of its own: ``probe``, ``parity``
and ``speed`` ask torch and the harness' parts, ``runs`` the harness' commands. Everything also runs on a CPU, smaller.
The parent (``__main__``, ``runner``) imports no torch. Start reading in ``__main__``.
"""
