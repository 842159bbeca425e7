"""``FastKANClassifier``: FastKAN as a scikit-learn classifier, for tables that are in memory."""

from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import pyarrow as pa
from sklearn.utils import Tags, check_consistent_length, check_random_state

from dkan_core.config import TrainConfig
from dkan_core.integrations.sklearn.editing import EditingMixin
from dkan_core.integrations.sklearn.explaining import ExplainingMixin
from dkan_core.integrations.sklearn.hold_out import hold_out_rows
from dkan_core.integrations.sklearn.parameters import thread_count, train_config
from dkan_core.integrations.sklearn.predicting import PredictingMixin, check_threshold
from dkan_core.integrations.sklearn.rollback import unchanged_on_failure
from dkan_core.integrations.sklearn.rows import (
    EvalSet,
    check_sparsity,
    fit_encoding,
    one_pair,
    read_features,
    reads_ids,
)
from dkan_core.integrations.sklearn.saving import SavingMixin
from dkan_core.integrations.sklearn.targets import (
    check_classes,
    check_groups,
    check_weights,
    encode_labels,
    find_class_weights,
    find_classes,
    labelled,
    positive_value,
    two_classes,
    warn_of_unmeasured,
    with_class_weights,
)
from dkan_core.integrations.sklearn.training import Initial, print_evaluation, read_initial, train_on_arrays
from dkan_core.training.setup.defaults import learning_rate_from_scratch
from dkan_core.training.setup.sizing import batch_rows
from dkan_core.utils.arrays import Array, Arrays
from dkan_core.utils.caller import warn_caller
from dkan_core.utils.torch_resources import torch_threads

NOT_BLENDED = (
    "partial_fit continues the network alone: the additive model that it was blended with is left out, and scores may "
    "be worse; blend=False fits what partial_fit continues"
)


class FastKANClassifier(EditingMixin, ExplainingMixin, PredictingMixin, SavingMixin):
    """FastKAN classifier of tabular rows, for one binary label or several.

    Numbers may be on any scale, and values may be missing (NaN, None; infinity counts as missing). Columns of strings,
    booleans and pandas categories are encoded as categories, but a pandas category of numbers is read as numbers.
    Columns that say nothing are left out with a warning: those without any value, and those of strings that never
    repeat. The encoding is that of ``dkan prepare``, the training that of ``dkan train`` with one worker, inside this
    process.

    Part of the rows is held out. Each epoch is evaluated on them, to choose the best one by average precision (AP) and
    to stop early. A setting that is None has its default, which is that of ``TrainConfig``.

    Args:
        model: "auto" extends FastKAN with what suits the data. Default: auto.
        pairs: Pairs of columns with a term of their own, with model additive. "auto": up to 96, of which the penalized
            fit keeps those with an effect; without that fit, as many as improve predictions on unseen rows. Default:
            auto.
        monotone: Numeric columns along which log-odds never fall (age:+) or never rise (age:-), with model additive.
            Default: ().
        members: Networks in the ensemble, trained together, with averaged probabilities. Default: from the number of
            rows.
        hidden: Units in each member's hidden layer; several values make several layers. Default: from the number of
            rows; the search may add a second layer.
        architecture_search: Whether trials may change num_centers, hidden and dropout, and leave out useless columns,
            with model auto. Nothing is tried if one of the three is set, below 2,000 training rows, when continuing
            from a model, or with a strategy that divides the model; columns are left out only with one label and up to
            30,000 rows, and a second hidden layer is tried only from 50,000 on. Default: True.
        quality: Trade accuracy for time: "fast" trains a smaller network for fewer epochs, "best" a larger ensemble.
            Settings that you give are not changed. Default: default.
        num_centers: Gaussian basis functions per edge. Default: 8; 16 if trials find that more help.
        dropout: Fraction of hidden units dropped during training. Default: 0.2; 0 if the search chooses 16 basis
            functions or a second hidden layer.
        binary_dropout: Fraction of binary inputs dropped during training. Default: 0.2.
        embedding_dim: Width of a categorical column's embedding. Default: 8.
        sketch_rank: Rank of the random sketches whose factors are trained instead of the first layer's weights.
            Default: 0.
        blend: Average the network of model auto with an additive model of the same rows; validation AP chooses the
            weight. Default: True.
        epochs: Maximum passes over the train split. Default: from the number of rows.
        batch_size: Rows per step over all workers. Default: from the number of rows.
        learning_rate: Peak learning rate of AdamW. Default: from the batch size; a tenth of that when continuing from a
            model.
        weight_decay: AdamW's decoupled weight decay. Default: 1.0.
        pos_weight: Weight of positives in the loss; predicted probabilities are corrected for it. Default: 1.0.
        label_weights: Weight of each label in the loss, in the order of the labels. Default: equal weights.
        warmup_fraction: Fraction of all steps over which the learning rate rises to its peak. Default: 0.05.
        patience: Stop after this many evaluations without a better validation AP. Default: 5.
        refit: Train once more, on the train and valid splits together, with everything that was chosen on valid. The
            second training takes as many epochs as the best model of the first. Metrics stay those of the first
            model, which had not seen valid. Default: False.
        max_seconds: Stop after this many seconds of training and keep the best model. Default: no limit.
        validation_fraction: Fraction of the rows to hold out, stratified, if ``fit`` gets no ``eval_set``.
        categorical_features: Columns of whole numbers that are codes, such as user IDs, by name or index or as a mask:
            each value is a category. Default: no columns of numbers.
        class_weight: Weight of each class, as a dict or "balanced" (inverse to its number of rows); row weights are
            multiplied by it. It shifts probabilities, as in scikit-learn's own classifiers. For one label only; with
            several, set ``label_weights`` or ``pos_weight``.
        threshold: Probability above which ``predict`` returns 1, or "best": for each label, the threshold with the best
            F1 on the validation rows.
        verbose: Print a line for each evaluation.
        device: Where to compute: auto, cpu, cuda, or a device such as cuda:1; "auto" is CUDA if there is any.
        n_jobs: Threads that torch may use, counted as joblib does; never more than the cores that this process may run
            on. None means all of these, or as many as ``OMP_NUM_THREADS`` says, which joblib sets in its workers.
        random_state: Seed of held-out rows, initialization, batch order and dropout.

    Attributes:
        classes_: The two classes, in order; with several labels, their indices.
        n_features_in_: Number of columns in ``fit``.
        feature_names_in_: Their names, where all are strings.
        n_iter_: Epochs begun.
        validation_average_precision_: Average precision of the chosen model on the validation rows; the mean over
            labels.
        history_: Loss, average precision and more for each evaluation.
        labels_: Name of each label.
        thresholds_: For each label, the threshold of its probability with the best F1 on the validation rows.

    >>> from sklearn.datasets import load_breast_cancer
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = FastKANClassifier(hidden=(8,), epochs=5, random_state=0, n_jobs=1).fit(X, y)
    >>> model.predict_proba(X[:3]).shape
    (3, 2)
    >>> bool(model.validation_average_precision_ > 0.95)
    True
    """

    def __init__(
        self,
        *,
        model: Literal["auto", "fastkan", "additive"] | None = None,
        pairs: str | None = None,
        monotone: tuple[str, ...] | None = None,
        members: int | None = None,
        hidden: int | tuple[int, ...] | None = None,
        architecture_search: bool | None = None,
        quality: Literal["fast", "default", "best"] | None = None,
        num_centers: int | None = None,
        dropout: float | None = None,
        binary_dropout: float | None = None,
        embedding_dim: int | None = None,
        sketch_rank: int | None = None,
        blend: bool | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        weight_decay: float | None = None,
        pos_weight: float | None = None,
        label_weights: tuple[float, ...] | None = None,
        warmup_fraction: float | None = None,
        patience: int | None = None,
        refit: bool | None = None,
        max_seconds: float | None = None,
        validation_fraction: float = 0.1,
        categorical_features: Any = None,
        class_weight: "dict[Any, float] | Literal['balanced'] | None" = None,
        threshold: "float | Literal['best']" = 0.5,
        verbose: bool | int = False,
        device: str | None = None,
        n_jobs: int | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.model = model
        self.pairs = pairs
        self.monotone = monotone
        self.members = members
        self.hidden = hidden
        self.architecture_search = architecture_search
        self.quality = quality
        self.num_centers = num_centers
        self.dropout = dropout
        self.binary_dropout = binary_dropout
        self.embedding_dim = embedding_dim
        self.sketch_rank = sketch_rank
        self.blend = blend
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.pos_weight = pos_weight
        self.label_weights = label_weights
        self.warmup_fraction = warmup_fraction
        self.patience = patience
        self.refit = refit
        self.max_seconds = max_seconds
        self.validation_fraction = validation_fraction
        self.categorical_features = categorical_features
        self.class_weight = class_weight
        self.threshold = threshold
        self.verbose = verbose
        self.device = device
        self.n_jobs = n_jobs
        self.random_state = random_state

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class, tags.classifier_tags.multi_label = False, True
        # Not tags.input_tags.string, which would promise to accept columns of any objects.
        tags.input_tags.allow_nan = tags.input_tags.categorical = tags.input_tags.sparse = True
        return tags

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Parameters that are newer than a pickle are missing in it; they get None.
        super().__setstate__({**dict.fromkeys(self._get_param_names()), **state})

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        eval_set: EvalSet | None = None,
        init_model: "str | Path | FastKANClassifier | None" = None,
        groups: Any = None,
    ) -> Self:
        """Train.

        Args:
            X: Frame, array, or scipy sparse matrix; a sparse one with other values than 0 and 1 is read as an array.
            y: The class of each row; or 0, 1 or NaN (not measured) for each of several labels.
            sample_weight: Weight of each row in the loss and in the calibration of probabilities; a row of weight 0 is
                treated as absent. Validation metrics and thresholds weight rows as the loss does, also by
                ``class_weight``; the encoding ignores other weights.
            eval_set: Rows and labels ``(X, y)`` to validate on, or a list of one such pair, as in LightGBM. Default:
                part of the rows is held out.
            init_model: Fitted classifier, or path or URI of a model folder, whose encoding, architecture and weights to
                start from. Columns and labels may have been added; all of its columns must be there.
            groups: Group of each row, such as its patient or user: whole groups are held out, and exact values and
                crosses of columns are chosen across groups, as with ``--group`` of ``dkan prepare``. An ``eval_set``
                should hold other groups. Default: each row is a group of its own.

        Shape:
            - X: ``(N, F)``; y: ``(N,)`` or ``(N, L)``; sample_weight, groups: ``(N,)``
        """
        initial = None if init_model is None else read_initial(init_model)
        with unchanged_on_failure(self):
            self._columns_by_name = False
            table = read_features(self, X, fitting=True)
            self.classes_, names = find_classes(y)
            return self._fit(table, y, names, sample_weight, eval_set, groups, initial, self.get_params())

    def partial_fit(
        self,
        X: Any,
        y: Any,
        classes: Any = None,
        sample_weight: Any = None,
        eval_set: EvalSet | None = None,
        groups: Any = None,
    ) -> Self:
        """Train on further rows for one epoch, from the model as it is; the first call also chooses the encoding.

        Each call is a short training of its own, with warm-up and a new state of the optimizer; part of its rows is
        held out, and probabilities are recalibrated on them. Only the network is continued: an additive model that
        it was blended with is left out, with a warning, as a new one would know only the last rows.

        Args:
            X: Frame or array of rows, with the columns of the first call.
            y: As for ``fit``; both classes must occur.
            classes: Both classes; used by the first call only, and only for one label. Default: those in ``y``.
            sample_weight: As for ``fit``.
            eval_set: As for ``fit``.
            groups: As for ``fit``.

        Shape:
            - X: ``(N, F)``; y: ``(N,)`` or ``(N, L)``; sample_weight, groups: ``(N,)``
        """
        is_first = not hasattr(self, "module_")
        settings = {**self.get_params(), "epochs": 1, "blend": False, "refit": False}
        with unchanged_on_failure(self):
            if is_first:
                self._columns_by_name = False
            table = read_features(self, X, fitting=is_first)
            found, names = find_classes(y)
            if is_first:
                self.classes_ = found if classes is None or len(names) > 1 else two_classes(classes)
                return self._fit(table, y, names, sample_weight, eval_set, groups, None, settings)
            check_sparsity(table, self.preprocessor_)
            # Columns that the first call left out stay out, whatever later rows hold in them.
            table = table.select(self.preprocessor_.columns)
            if self.architecture_.blended is not None:
                warn_caller(NOT_BLENDED)
            if self.learning_rate is None:
                # The learning rate of a training that sees its rows bit by bit, not that of a second training.
                config = train_config(settings, seed=0)
                settings["learning_rate"] = learning_rate_from_scratch(config, batch_rows(config, 1, len(table)))
            return self._fit(table, y, names, sample_weight, eval_set, groups, read_initial(self), settings)

    def _fit(
        self,
        table: pa.Table,
        y: Any,
        names: list[str],
        sample_weight: Any,
        eval_set: EvalSet | None,
        groups: Any,
        initial: Initial | None,
        parameters: dict[str, Any],
    ) -> Self:
        check_threshold(self.threshold)
        labels_NL = encode_labels(y, self.classes_, names)
        check_consistent_length(table, labels_NL)
        weight_N = None if sample_weight is None else check_weights(sample_weight, labels_NL)
        keys_N = None if groups is None else check_groups(groups, len(labels_NL))
        # Rows of weight 0 must not influence anything, such as which rows are held out.
        rows = np.arange(len(labels_NL)) if weight_N is None else np.flatnonzero(weight_N)
        check_classes(labels_NL[rows], "y" if len(rows) == len(labels_NL) else "y where sample_weight is above 0")
        if initial is None:
            warn_of_unmeasured(labels_NL[rows], names)
        class_weights = find_class_weights(self.class_weight, labels_NL[rows], self.classes_)
        # Rows of an eval_set have only the weights of their classes.
        mean_weight: Any = 1.0 if weight_N is None else weight_N[rows].mean()
        weight_N = with_class_weights(class_weights, labels_NL, weight_N)

        random = np.random.default_rng(check_random_state(self.random_state).randint(2**31 - 1))
        if eval_set is None:
            train, held_out = hold_out_rows(rows, labels_NL, self.validation_fraction, random, keys_N)
            valid_table, valid = table.take(held_out), labelled(labels_NL, weight_N, held_out, keys_N)
        else:
            train = random.permutation(rows)
            as_ids = reads_ids(table.column_names)
            valid_table, valid = self._read_eval_set(eval_set, names, class_weights, mean_weight, as_ids=as_ids)
        train_table = table.take(train)
        self.preprocessor_ = fit_encoding(self, train_table, None if initial is None else initial.model.preprocessor)
        arrays = {
            "train": {**self._encode(train_table), **labelled(labels_NL, weight_N, train, keys_N)},
            "valid": {**self._encode(valid_table), **valid},
        }
        self._train(arrays, names, initial, train_config(parameters, seed=int(random.integers(2**31))))
        return self

    def _read_eval_set(
        self, eval_set: EvalSet, names: list[str], class_weights: Array | None, mean_weight: float, *, as_ids: bool
    ) -> tuple[pa.Table, Arrays]:
        """Return the columns of an eval_set, and its labels with weights where there are any."""
        X, y = one_pair(eval_set)
        table = read_features(self, X, fitting=False, as_ids=as_ids)
        labels_NL = encode_labels(y, self.classes_, names, "y of eval_set")
        check_consistent_length(table, labels_NL)
        check_classes(labels_NL, "eval_set")
        # Probabilities are calibrated on these rows, so they need the weights of the classes as well.
        weight_N = with_class_weights(class_weights, labels_NL, None)
        return table, {"labels": labels_NL, **({} if weight_N is None else {"weight": weight_N * mean_weight})}

    def _train(self, arrays: dict[str, Arrays], names: list[str], initial: Initial | None, config: TrainConfig) -> None:
        """Train on encoded rows, and take the result."""
        if initial is not None:
            config, names = initial.complete(config), initial.label_names(names)
        start = None if initial is None else initial.model
        with torch_threads(thread_count(self.n_jobs)):
            show = print_evaluation if self.verbose else None
            positive = positive_value(self.classes_, names)
            result, data = train_on_arrays(arrays, names, positive, self.preprocessor_, config, start, show)
        self._take_model(result.model, {**result.metrics, "data": data})
        self._take_history(result.history)
