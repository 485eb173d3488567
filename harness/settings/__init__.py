"""What a person can set: one frozen class for each idea, with the bounds of its values. Imports no torch.

The room that needs an idea takes its class as it is. ``harness.scenario`` composes them and has the rules between them.
Start with ``base``: what the classes are made of.
"""
