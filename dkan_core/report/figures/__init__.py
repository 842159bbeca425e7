"""Figures of every page: drawn on a canvas of a few kinds of marks, written as SVG and as PNG."""
