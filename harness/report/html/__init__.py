"""The report as one HTML file: no script, no network, no picture files; the same data give the same bytes.

``python -m harness report PATH... -o report.html`` is the command. Everything that
comes from files is escaped in one place, ``harness.report.html.markup``.
"""
