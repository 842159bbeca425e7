"""Names of files that several parts of dkan read or write."""

# Of a model: its architecture and labels, and the encoding of its rows.
CONFIG, PREPROCESSOR = "config.json", "preprocessor.json"
# Of a model, a run and an evaluation, each with content of its own.
METRICS = "metrics.json"
# Where a run's folder has its model.
MODEL_FOLDER = "model"
