"""The parts as Ray actors: processes that hold a worker, and the shells through which the loop drives them.

    session     starts Ray, or joins a cluster, for the length of one command
    placement   what the parts ask for, and the placement group that gives it to them
    processes   the actors: a worker with its tracer; each reply carries the spans that were recorded for it
    parts       one lane's actor: started, called, and replaced when it dies
    shells      Generator, Scorer and Learner of the loop's protocols, over such a part

Rollouts pass from actor to actor by reference: a Generator's reply is metadata and one object reference for each group,
owned by the driver, so that the data outlives the Generator and is freed when the last handle goes.
"""

from harness.run.actors.environment import quiet_ray

quiet_ray()  # here, since Ray reads part of it when it is first imported
