"""From a scenario to running parts and back: parts in this process or as Ray actors, their placement, arms in turns.

May import every wing but ``evaluate`` and ``simulate``. Start with ``command`` (one command line's runs), then
``arm_runner`` (one point's arms) and ``parts`` (what one run needs).
"""
