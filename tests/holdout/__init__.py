"""The simulator's examination: runs that were measured and never fitted, against what the simulator says of them.

``python -m harness holdout`` makes the table in ``docs/measured/holdout.md``. What is examined, and by how much a
prediction may be wrong, was written down before any of it was measured: ``profiles/holdout.yaml``.
"""
