"""HTML pages and their figures."""
