"""A model behind HTTP and gRPC, on KServe's server library; and as an InferenceService on a cluster that has KServe."""
