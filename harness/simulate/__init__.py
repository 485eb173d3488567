"""The simulator: the training loop of the real runs on a virtual clock, with parts whose calls cost what a source says.

``clock`` runs coroutines in virtual time, ``parts`` are the Generator, Scorer and Learner, ``timeline`` makes their
calls and records spans. What calls cost comes from a machine profile (``machine``, ``cost_model``, ``features``,
``lengths``; ``calibrate`` fits one to recorded runs) or from a recording (``whatif``). ``simulated_run`` puts a run
together, ``forecast`` says what to expect of one, ``points``, ``sweep`` and ``knee`` of thousands; ``metrics`` are
their figures. Light: neither torch nor Ray, and matplotlib only where a picture is drawn. Start with ``simulated_run``.
"""
