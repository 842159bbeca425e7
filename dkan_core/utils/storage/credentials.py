"""Environment variables with credentials and addresses: those in every pod, and names that only dkan reads.

Names of its own are needed because Kubeflow's launcher, which runs in the container of a step, reads the usual
variables for its own artifacts. These may lie in another bucket, at another endpoint, under another role.
"""

import os

OWN_PREFIX = "DKAN_"

# Entries of a Secret and of a ConfigMap that become variables in every pod of a TrainJob and of a pipeline's steps.
SECRET_KEYS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "FSSPEC_GCS",
    "MLFLOW_TRACKING_USERNAME",
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_TOKEN",
)
CONFIG_KEYS = (
    "AWS_ENDPOINT_URL",
    "AWS_DEFAULT_REGION",
    "AWS_REGION",
    "AWS_CA_BUNDLE",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_CLOUD_PROJECT",
    "MLFLOW_TRACKING_URI",
    "MLFLOW_EXPERIMENT_NAME",
    "MLFLOW_TRACKING_SERVER_CERT_PATH",
    "SSL_CERT_FILE",
)

SECRET_PATH = "/etc/dkan/storage"
"""Folder in every pod where the Secret's entries are files, too."""

# Without those of gcsfs and MLflow, which nothing else in the container reads.
VARIABLES = tuple(key for key in (*SECRET_KEYS, *CONFIG_KEYS) if not key.startswith(("FSSPEC_", "MLFLOW_")))
"""Variables of the clients of buckets and of a Model Registry; with ``OWN_PREFIX``, they are for dkan alone."""

# By own variable of dkan, the container's variables that would be combined with it or override it.
_FOREIGN = {
    "AWS_ACCESS_KEY_ID": ("AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN"),
    "AWS_ENDPOINT_URL": ("AWS_ENDPOINT_URL_S3",),
}


def own_name(variable: str) -> str:
    """Return the name under which only dkan reads a variable; unchanged where nothing else reads it.

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
