"""The parts as Ray actors: processes that hold a worker, and the handles through which the loop drives them.

session     starts Ray, or joins a cluster, for the length of one command; what its actors print
placement   what the parts ask for, and the placement group that gives it to them
part        one lane's actor: started, called, replaced when it dies; Generator, Scorer and Learner over it
deaths      what Ray raises when an actor dies, in a few words
samplers    counters of a cluster's other machines
"""

import os


def quiet_ray() -> None:
    """Turn off usage reports, the note about GPUs that a part cannot see, and Ray's own message about a dead actor.

    The run logs itself what died and whether it was replaced.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "A worker died or was killed while executing a task")


quiet_ray()  # here, since Ray reads part of it when it is first imported
