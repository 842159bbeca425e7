"""What data hold before they are trained on: ``dkan inspect``."""
