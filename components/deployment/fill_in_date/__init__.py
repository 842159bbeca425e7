"""The date of a run in the places that it writes to."""

from components.deployment.fill_in_date.component import fill_in_date

__all__ = ["fill_in_date"]
