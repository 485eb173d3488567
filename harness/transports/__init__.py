"""How weights move from the Learner to the Generators."""
