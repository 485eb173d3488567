"""The command that predicts runs: one scenario, or thousands of points of a sweep, on a machine that need not be here.

Importing it is cheap: neither torch nor Ray, and matplotlib only where a picture is drawn.
"""
