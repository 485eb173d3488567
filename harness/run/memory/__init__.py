"""What a run will hold in memory, from the scenario and the model's shape alone, before anything is loaded."""

from harness.run.memory.check import check_memory, memory_table

__all__ = ["check_memory", "memory_table"]
