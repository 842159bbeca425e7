"""The processes of a run (worker, collective worker, parameter server, evaluator) and the training loop they share."""
