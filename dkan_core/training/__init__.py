"""The processes of a run: launcher, workers, parameter server, evaluator."""
