"""Sampling without training: a model's answers sorted into categories, and data sets that a model writes.

May import every wing but ``simulate``. Start with ``evaluation``: ``questions`` has the prompts and how they are
graded, ``record`` the files that are taken up again after a kill, ``results`` the categories. ``keyword_dataset`` is
the other command.
"""
