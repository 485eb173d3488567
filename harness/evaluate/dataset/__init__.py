"""``python -m harness dataset``: a model writes a data set.

keywords      sentences for prompts of the keyword task, checked, until there are enough
writing       the folder, which appears whole
"""
