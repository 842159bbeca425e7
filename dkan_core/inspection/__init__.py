"""``dkan inspect``: a look at data before training."""
