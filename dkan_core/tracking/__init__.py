"""Where a run can be followed besides its folder: TensorBoard, the status of a TrainJob, MLflow."""
