"""A user's own code, named as ``package.module:name``: a function (reward, loss, advantage) or a part of a run.

It is imported where it is used or checked, never where a scenario is only read.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.core.errors import Interrupted, UserError

_HARNESS = str(Path(__file__).parents[1]) + os.sep


@dataclass(frozen=True, slots=True)
class OwnKind:
    """What a user's own code is for, in the words of errors.

    Attributes:
        noun: ``reward``, ``loss``, ``engine``.
        setting: the dotted key that names it.
        signature: how it is defined, for example ``(response: str, ground_truth: str) -> float``.
        example: a path that there is.
        arguments: the keywords that a part may take, each if it names it.
        protocol: what a part must be; None of a function.
    """

    noun: str
    setting: str
    signature: str
    example: str
    arguments: tuple[str, ...] = ()
    protocol: type | None = None

    @property
    def write_as(self) -> str:
        """How to write the setting."""
        form = "function" if self.protocol is None else "Name"
        return f"write it as package.module:{form}, for example {self.example}"


def import_function(path: str, kind: OwnKind) -> Callable[..., Any]:
    """Return the function or class that a path names; see ``import_own``.

    Raises:
        UserError: see ``import_own``; or it is not callable.
    """
    function, name = import_own(path, kind), path.partition(":")[2]
    if not callable(function):
        what = "a function" if kind.protocol is None else "a class or a function"
        raise UserError(
            f"the {kind.noun} {path!r} cannot be used: {name} is of type {type(function).__name__}, not {what}",
            where=kind.setting,
            fix=f"define it as def {name}{kind.signature}",
        )
    return function  # type: ignore[no-any-return]


def import_own(path: str, kind: OwnKind) -> Any:
    """Return what a path names, imported with the current folder first on the import path.

    Args:
        path: ``package.module:name``.
        kind: what it is for.

    Raises:
        UserError: the path has no colon, the module cannot be imported, or the name is missing.
    """
    module_name, colon, name = path.partition(":")
    if not colon or not module_name or not name or "/" in path or module_name.endswith(".py"):
        form = "a function" if kind.protocol is None else "a class or a function"
        raise UserError(f"the {kind.noun} {path!r} does not name {form}", where=kind.setting, fix=kind.write_as)
    module = _import_module(path, module_name, kind)
    found = getattr(module, name, None)
    if found is None:
        near = difflib.get_close_matches(name, [known for known in vars(module) if not known.startswith("_")], n=1)
        raise UserError(
            f"the {kind.noun} {path!r} cannot be used: the module {module_name} has no {name!r}",
            where=kind.setting,
            fix=f"did you mean {module_name}:{near[0]}?" if near else f"define {name} in {module_name}",
        )
    return found


def import_part(path: str, kind: OwnKind, options: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the class or function that makes a part, checked as far as can be without making one.

    Args:
        path: ``package.module:Name``.
        kind: what the part is.
        options: what the scenario sets for it; it must take every one.

    Raises:
        UserError: it cannot be imported or called with these keywords; or it is a class that lacks a method of the
            protocol, or has one that cannot be called as the harness does.
    """
    make = import_function(path, kind)
    taken = taken_keywords(make, path, kind, (*kind.arguments, *options))
    if left := [name for name in options if name not in taken]:
        raise UserError(
            f"the {kind.noun} {path} takes no argument {left[0]}, which the options of the scenario set",
            where=kind.setting,
            fix=f"add it to the arguments of {path.partition(':')[2]}, or leave the option out",
        )
    if isinstance(make, type) and kind.protocol is not None:
        check_is(make, kind.protocol, path, kind)
    return make


def make_part(path: str, kind: OwnKind, given: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Make a part and check that it is what it should be.

    Args:
        path: ``package.module:Name``.
        kind: what the part is.
        given: the values of ``kind.arguments``; each is passed on if it is named.
        options: what the scenario sets for it.

    Raises:
        UserError: see ``import_part``; or making it raised, or what was made is no such part.
    """
    make = import_part(path, kind, options)
    keywords = {**given, **options}
    try:
        made = make(**{name: keywords[name] for name in taken_keywords(make, path, kind, tuple(keywords))})
    except (UserError, Interrupted):
        raise
    except (Exception, SystemExit) as error:  # sys.exit(0) would end a failed run as a success
        raise UserError(
            f"the {kind.noun} {path} cannot be made: it raised {described(error)}",
            where=last_line(error) or path,
            fix=f"it is called with those of {', '.join(keywords)} that it names",
        ) from error
    if kind.protocol is not None:
        check_is(made, kind.protocol, path, kind)
    return made


def taken_keywords(make: Callable[..., Any], path: str, kind: OwnKind, known: Sequence[str]) -> tuple[str, ...]:
    """Return which of the known keywords a function or class takes.

    Raises:
        UserError: it needs an argument that there is not, or one by position.
    """
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError) as error:
        raise UserError(
            f"the {kind.noun} {path} tells nobody its arguments: {described(error)}",
            where=kind.setting,
            fix=f"define it as def {path.partition(':')[2]}{kind.signature}",
        ) from error
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return tuple(known)
    for parameter in parameters:
        by_name = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        optional = parameter.default is not parameter.empty or parameter.kind is parameter.VAR_POSITIONAL
        if (by_name and parameter.name in known) or optional:
            continue
        near = difflib.get_close_matches(parameter.name, known, n=1) if by_name else []
        reason = "is none of them" if by_name else "is taken by position"
        raise UserError(
            f"the {kind.noun} {path} is called with the keywords {', '.join(known)}, and its argument "
            f"{parameter.name} {reason}",
            where=kind.setting,
            fix=f"did you mean {near[0]}?" if near else "name the arguments that it needs, or give others a default",
        )
    return tuple(parameter.name for parameter in parameters if parameter.name in known)


def check_is(made: Any, protocol: type, path: str, kind: OwnKind) -> None:
    """Check that a part, or its class, has what a protocol asks for, each method callable as the harness calls it.

    Attributes are looked for in a part that was made only, since a class may set them when it makes one.

    Raises:
        UserError: with everything that is missing or different, and how each should be.
    """
    wrong = list(_differences(made, protocol))
    if wrong:
        raise UserError(
            f"the {kind.noun} {path} is no {protocol.__name__}: {'; '.join(what for what, _ in wrong)}",
            where=kind.setting,
            fix="; ".join(fix for _, fix in wrong),
        )


def _differences(made: Any, protocol: type) -> Iterator[tuple[str, str]]:
    """Yield what is wrong, and what should be there, member by member."""
    is_class = isinstance(made, type)
    asked = [base for base in protocol.__mro__ if getattr(base, "_is_protocol", False)]
    for name, member in {name: member for base in asked for name, member in vars(base).items()}.items():
        declared = is_class and any(name in vars(base).get("__annotations__", {}) for base in made.__mro__)
        if name.startswith("_") or declared:
            continue
        if not inspect.isfunction(member):  # a property
            if not is_class and not hasattr(made, name):
                yield f"it has no attribute {name}", f"set self.{name}: {inspect.getdoc(member) or name}"
            continue
        should = f"def {name}{str(inspect.signature(member)).replace(chr(39), '')}"
        method = getattr(made, name, None)
        if not callable(method) or getattr(method, "__func__", method) is member:  # that of the protocol itself
            yield f"it has no method {name}", f"add {should}"
        elif not _takes_calls_of(member, method, is_class and _is_plain(made, name)):
            yield f"its {name}{inspect.signature(method)} cannot be called as the harness does", f"make it {should}"


def _is_plain(owner: type, name: str) -> bool:
    """Return whether a method gets its object as the first argument: no static method, no class method."""
    return inspect.isfunction(inspect.getattr_static(owner, name))


def _takes_calls_of(member: Callable[..., Any], method: Callable[..., Any], unbound: bool) -> bool:
    """Return whether a method can be called with all arguments of the protocol's, and without its optional ones."""
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):  # of a built-in, which tells nobody
        return True
    parameters = list(inspect.signature(member).parameters.values())[1:]
    for wanted in (parameters, [parameter for parameter in parameters if parameter.default is parameter.empty]):
        by_name = [parameter.name for parameter in wanted if parameter.kind is parameter.KEYWORD_ONLY]
        try:
            signature.bind(*[None] * (unbound + len(wanted) - len(by_name)), **dict.fromkeys(by_name))
        except TypeError:
            return False
    return True


def module_hash(path: str) -> str | None:
    """Return the SHA-256 of the file of the module that a path names, in hexadecimal; None where there is no such file.

    Args:
        path: ``package.module:name``.
    """
    _look_here()
    try:
        spec = importlib.util.find_spec(path.partition(":")[0])
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return None
    return hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()


def _look_here() -> None:
    """Put the current folder first on the import path, where it stays: the function may import later."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()


def _import_module(path: str, module_name: str, kind: OwnKind) -> ModuleType:
    _look_here()
    try:
        return importlib.import_module(module_name)
    except BaseException as error:
        if is_ctrl_c(error):
            raise
        missing = isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}.")
        reason = "there is no such module" if missing else f"importing it raised {described(error)}"
        raise UserError(
            f"the {kind.noun} {path!r} cannot be imported: {reason}",
            where=kind.setting if missing else last_line(error) or kind.setting,
            fix=f"{kind.write_as}, and run from the folder that holds {module_name.partition('.')[0]}"
            if missing
            else f"make `python -c 'import {module_name}'` work in this folder",
        ) from error


def is_ctrl_c(error: BaseException) -> bool:
    """Return whether what came out of a user's function may be a Ctrl-C, which only the main thread is told of."""
    return (
        isinstance(error, KeyboardInterrupt)
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )


def described(error: BaseException) -> str:
    """Return the type of an error and its text."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def last_line(error: BaseException) -> str | None:
    """Return ``file:line`` where the error was raised in the user's own code, relative to the current folder."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{os.path.relpath(error.filename)}:{error.lineno}"
    trace, found = error.__traceback__, None
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file.startswith(os.getcwd()) and not file.startswith(_HARNESS) and "site-packages" not in file:
            found = f"{os.path.relpath(file)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found
