"""Which keys there are: walks the schema's classes along a path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from harness.scenario.problems import Path
from harness.scenario.schema import Scenario

SectionClass = type[BaseModel]


def section_classes(path: Path) -> tuple[SectionClass, ...]:
    """Return the classes a section may have: one for each ``type``, none where ``path`` leads to a plain value."""
    classes: tuple[SectionClass, ...] = (Scenario,)
    for part in path:
        classes = tuple(model for owner in classes for model in _classes_in(_annotation(owner, part)))
    return classes


def class_of_type(classes: tuple[SectionClass, ...], section_type: object) -> tuple[SectionClass, ...]:
    """Return the class with this ``type``, as a tuple that is empty if there is none."""
    return tuple(model for model in classes if section_type in get_args(model.model_fields["type"].annotation))


def foreign_keys(path: Path, section_type: object) -> frozenset[str]:
    """Return the keys that a section has with another ``type`` only."""
    classes = section_classes(path)
    if len(classes) < 2:
        return frozenset()
    own = class_of_type(classes, section_type)
    known = {key for model in own for key in model.model_fields}
    return frozenset(key for model in classes for key in model.model_fields if own and key not in known)


def field_at(classes: tuple[SectionClass, ...], key: object) -> FieldInfo | None:
    """Return the field named ``key`` of the first class that has it."""
    fields = (model.model_fields[key] for model in classes if isinstance(key, str) and key in model.model_fields)
    return next(fields, None)


def data_path(location: tuple[str | int, ...]) -> tuple[Path, tuple[SectionClass, ...]]:
    """Translate the place of a pydantic error, which also names the chosen ``type`` of sections that have several.

    Returns:
        the path in the data, and the classes that the section around its last key may have.
    """
    path: Path = ()
    owners: tuple[SectionClass, ...] = ()
    classes: tuple[SectionClass, ...] = (Scenario,)
    parts = [part for part in location if part != "[key]"]
    while parts:
        part = parts.pop(0)
        path, owners = (*path, part), owners if isinstance(part, int) else classes
        classes = tuple(model for owner in classes for model in _classes_in(_annotation(owner, part)))
        if len(classes) > 1 and parts:
            classes = class_of_type(classes, parts.pop(0))
    return path, owners


def dotted_keys(classes: tuple[SectionClass, ...] = (Scenario,), prefix: str = "") -> Iterator[str]:
    """Yield every dotted key of the schema, sections among them."""
    for name in {name: None for model in classes for name in model.model_fields}:
        yield prefix + name
        below = tuple(inner for model in classes for inner in _classes_in(_annotation(model, name)))
        yield from dotted_keys(below, f"{prefix}{name}.")


def _annotation(owner: SectionClass, key: object) -> Any:
    field = owner.model_fields.get(key) if isinstance(key, str) else None
    return field.annotation if field else None


def _classes_in(annotation: Any) -> tuple[SectionClass, ...]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return (annotation,)
    return tuple(model for inner in get_args(annotation) for model in _classes_in(inner))
