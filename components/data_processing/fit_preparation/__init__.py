"""Choose the encoding of a preparation by many pods."""

from components.data_processing.fit_preparation.component import fit_preparation

__all__ = ["fit_preparation"]
