"""Drawing primitives, and the figures of an evaluation: a few kinds of marks on a canvas, written as SVG and as PNG."""
