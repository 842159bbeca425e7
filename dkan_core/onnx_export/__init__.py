"""A model as one ONNX file: raw columns in, probabilities out."""
