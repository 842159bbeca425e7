"""Imported before KServe's library, which decides then whether a server's processes count together.

Where they do so is read when they count: there is no such place before.
"""

import os

os.environ["PROMETHEUS_MULTIPROC_DIR"] = os.devnull
