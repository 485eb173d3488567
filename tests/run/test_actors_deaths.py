"""What is said when an actor dies or its method raises. The texts of Ray are those that Ray 2.60 gave."""

import pytest
from ray.exceptions import ActorDiedError, OutOfMemoryError, RayActorError, RaySystemError, RayTaskError

from harness.core.errors import RunStopped, UserError
from harness.run.actors.deaths import cause_of_death, ends_the_run, own_error
from harness.run.actors.part import Replacements

PLACE = "\tclass_name: A\n\tactor_id: 9f03\n\tpid: 25228\n\tnamespace: 4620\n\tip: 192.0.2.7\n"
DEAD = f"The actor died unexpectedly before finishing this task.\n{PLACE}The actor is dead because "
EXIT = f"{DEAD}its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: "
CAUSES = "Some common causes include: (1) the process was killed by the OOM killer due to high memory usage, (2) ..."
SAYINGS = {
    "killed": (
        f"{EXIT}Worker unexpectedly exits with a connection error code 2. End of file. {CAUSES}",
        "its process ended without a word: it was killed, crashed or ran out of memory",
    ),
    "sys.exit": (
        f"{EXIT}Worker exits unexpectedly. Worker exits with an exit code 3.",
        "its process ended with exit code 3",
    ),
    "ray.kill": (
        f"{DEAD}it was killed by `ray.kill`.",
        "Ray ended it, as it does with both sides of a weight transfer that breaks off",
    ),
    "constructor": (
        "The actor died because of an error raised in its creation task, \x1b[36mray::B.__init__()\x1b[39m (pid=2)\n"
        '  File "deaths.py", line 19, in __init__\n    raise ValueError("bad thing")\nValueError: bad thing',
        "it could not be set up: ValueError: bad thing",
    ),
    "another reason": (f"{DEAD}its node has died.", "its node has died"),
    "no reason": ("The actor experienced an error before finishing this task.", "RayActorError"),
}


@pytest.mark.parametrize(("text", "words"), SAYINGS.values(), ids=SAYINGS)
def test_a_death_is_told_in_a_few_words(text: str, words: str) -> None:
    assert cause_of_death(RayActorError("9f03", text)) == words


def test_a_death_for_want_of_memory_names_the_figures() -> None:
    text = (
        "1 worker(s) were killed due to the node running low on memory. Memory on the node (ID: f7cb) was "
        "22.80GB used / 23.54GB limit (0.968564)\nOOM kill reason: Memory usage exceeded"
    )
    words = "Ray killed it since memory ran low: 22.80GB of 23.54GB were in use"
    assert cause_of_death(OutOfMemoryError(text)) == words


def task_error(cause: Exception) -> RayTaskError:
    """What Ray raises in the driver when a method has raised ``cause``."""
    stack = f'Traceback (most recent call last):\n  File "part.py", line 7, in update\n{type(cause).__name__}: {cause}'
    error: RayTaskError = RayTaskError("update", stack, cause).as_instanceof_cause()
    return error


@pytest.mark.parametrize("cause", [RunStopped("the loss is nan"), UserError("what", "where", "fix")])
def test_our_own_errors_come_back_as_they_were(cause: Exception) -> None:
    assert own_error(task_error(cause)) is cause


def test_a_bug_in_an_actor_comes_back_with_its_stack() -> None:
    error = own_error(task_error(TypeError("no such operand")))
    assert isinstance(error, RunStopped)
    first, *stack = str(error).splitlines()
    assert first == "an actor failed with TypeError: no such operand"
    assert '  File "part.py", line 7, in update' in stack


def test_an_object_that_is_gone_is_told_in_one_line() -> None:
    error = own_error(task_error(RaySystemError("The transfer failed for object 00ff.\nmore")))
    assert isinstance(error, RunStopped)
    assert str(error).splitlines() == [
        "an object is gone with the actor that owned it: System error: The transfer failed for object 00ff."
    ]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ActorDiedError(), "no connection: ActorDiedError"),
        (RaySystemError("first\nlast"), "no connection: last"),
    ],
)
def test_what_ray_raises_in_a_block_ends_the_run(error: Exception, words: str) -> None:
    with pytest.raises(RunStopped) as stopped, ends_the_run("no connection"):
        raise error
    assert str(stopped.value) == words


def test_one_replacement_too_many_ends_the_run() -> None:
    replacements = Replacements(2)
    replacements.count("generator", "killed")
    replacements.count("scorer", "killed")
    with pytest.raises(RunStopped) as stopped:
        replacements.count("generator", "crashed")
    words = "generator died (crashed), and faults.max_replacements 2 parts were replaced already"
    assert str(stopped.value) == words
    assert replacements.made == 2
