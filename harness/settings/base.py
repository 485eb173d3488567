"""What sections of settings are made of: the base class, and types with bounds.

Bounds of one value are in its ``Field``. Rules that tie several values together stand beside the sections they bind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

MOST_COUNT = 10**9
"""Steps, rollouts, tokens: whatever is counted. Products of two of them fit into 64 bits."""
MOST_PARTS = 4096
"""Processes, threads, nodes: whatever is made before a run starts."""
MOST_SECONDS = 1e6
"""Eleven days; ``poll`` waits for 24 at most."""
LEAST_POSITIVE = 1e-30
"""What divides or is divided by; float32 holds it, and one over it."""
AtLeast0 = Annotated[int, Field(ge=0, le=MOST_COUNT)]
AtLeast1 = Annotated[int, Field(ge=1, le=MOST_COUNT)]
Parts = Annotated[int, Field(ge=1, le=MOST_PARTS)]
NotNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(ge=LEAST_POSITIVE)]
Seconds = Annotated[float, Field(gt=0, le=MOST_SECONDS)]
SecondsOr0 = Annotated[float, Field(ge=0, le=MOST_SECONDS)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.+=,-]*$"
FUNCTION = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"
NAME = r"^[A-Za-z_]\w{0,39}$"
FORMS = {
    _NAME: "letters, digits and _ . + = , - (a letter, digit or _ first)",
    NAME: "a name of letters, digits and _, up to 40",
    FUNCTION: "of the form `package.module:name`",
}
FolderName = Annotated[str, Field(pattern=_NAME, max_length=100)]
Precision = Literal["float32", "bfloat16", "float16"]
NonEmptyText = Annotated[str, Field(min_length=1)]
PluginName = Annotated[str, Field(pattern=FUNCTION)]
"""The user's own code, as `package.module:name`."""
PluginOptions = Annotated[dict[str, Any], Field(max_length=100)]


def _which(value: object) -> str:
    """Return which kind of choice a name, a section or its plain data is: what has a colon is the user's own."""
    name = value.get("type") if isinstance(value, dict) else getattr(value, "type", value)
    return PLUGIN if isinstance(name, str) and ":" in name else BUILT_IN


BUILT_IN, PLUGIN = "[built in]", "[plugin]"
"""What pydantic calls the two kinds of a choice, in the places of its errors."""
OF_HARNESS, OF_PLUGIN, BY_COLON = Tag(BUILT_IN), Tag(PLUGIN), Discriminator(_which)
"""A choice between what the harness brings and the user's own, named with a colon."""
BY_TYPE = Field(discriminator="type")
"""Makes a union of sections one section with a ``type``."""


@dataclass(frozen=True, slots=True)
class HoldsFor:
    """Marks a setting whose value means something for one kind of its section, as a clip range for one kind of ratio.

    Laid over by settings of another kind, it goes back to its default, as what another ``type`` does not have is
    dropped: the value was chosen for what is not there any more.

    Attributes:
        kind: what the plain data of the section, perhaps wrong, say that it is.
    """

    kind: Callable[[Mapping[str, Any]], object]


class Section(BaseModel):
    """A block of settings: unknown keys and values of another type are refused, and nothing changes afterwards."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class Settings(Section):
    """A section of a scenario, whose file has lists for tuples, and may leave a section empty or its ``type`` out."""

    @model_validator(mode="before")
    @classmethod
    def _as_written(cls, data: object) -> object:
        if not isinstance(data, dict):
            return data
        written = dict(data)
        for key, value in data.items():
            if type(value) is list:
                written[key] = tuple(value)
            elif (value is None or type(value) is dict) and key in cls.__pydantic_fields__:
                field = cls.__pydantic_fields__[key]
                if value is None and (isinstance(field.default, Section) or field.default_factory is dict):
                    value = written[key] = {}
                if value is not None and "type" not in value and hasattr(field.default, "type"):
                    written[key] = {"type": field.default.type, **value}
        return written
