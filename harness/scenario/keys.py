"""Which keys there are: the classes of settings at a path, their dotted keys and choices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from harness.settings.base import PLUGIN, HoldsFor

SectionClass = type[BaseModel]
Path = tuple[str | int, ...]
"""The way to a value: keys, and indices of list items."""


def classes_at(path: Path, root: SectionClass) -> tuple[SectionClass, ...]:
    """Return the classes a section may have: one for each ``type``, none where ``path`` leads to a plain value."""
    classes: tuple[SectionClass, ...] = (root,)
    for part in path:
        classes = below(classes, part)
    return classes


def foreign_keys(path: Path, section_type: object, root: SectionClass) -> frozenset[str]:
    """Return the keys that the section at a path has with another ``type`` only."""
    classes = classes_at(path, root)
    if len(classes) < 2:
        return frozenset()
    own = of_type(classes, section_type)
    known = {key for model in own for key in model.model_fields}
    return frozenset(key for model in classes for key in model.model_fields if own and key not in known)


def lapsed_keys(path: Path, before: Mapping[str, Any], after: Mapping[str, Any], root: SectionClass) -> frozenset[str]:
    """Return the keys of the section at a path whose values held for what it was before; see ``HoldsFor``."""
    fields = [item for model in classes_at(path, root) for item in model.model_fields.items()]
    marked = [(key, mark) for key, field in fields for mark in field.metadata if isinstance(mark, HoldsFor)]
    return frozenset(key for key, mark in marked if mark.kind(before) != mark.kind(after))


def dotted_keys(*classes: SectionClass, prefix: str = "") -> Iterator[str]:
    """Yield every dotted key below sections of these classes, sections among them."""
    for name in {name: None for model in classes for name in model.model_fields}:
        yield prefix + name
        yield from dotted_keys(*below(classes, name), prefix=f"{prefix}{name}.")


def choices_of(key: str, root: SectionClass) -> list[str]:
    """Return the values of a dotted key that can be listed, as YAML has them; empty for numbers, texts and sections."""
    *sections, name = key.split(".")
    classes: tuple[SectionClass, ...] = (root,)
    for section in sections:
        classes = below(classes, section)
    annotations = [model.model_fields[name].annotation for model in classes if name in model.model_fields]
    return list(dict.fromkeys(choice for annotation in annotations for choice in _choices_in(annotation)))


def _choices_in(annotation: object) -> Iterator[str]:
    if annotation is bool:
        yield from ("true", "false")
    if get_origin(annotation) is dict:  # a mapping, whose keys are no values
        return
    for part in get_args(annotation):
        yield from (part,) if isinstance(part, str) else _choices_in(part)


def below(classes: tuple[SectionClass, ...], part: str | int) -> tuple[SectionClass, ...]:
    """Return the classes one step down the path; an item of a list or mapping of sections has those of all items."""
    fields = [model.model_fields[part] for model in classes if isinstance(part, str) and part in model.model_fields]
    if not fields and len(classes) == 1:
        return classes
    return tuple(found for field in fields for found in _classes_in(field.annotation))


def of_type(classes: tuple[SectionClass, ...], section_type: object) -> tuple[SectionClass, ...]:
    """Return the class with this ``type``, as a tuple that is empty if there is none."""
    if isinstance(section_type, str) and (section_type == PLUGIN or ":" in section_type):
        return tuple(model for model in classes if model.model_fields["type"].annotation is str)
    return tuple(model for model in classes if section_type in get_args(model.model_fields["type"].annotation))


def type_of(model: SectionClass) -> str:
    """Return how the ``type`` of a section is written."""
    field = model.model_fields["type"]
    return "package.module:Name" if field.is_required() else str(field.default)


def _classes_in(annotation: Any) -> tuple[SectionClass, ...]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return (annotation,)
    return tuple(model for inner in get_args(annotation) for model in _classes_in(inner))
