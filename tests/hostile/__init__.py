"""Hostile inputs: what a person, another program or a broken disk may put where the harness reads.

``documents`` puts hostile values at every place of a sound document, ``targets`` has the readers that take one file,
``crafted`` inputs that are more than one file's bytes, ``outcome`` how an input was met, ``fuzz`` draws inputs with
Hypothesis until time is up. ``corpus/TARGET/`` holds inputs that were once not met with one clear error; the default
suite tries each of them. ``python -m tests.hostile`` counts all of it, ``make fuzz SECONDS=60`` draws new ones.
"""
