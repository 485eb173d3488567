"""What-if: a recorded run replayed on the virtual clock by the real loop, with one thing changed.

``recorded`` reads a run's calls from its spans, ``books`` looks them up, ``rollouts`` has their lengths and rewards,
``parts`` sleep for them, ``replay`` runs the loop; ``changes`` says what may be changed, ``works`` by how much a change
makes a call longer, ``sharing`` what parts on the same cores cost each other, ``effects`` what comes of it. Light: no
torch, no Ray.
"""
