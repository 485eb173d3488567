"""The simulator's examination: runs that were measured and never fitted, against what the simulator says of them.

``make holdout`` makes the tables of ``docs/measured/holdout.md``. What is examined, and by how much a prediction may be
wrong, was written down before any of it was measured: ``plan.yaml``, with the arms of ``holdout.yaml``. ``evaluate``
fits and predicts the runs that ``plan`` reads, ``summary`` is what is saved, ``verdicts`` holds it against its bounds,
and ``report`` shows it. ``external`` predicts other people's published figures, ``occasions`` runs of another day.
"""
