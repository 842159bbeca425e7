"""dkan: FastKAN on huge tabular data, on all the GPUs of a node.

Names are imported when they are first used, so that ``import dkan_core`` is fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dkan_core.batch_scoring.parts import measure_drift, score_part
    from dkan_core.batch_scoring.plan import plan_scoring
    from dkan_core.batch_scoring.summary import ScoringSummary, complete_scoring, summarize_scoring
    from dkan_core.config import NodesConfig, PrepareConfig, TrainConfig, build_config
    from dkan_core.data.example_data import write_sample
    from dkan_core.data.format.manifest import PreparedData, save_pointer
    from dkan_core.data.preparation.parallel import finish_preparation, fit_preparation, plan_preparation, prepare_part
    from dkan_core.data.preparation.prepare import prepare
    from dkan_core.data.preparation.reuse import shared_folder
    from dkan_core.data.source.files import fingerprint_sources
    from dkan_core.errors import ConfigError, DataError, DkanError, GateError, OutputError, TrainingError, UserError
    from dkan_core.evaluation.drift.measures import Drift
    from dkan_core.evaluation.evaluate import Evaluation, evaluate
    from dkan_core.evaluation.prediction import predict
    from dkan_core.evaluation.publishing import choose_best, publish
    from dkan_core.explanation.explain import explain
    from dkan_core.explanation.learned import Explanation
    from dkan_core.integrations.notebook.main import MainResult, main
    from dkan_core.integrations.sklearn.classifier import FastKANClassifier
    from dkan_core.model.fastkan import FastKAN
    from dkan_core.training.launcher.train import TrainResult, train
    from dkan_core.training.planning.bench import SyncBench, bench_sync
    from dkan_core.training.planning.lr_sweep import TuneResult, tune_learning_rate
    from dkan_core.training.planning.plan import Plan, plan
    from dkan_core.training.planning.slices import SlicePlan, plan_slices
    from dkan_core.trainjob.launch import train_on_nodes

__version__ = "0.2.0"

_HOMES = {
    "ConfigError": "errors",
    "DataError": "errors",
    "DkanError": "errors",
    "Drift": "evaluation.drift.measures",
    "Evaluation": "evaluation.evaluate",
    "Explanation": "explanation.learned",
    "FastKAN": "model.fastkan",
    "FastKANClassifier": "integrations.sklearn.classifier",
    "GateError": "errors",
    "MainResult": "integrations.notebook.main",
    "NodesConfig": "config",
    "OutputError": "errors",
    "Plan": "training.planning.plan",
    "PrepareConfig": "config",
    "PreparedData": "data.format.manifest",
    "ScoringSummary": "batch_scoring.summary",
    "SlicePlan": "training.planning.slices",
    "SyncBench": "training.planning.bench",
    "TrainConfig": "config",
    "TrainResult": "training.launcher.train",
    "TrainingError": "errors",
    "TuneResult": "training.planning.lr_sweep",
    "UserError": "errors",
    "bench_sync": "training.planning.bench",
    "build_config": "config",
    "choose_best": "evaluation.publishing",
    "complete_scoring": "batch_scoring.summary",
    "evaluate": "evaluation.evaluate",
    "explain": "explanation.explain",
    "fingerprint_sources": "data.source.files",
    "finish_preparation": "data.preparation.parallel",
    "fit_preparation": "data.preparation.parallel",
    "main": "integrations.notebook.main",
    "measure_drift": "batch_scoring.parts",
    "plan": "training.planning.plan",
    "plan_preparation": "data.preparation.parallel",
    "plan_scoring": "batch_scoring.plan",
    "plan_slices": "training.planning.slices",
    "predict": "evaluation.prediction",
    "prepare": "data.preparation.prepare",
    "prepare_part": "data.preparation.parallel",
    "publish": "evaluation.publishing",
    "save_pointer": "data.format.manifest",
    "score_part": "batch_scoring.parts",
    "shared_folder": "data.preparation.reuse",
    "summarize_scoring": "batch_scoring.summary",
    "train": "training.launcher.train",
    "train_on_nodes": "trainjob.launch",
    "tune_learning_rate": "training.planning.lr_sweep",
    "write_sample": "data.example_data",
}

__all__ = [
    "ConfigError",
    "DataError",
    "DkanError",
    "Drift",
    "Evaluation",
    "Explanation",
    "FastKAN",
    "FastKANClassifier",
    "GateError",
    "MainResult",
    "NodesConfig",
    "OutputError",
    "Plan",
    "PrepareConfig",
    "PreparedData",
    "ScoringSummary",
    "SlicePlan",
    "SyncBench",
    "TrainConfig",
    "TrainResult",
    "TrainingError",
    "TuneResult",
    "UserError",
    "bench_sync",
    "build_config",
    "choose_best",
    "complete_scoring",
    "evaluate",
    "explain",
    "fingerprint_sources",
    "finish_preparation",
    "fit_preparation",
    "main",
    "measure_drift",
    "plan",
    "plan_preparation",
    "plan_scoring",
    "plan_slices",
    "predict",
    "prepare",
    "prepare_part",
    "publish",
    "save_pointer",
    "score_part",
    "shared_folder",
    "summarize_scoring",
    "train",
    "train_on_nodes",
    "tune_learning_rate",
    "write_sample",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dkan_core' has no attribute {name!r}")
    value = getattr(import_module(f"dkan_core.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
