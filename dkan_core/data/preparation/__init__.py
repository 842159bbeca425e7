"""From raw files to prepared data."""
