"""What-if: a recorded run replayed on the virtual clock by the real loop, with one thing changed.

``recorded`` reads a run's calls from its spans, ``books`` looks them up, ``parts`` sleep for them, ``replay`` runs the
loop; ``changes`` says what may be changed, ``costing`` by how much a change makes a call longer, ``effects`` what comes
of it. Light: no torch, no Ray.
"""
