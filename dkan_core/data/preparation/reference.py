"""The encoding of a saved model, or of other prepared data, for new data that are to be encoded in the same way.

Data prepared with it can be used to evaluate that model, and to train on from the model's weights.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import chain

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from dkan_core.config import PrepareConfig
from dkan_core.data.encoding.preprocessor import Preprocessor
from dkan_core.data.encoding.source_check import check_features, integer_categories
from dkan_core.data.format.manifest import MANIFEST, manifest_text, parse_manifest
from dkan_core.data.preparation.label_columns import positive_in
from dkan_core.data.source.column_requirements import ColumnRequirements
from dkan_core.data.source.positive import differing_positive
from dkan_core.data.source.roles import (
    ColumnRoles,
    Features,
    check_not_empty,
    check_roles,
    check_split_by_content,
    column_requirements,
    feature_columns,
    special_columns,
)
from dkan_core.errors import ConfigError, DataError
from dkan_core.utils.file_names import CONFIG, MODEL_FOLDER, PREPROCESSOR
from dkan_core.utils.messages import listed_names
from dkan_core.utils.schemas import read_json
from dkan_core.utils.storage.files import read_if_there

logger = logging.getLogger(__name__)


class _Labels(BaseModel):
    """The part of a model's architecture that is needed here."""

    model_config = ConfigDict(extra="ignore", strict=True)

    labels: tuple[str, ...]
    positive: dict[str, str] = {}


@dataclass(frozen=True, kw_only=True)
class ReferenceEncoding:
    """The encoding and labels of a model or of prepared data, to prepare other data alike."""

    uri: str
    """Where it lies, as messages call it."""

    preprocessor: Preprocessor
    labels: tuple[str, ...]
    positive: dict[str, str]
    """By label, the value that counts as 1, unless the settings say otherwise."""

    def complete(self, config: PrepareConfig) -> PrepareConfig:
        """Return the settings with what the reference decides filled in, and without the reference.

        Raises:
            ConfigError: A setting contradicts it, or gives another role to one of its feature columns.
        """
        if config.label and {*config.label} != {*self.labels} and not config.extend:
            raise ConfigError(
                f"label {', '.join(config.label)}: {self.uri} has {', '.join(self.labels)}; leave out --label, or "
                "add labels with --extend"
            )
        # A setting that is left out looks like one that states the default, so neither contradicts the reference.
        if config.numeric_dtype not in (PrepareConfig.numeric_dtype, self.preprocessor.numeric_dtype):
            raise ConfigError(
                f"numeric_dtype {config.numeric_dtype}: {self.uri} stores {self.preprocessor.numeric_dtype}; "
                "leave out --numeric-dtype with --like"
            )
        if config.max_categories is not None and not config.extend:
            raise ConfigError(f"max_categories: {self.uri} has its encoding; leave it out with --like")
        self._check_categorical(config)
        for setting, name in [*(("drop", name) for name in config.drop), *special_columns(config).items()]:
            if name in self.preprocessor.columns:
                copy = "" if setting == "drop" else ", or name a copy of the column"
                raise ConfigError(
                    f"{setting} {name}: is a feature of {self.uri}, which needs it; leave out that setting{copy}"
                )
        added = [name for name in config.label if name not in self.labels]
        labels = (*self.labels, *added)
        given = replace(config, label=config.label or self.labels).positive_values
        if differing := differing_positive(given, self.positive):
            label, value, known = differing
            raise ConfigError(f"positive {label}={value}: {self.uri} counts {known!r} as 1; leave out --positive")
        positive = tuple(f"{label}={value}" for label, value in {**self.positive, **given}.items())
        return replace(
            config, label=labels, positive=positive, numeric_dtype=self.preprocessor.numeric_dtype, like=None
        )

    def _check_categorical(self, config: PrepareConfig) -> None:
        """Raise ConfigError where ``categorical`` names a column that is no category in the reference."""
        known = {*self.preprocessor.columns}
        for name in config.categorical:
            if name not in self.preprocessor.categories and (name in known or not config.extend):
                reads = "reads it as something else" if name in known else "has no such feature"
                raise ConfigError(
                    f"categorical {name}: {self.uri} {reads}, and its encoding says what is a category; leave out "
                    f"--categorical {name} with --like"
                )

    def column_requirements(self, config: PrepareConfig) -> ColumnRequirements:
        """Return which columns the source files must have, for settings as ``complete`` returns them."""
        required = column_requirements(config)
        needed = {*required.needed, *self.preprocessor.columns}
        categories = {*config.categorical, *integer_categories(self.preprocessor)}
        types = self.preprocessor.source_types
        return replace(required, needed=needed, others=config.extend, types=types, categories=categories)

    def assign_roles(
        self, types: dict[str, pa.DataType], config: PrepareConfig, where: str, empty: Collection[str]
    ) -> ColumnRoles:
        """Give every column its role, and name in the log what is ignored, or with ``extend`` is added to the features.

        Args:
            types: Type of each column.
            config: Settings as ``complete`` returns them.
            where: The files, as messages should call them.
            empty: Columns that are known to hold no value, none of which may be added.

        Raises:
            DataError: A column is missing, or of another kind than the encoding takes.
        """
        check_features(self.preprocessor, types, where, because=f"{self.uri} was made with")
        check_roles(types, config, where)
        features = Features(
            numeric=tuple(feature.name for feature in self.preprocessor.numeric if feature.time is None),
            times=tuple(self.preprocessor.times),
            categorical=tuple(self.preprocessor.categories),
            sparse=tuple(feature.name for feature in self.preprocessor.sparse),
        )
        special = special_columns(config)
        taken = {*chain.from_iterable(features), *config.label, *config.drop, *special.values()}
        others = [name for name in types if name not in taken]
        if others and config.extend:
            added = feature_columns({name: types[name] for name in others}, where)
            check_not_empty([name for name in others if name in empty], where)
            logger.info("%s: columns that are added to those of %s: %s", where, self.uri, listed_names(others))
            features = Features(*(known + more for known, more in zip(features, added, strict=True)))
        elif others:
            logger.info("%s: columns that %s does not know are ignored: %s", where, self.uri, listed_names(others))
        check_split_by_content(features.sparse, config, where)
        positive = positive_in(pa.schema(types), config.positive_values)
        return ColumnRoles(**features._asdict(), **special, labels=config.label, positive=positive)


def read_reference(uri: str) -> ReferenceEncoding:
    """Read the encoding and the labels of a model or of prepared data; of a remote one nothing else is downloaded.

    Args:
        uri: Path or URI of a model folder, of the run that it lies in, or of prepared data.

    Raises:
        DataError: There is neither, or it is damaged.
    """
    root = uri.rstrip("/")
    manifest = manifest_text(root)
    if manifest is not None:
        prepared = parse_manifest(manifest, f"{root}/{MANIFEST}")
        return ReferenceEncoding(
            uri=uri,
            preprocessor=prepared.preprocessor,
            labels=tuple(prepared.labels),
            positive=prepared.positive,
        )
    # Like all commands, this takes a run's folder for the model in it.
    for folder in (root, f"{root}/{MODEL_FOLDER}"):
        encoding, config = (read_if_there(f"{folder}/{name}") for name in (PREPROCESSOR, CONFIG))
        if encoding is not None and config is not None:
            found = read_json(_Labels, config, f"{folder}/{CONFIG}")
            preprocessor = read_json(Preprocessor, encoding, f"{folder}/{PREPROCESSOR}")
            return ReferenceEncoding(uri=uri, preprocessor=preprocessor, labels=found.labels, positive=found.positive)
    raise DataError(
        f"{uri}: neither a model ({PREPROCESSOR}) nor prepared data ({MANIFEST}) there; "
        "expected a folder that `dkan train` or `dkan prepare` wrote"
    )
