"""In the place of SGLang's CUDA kernels, whose wheel needs CUDA's libraries: names that fail when they are called."""

from collections.abc import Callable

__version__ = "0.4.10"


def __getattr__(name: str) -> Callable[..., None]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_: object, **__: object) -> None:
        raise NotImplementedError(f"sgl_kernel.{name} is for GPUs")

    return missing
