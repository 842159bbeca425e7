"""Names of files that several parts of dkan read or write."""

# Files of a model: its architecture and labels, and the encoding of its rows.
CONFIG, PREPROCESSOR = "config.json", "preprocessor.json"
# File of a model, of a run and of an evaluation, each with its own content.
METRICS = "metrics.json"
# Folder of the model in a run's folder.
MODEL_FOLDER = "model"
