"""A forecast that starts from a recorded run: the real loop replays it on the virtual clock, with one thing changed.

``change`` says what may be changed, ``replay`` runs the loop with parts that take recorded times, ``repricing`` says by
how much a change makes a call longer and what parts on the same cores cost each other, ``answer`` what comes of it,
``report`` how it is told. Light: no torch, no Ray.
"""

ERROR_BOUND = 0.03
"""How far the replay of a run as it was may be from the run, for a prediction to be made of it."""
