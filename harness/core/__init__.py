"""What every wing stands on: values, protocols, spans and stage names, errors, seeds, and a few tools.

Imports nothing of the other wings, and no heavy library. Start with ``types`` (what the loop passes on), ``protocols``
(the parts of a run) and ``trace`` (the spans that everything measured is made of).
"""
