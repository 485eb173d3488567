"""How weights move from the Learner to the Generators: one file for each way, both ends of it.

May import engines and what stands below them, and Ray. Start with ``protocol`` (a sender and a receiver), then
``catalogue`` (which there are and what each needs) and ``nixl`` as one of them. ``buffers`` keeps published versions,
``checksum`` proves what arrived. A Learner of several ranks publishes by ``sharded``, which cuts by ``shards``.
"""
