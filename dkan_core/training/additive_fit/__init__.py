"""Additive models: terms fitted by penalized likelihood, and tables that are smooth, purified and calibrated."""
