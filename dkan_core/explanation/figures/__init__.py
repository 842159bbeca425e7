"""Figures of what a model learned, and of the reasons for a row's score."""
