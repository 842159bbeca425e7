"""Components that measure a trained model."""
