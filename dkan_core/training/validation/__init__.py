"""The best model of a run: snapshots scored, early stopping, blending, and what is saved."""
