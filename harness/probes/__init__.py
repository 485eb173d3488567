"""What is measured beside the run."""
