"""How results are shown: a terminal, Markdown, JSON, one HTML page, pictures, traces (``trace``).

It imports what reads and compares runs, never torch or Ray; matplotlib only where a chart is drawn. Start with
``document``, which everything but JSON renders, then ``build``, which makes one.
"""
