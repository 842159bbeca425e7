"""Where a run can be followed apart from its folder: TensorBoard, the status of a TrainJob, MLflow."""
