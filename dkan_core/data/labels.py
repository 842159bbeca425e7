"""Labels as prepared data hold them: 0, 1, or not measured."""

# The largest uint8: labels stay at one byte per row.
NOT_MEASURED = 255
