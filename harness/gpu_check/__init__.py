"""``python -m harness gpu-check``: what a new machine with a GPU is asked before anything is believed of it.

Each phase is a function of one module that takes a ``Report``, and runs in a process of its own: ``probe``, ``parity``,
``speed`` and ``two_parts`` ask torch and the harness' parts, ``runs`` the harness' commands. Everything also runs on a
CPU, smaller. A door: it may import every other part. ``command`` and ``wheels`` need nothing that is installed, and the
parent (``runner``) imports no torch. Start reading in ``command``; docs/gpu_check.md tells what the figures mean.
"""
