"""Scenarios: the YAML a person writes, checked and expanded into the runs it asks for. Imports no torch.

Start with ``schema``: a scenario, composed of ``harness.settings``. ``derived`` has what follows from it, ``rules``
what it may not combine. ``load`` reads a file, ``axes`` makes its runs. Below them, and without an idea of a scenario:
``tree`` (YAML that knows its lines, laid over one another), ``keys`` (which settings there are) and ``problems``.
"""
