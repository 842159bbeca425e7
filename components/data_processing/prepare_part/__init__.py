"""Take one part of a preparation through one stage."""

from components.data_processing.prepare_part.component import prepare_part

__all__ = ["prepare_part"]
