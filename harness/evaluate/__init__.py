"""``python -m harness evaluate``: sample a data set once, grade every response, and sort them into categories.

questions     the prompts, how they are graded, and where they come from
settings      what the result depends on; two evaluations of equal settings give equal responses
record        the files of an evaluation, appended batch by batch, and taken up again after a kill
sampling      the loop over the batches
categories    counts, shares with intervals, examples and metrics, from the recorded rows alone
show          tables and JSON
"""
