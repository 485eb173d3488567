"""Plugins: a user's own functions and parts, named as ``package.module:Name`` and imported from the current folder.

A plugin is imported where it is used or checked, never where a scenario is only read.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.core.errors import Interrupted, UserError

_HARNESS = str(Path(__file__).parents[1]) + os.sep


@dataclass(frozen=True, slots=True)
class PluginKind:
    """What plugins of one kind are, in the words of errors.

    Attributes:
        noun: ``reward``, ``loss``, ``engine``.
        setting: the dotted key that names one.
        signature: how it is defined, for example ``(response: str, ground_truth: str) -> float``.
        example: a path that there is.
        arguments: the keywords with which it is called; it gets those that it names.
        protocol: what it makes; None of a function that is called for each batch or response.
    """

    noun: str
    setting: str
    signature: str
    example: str
    arguments: tuple[str, ...] = ()
    protocol: type | None = None

    def refused(self, path: str, why: str, fix: str, where: str | None = None) -> UserError:
        """Return the error of a plugin that cannot be used."""
        return UserError(f"the {self.noun} {path} {why}", where or self.setting, fix)


def load_plugin(path: str, kind: PluginKind) -> Any:
    """Import what a path names, with the current folder first on the import path.

    Raises:
        UserError: the path has no colon, the module cannot be imported, or the name is missing.
    """
    module_name, _, name = path.partition(":")
    form, what = ("function", "a function") if kind.protocol is None else ("Name", "a class or a function")
    example = f"write it as package.module:{form}, for example {kind.example}"
    if not module_name or not name or "/" in path or module_name.endswith(".py"):
        raise kind.refused(repr(path), f"does not name {what}", example)
    _look_here()
    try:
        module = importlib.import_module(module_name)
    except BaseException as error:
        if is_ctrl_c(error):
            raise
        if isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}."):
            fix = f"{example}, and run from the folder that holds {module_name.partition('.')[0]}"
            raise kind.refused(repr(path), "cannot be imported: there is no such module", fix) from error
        fix = f"make `python -c 'import {module_name}'` work in this folder"
        why = f"cannot be imported: importing it raised {described(error)}"
        raise kind.refused(repr(path), why, fix, last_line(error)) from error
    if not hasattr(module, name):
        near = difflib.get_close_matches(name, [known for known in vars(module) if not known.startswith("_")], n=1)
        fix = f"did you mean {module_name}:{near[0]}?" if near else f"define {name} in {module_name}"
        raise kind.refused(repr(path), f"cannot be used: the module {module_name} has no {name!r}", fix)
    return getattr(module, name)


def load_callable(path: str, kind: PluginKind, options: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """Import a plugin and check that it can be called with the keywords of its kind, and with all of ``options``.

    Raises:
        UserError: see ``load_plugin``; or it cannot be; or it is a class that lacks a method of the protocol.
    """
    plugin, name = load_plugin(path, kind), path.partition(":")[2]
    definition = f"define it as def {name}{kind.signature}"
    if not callable(plugin):
        what = "a function" if kind.protocol is None else "a class or a function"
        why = f"cannot be used: {name} is of type {type(plugin).__name__}, not {what}"
        raise kind.refused(repr(path), why, definition)
    if kind.arguments or options is not None:
        try:
            inspect.signature(plugin).bind(**_keywords(plugin, dict.fromkeys(kind.arguments), options or {}))
        except (TypeError, ValueError) as error:  # a built-in says nothing
            fix = f"{definition}; of {', '.join(kind.arguments) or 'nothing'} it gets what it names"
            fix += f", and of the scenario's options all: {', '.join(options)}" if options else ""
            raise kind.refused(path, f"cannot be called with what the run has: {error}", fix) from error
    if isinstance(plugin, type) and kind.protocol is not None:
        check_methods(plugin, kind.protocol, path, kind)
    return plugin  # type: ignore[no-any-return]


def make_plugin(path: str, kind: PluginKind, given: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Make a part of a run with those values of ``kind.arguments`` that it names, and all options of the scenario.

    Raises:
        UserError: see ``load_callable``; or making it raised; or what was made lacks a method or an attribute.
    """
    make = load_callable(path, kind, options)
    keywords = _keywords(make, given, options)
    try:
        made = make(**keywords)
    except (UserError, Interrupted):
        raise
    except (Exception, SystemExit) as error:  # sys.exit(0) would end a failed run as a success
        why, fix = f"it raised {described(error)}", f"it was called with {', '.join(keywords) or 'nothing'}"
        raise kind.refused(path, f"cannot be made: {why}", fix, last_line(error) or path) from error
    if kind.protocol is not None:
        check_methods(made, kind.protocol, path, kind)
    return made


def _keywords(function: Callable[..., Any], given: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    return {**{name: given[name] for name in keywords_of(function, given)}, **options}


def keywords_of(function: Callable[..., Any], known: Iterable[str]) -> tuple[str, ...]:
    """Return which of the known keywords a function takes: those that it names, or all."""
    parameters = inspect.signature(function).parameters.values()
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    named = {each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)}
    return tuple(name for name in known if takes_all or name in named)


def check_methods(made: Any, protocol: type, path: str, kind: PluginKind) -> None:
    """Check that a part, or its class, has what a protocol asks for, each method callable with its arguments.

    Attributes are looked for in a part that was made only, since a class may set them when it makes one.

    Raises:
        UserError: with everything that is missing or different, and how each should be.
    """
    wrong: dict[str, str] = {}
    of_class = isinstance(made, type)
    bases = [base for base in protocol.__mro__ if getattr(base, "_is_protocol", False)]
    for name in dict.fromkeys(name for base in bases for name in vars(base) if not name.startswith("_")):
        member, there = getattr(protocol, name), getattr(made, name, None)
        definition = f"def {name}{str(inspect.signature(member)).replace(chr(39), '')}" if callable(member) else name
        if not inspect.isfunction(member):  # a property
            if not of_class and not hasattr(made, name):
                wrong[f"it has no attribute {name}"] = f"set self.{name}: {inspect.getdoc(member) or name}"
        elif of_class and any(name in vars(base).get("__annotations__", {}) for base in made.__mro__):
            continue
        elif not callable(there) or getattr(there, "__func__", there) is member:  # that of the protocol itself
            wrong[f"it has no method {name}"] = f"add {definition}"
        elif not _takes(there, member, of_class and inspect.isfunction(inspect.getattr_static(made, name))):
            found = inspect.signature(there)
            wrong[f"its {name}{found} cannot be called as the harness does"] = f"make it {definition}"
    if wrong:
        raise kind.refused(path, f"is no {protocol.__name__}: {'; '.join(wrong)}", "; ".join(wrong.values()))


def _takes(method: Callable[..., Any], member: Callable[..., Any], unbound: bool) -> bool:
    """Return whether a method can be called with all arguments of the protocol's, and without its optional ones."""
    parameters = list(inspect.signature(member).parameters.values())[0 if unbound else 1 :]
    needed = [parameter for parameter in parameters if parameter.default is parameter.empty]
    try:
        for given in (parameters, needed):
            by_name = [parameter.name for parameter in given if parameter.kind is parameter.KEYWORD_ONLY]
            inspect.signature(method).bind(*given[: len(given) - len(by_name)], **dict.fromkeys(by_name))
    except (TypeError, ValueError) as error:
        return isinstance(error, ValueError)  # a built-in says nothing
    return True


def plugin_digest(path: str) -> str | None:
    """Return the SHA-256 of the file of a plugin's module, in hexadecimal; None where there is no such file."""
    _look_here()
    try:
        spec = importlib.util.find_spec(path.partition(":")[0])
        return hashlib.sha256(Path(spec.origin or "").read_bytes()).hexdigest() if spec else None
    except (ImportError, ValueError, AttributeError, OSError):
        return None


def _look_here() -> None:
    """Put the current folder first on the import path, where it stays: the plugin may import later."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()


def is_ctrl_c(error: BaseException) -> bool:
    """Return whether what came out of a plugin may be a Ctrl-C, which only the main thread is told of."""
    return (
        isinstance(error, KeyboardInterrupt)
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )


def described(error: BaseException) -> str:
    """Return the type of an error and its text."""
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def last_line(error: BaseException) -> str | None:
    """Return ``file:line`` where the error was raised in the user's own code, relative to the current folder."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{os.path.relpath(error.filename)}:{error.lineno}"
    here = os.getcwd()
    lines = [
        f"{os.path.relpath(frame.f_code.co_filename)}:{line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename.startswith(here)
        and not frame.f_code.co_filename.startswith(_HARNESS)
        and "site-packages" not in frame.f_code.co_filename
    ]
    return lines[-1] if lines else None
