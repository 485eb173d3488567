"""Set-up: makes the environment the rest of the package needs. Standard library only; see ``__main__``."""
