"""Raw rows: files, columns, splits, frames."""
