"""Settings of other trainers as scenarios of this project, and back: ``docs/translating.md``."""
