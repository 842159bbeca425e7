"""What the processes of a run share, and how it changes."""
