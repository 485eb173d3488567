"""What-if: a recorded run replayed on the virtual clock by the real loop, with one thing changed.

``recording`` reads a run's calls and rollouts, ``replay`` runs the loop with parts that take recorded times,
``changes`` says what may be changed, ``repricing`` by how much a change makes a call longer and what parts on the same
cores cost each other, ``effects`` what comes of it, ``report`` how it is told. Light: no torch, no Ray.
"""

ERROR_BOUND = 0.03
"""How far the replay of a run as it was may be from the run, for a prediction to be made of it."""
