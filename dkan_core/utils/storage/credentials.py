"""Storage credentials under names of dkan's own, for containers in which something else reads the usual ones.

Kubeflow's launcher runs in the container of a step and takes the same variables for its own artifacts, which may lie in
another bucket, at another endpoint, under another role.
"""

import os

OWN_PREFIX = "DKAN_"

VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_ENDPOINT_URL",
    "AWS_DEFAULT_REGION",
    "AWS_REGION",
    "AWS_CA_BUNDLE",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_CLOUD_PROJECT",
    "SSL_CERT_FILE",
)
"""What clients of buckets and of a Model Registry read; with ``OWN_PREFIX`` before the name it is for dkan alone."""

# By what dkan has of its own: variables that would be combined with it, or win over it, and belong to somebody else.
_FOREIGN = {
    "AWS_ACCESS_KEY_ID": ("AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN"),
    "AWS_ENDPOINT_URL": ("AWS_ENDPOINT_URL_S3",),
}


def own_name(variable: str) -> str:
    """Return the name under which only dkan reads a variable; its own where nothing else reads it.

    >>> own_name("AWS_ENDPOINT_URL"), own_name("FSSPEC_GCS")
    ('DKAN_AWS_ENDPOINT_URL', 'FSSPEC_GCS')
    """
    return f"{OWN_PREFIX}{variable}" if variable in VARIABLES else variable


def use_own_credentials() -> None:
    """Put dkan's own credentials where the clients of buckets look for them: in this process and those it starts."""
    own = {name: value for name in VARIABLES if (value := os.environ.get(own_name(name)))}
    for name in own:
        for foreign in _FOREIGN.get(name, ()):
            os.environ.pop(foreign, None)
    os.environ.update(own)
