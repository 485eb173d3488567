"""How results are said: text on a terminal, pictures, one HTML page (``html``), traces (``trace``).

It imports what reads and compares runs, never torch or Ray; matplotlib only where a picture is drawn. Start with
``data``, which holds what pictures and page both show, then ``pictures`` or ``html.page``.
"""
