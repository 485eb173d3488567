"""The checker of the loop: the real loop on the virtual clock, with parts that die, dawdle and lie.

``strategies`` draws a ``Schedule``: the plan, how long everything takes, and which faults happen. ``faulty`` has the
parts that do what it says, ``recording`` the proxies that write down what passes, ``checker`` the invariants that are
looked at after each event, ``expected_outcome`` whether the run ended as it must. ``running`` runs one schedule.
"""
