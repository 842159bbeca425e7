"""Finish a preparation by many pods."""

from components.data_processing.finish_preparation.component import finish_preparation

__all__ = ["finish_preparation"]
