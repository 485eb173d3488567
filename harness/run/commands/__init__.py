"""The commands about scenarios; each module has ``add_arguments`` and ``run``. Heavy imports happen inside ``run``."""
