"""What vLLM makes on CPUs of each of its workers. It imports this by name, in the process in which the worker is.

Beside ``vllm`` the only module that imports vLLM: a worker's class can only be made where vLLM is there.
"""

from __future__ import annotations

from typing import Any

import vllm._custom_ops as custom_ops
from vllm.v1.worker.cpu_worker import CPUWorker


class PlainWorker(CPUWorker):
    """A worker that keeps its matrices as plain parameters, over which new weights can be copied.

    vLLM would pack each of them into a handle of oneDNN's that nothing can write to.
    """

    def load_model(self, **options: Any) -> None:
        """Load the model without oneDNN.

        Raises:
            RuntimeError: this vLLM has another name for what switches it off.
        """
        if not hasattr(custom_ops, "_supports_onednn"):
            raise RuntimeError("this vLLM cannot be told to leave its weights as they are; 0.32 can")
        custom_ops._supports_onednn = False
        super().load_model(**options)
