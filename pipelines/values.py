"""Values of a form that a run would fail on, some of them hours after it began."""

import posixpath
from collections.abc import Mapping
from typing import Any

from dkan_core.config import NodesConfig, PrepareConfig
from dkan_core.config.forms import config_from_form, trainings_from_form
from dkan_core.data.places import DATE, DATED, READ, WRITTEN
from dkan_core.data.preparation.parallel import check_parts
from dkan_core.data.source.files import SUFFIXES, split_sources
from dkan_core.errors import ConfigError
from dkan_core.serving.inference_service import storage_uri
from dkan_core.training.setup.early_checks import check_split, check_training
from dkan_core.trainjob.body import settle
from pipelines.rules import RULES

# A parameter that another one cannot do without.
NEEDED_BY = {
    **dict.fromkeys(("registry_url", "inference_service"), "publish_uri"),
    # Where many pods prepare, and where nodes train.
    **dict.fromkeys(("num_parts", "run_uri"), "prepared_uri"),
}


def find_fault(form: Mapping[str, Any]) -> str:
    """Return the first thing that is wrong with the values of a form, each of the type that the form says.

    >>> find_fault({"memory": "64GB", "num_gpus": "8"})
    "parameter 'memory' must be a quantity of at least 64Mi such as 16Gi, got '64GB'"
    >>> find_fault({"memory": "64Gi", "num_gpus": "8"})
    ''
    """
    if fault := _unfit_pair(form):
        return fault
    for name, value in form.items():
        if name in RULES and not RULES[name].holds(value):
            return f"parameter {name!r} must be {RULES[name].expected}, got {value!r}"
    if fault := _misplaced_date(form) or _shared_place(form):
        return fault
    try:
        _build_configs(form)
        if form.get("inference_service"):
            storage_uri(form.get("serving_uri") or form["publish_uri"])
    except ConfigError as error:
        return str(error)
    return ""


def _unfit_pair(form: Mapping[str, Any]) -> str:
    """Return what is wrong with a parameter beside another one."""
    for name, needed in NEEDED_BY.items():
        if form.get(name) and needed in form and not form[needed].strip():
            return f"parameter {name!r} needs {needed!r}, which is empty"
    if form.get("pvc_name") and form["pvc_name"] == form.get("secret_name"):
        return f"parameter 'pvc_name' must differ from 'secret_name', got {form['pvc_name']!r}"
    if form.get("min_average_precision") and form.get("label") == "" and "model_uri" in form:
        return "parameter 'min_average_precision' needs 'label', which is empty"
    return ""


def _misplaced_date(form: Mapping[str, Any]) -> str:
    """Return what is wrong where a run would take {date} as it stands, or a date for a model's name.

    >>> _misplaced_date({"model_uri": "s3://b/late/{date}"})
    "parameter 'model_uri' cannot have a date; {date} may be in data_uri, output_uri, publish_uri, registered_version, \
serving_uri"
    """
    for name in (*READ, *WRITTEN, "registered_name"):
        if name not in DATED and DATE in (form.get(name) or ""):
            return f"parameter {name!r} cannot have a date; {DATE} may be in {', '.join(DATED)}"
    if form.get("registry_url") and not form.get("registered_name") and form["publish_uri"].strip("/").endswith(DATE):
        return f"parameter 'registered_name' is empty, and would be the date, as 'publish_uri' ends with {DATE}"
    return ""


def _shared_place(form: Mapping[str, Any]) -> str:
    """Return what is wrong where a step is to write where the data are, or another step writes.

    >>> _shared_place({"data_uri": "s3://b/flights", "publish_uri": "s3://b/flights/"})
    "parameter 'publish_uri' must differ from 'data_uri', got 's3://b/flights/'"
    """
    taken: dict[str, str] = {}
    for name in ("data_uri", "model_uri"):
        taken |= {folder: name for place in split_sources(form.get(name) or "") if (folder := _folder(place))}
    for name in WRITTEN:
        place = _in_one_spelling(str(form.get(name) or ""))
        if place and place in taken:
            return f"parameter {name!r} must differ from {taken[place]!r}, got {form[name]!r}"
        taken[place] = name
    return ""


def _folder(source: str) -> str:
    """Return the folder that a source names, or that its files are in.

    >>> _folder("s3://b/flights/**/*.parquet"), _folder("/mnt/dkan/v1.0/"), _folder("flights.parquet")
    ('s3://b/flights', '/mnt/dkan/v1.0', '')
    """
    place = _in_one_spelling(source)
    while place.endswith(SUFFIXES) or "*" in posixpath.basename(place):
        place = posixpath.dirname(place)
    return place


def _in_one_spelling(place: str) -> str:
    """Return a path or URI without what does not count, empty where there is none.

    >>> _in_one_spelling(" s3://b/x/../late//v1.0/"), _in_one_spelling(" ")
    ('s3://b/late/v1.0', '')
    """
    scheme, separator, path = place.strip().rpartition("://")
    return f"{scheme}{separator}{posixpath.normpath(path)}" if path else ""


def _build_configs(form: Mapping[str, Any]) -> None:
    """Build the settings as the steps do.

    Raises:
        ConfigError: One is unknown or out of bounds, or settings exclude each other.
    """
    if "split" in form:
        # Smoke has no label in its form, as its data come with one.
        config_from_form(PrepareConfig, {"label": "label", **form})
        if not form.get("split_column"):
            check_split(form["split"])
    if "prepared_uri" in form and "num_parts" in form:
        check_parts(form["num_parts"])
    if "model_kind" in form:
        for config in trainings_from_form(form):
            if "nodes" in form:
                settle(config, config_from_form(NodesConfig, form))
            else:
                check_training(config)
