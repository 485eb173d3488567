"""One training step through the losses and advantages of several implementations: ``docs/oracle.md``."""
