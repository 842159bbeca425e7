"""Raw columns to the arrays that a model reads."""
