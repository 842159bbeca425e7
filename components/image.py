"""The image that every component runs in: built from the Dockerfile, chosen when a pipeline is compiled."""

import os

IMAGE = os.environ.get("DKAN_IMAGE", "dkan:0.3.0.dev0")
