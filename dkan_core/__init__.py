"""dkan: FastKAN on huge tabular data, on all the GPUs of a node.

Names are imported when they are first used, so that ``import dkan_core`` is fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dkan_core.config import PrepareConfig, TrainConfig
    from dkan_core.data.earlier import shared_folder
    from dkan_core.data.manifest import PreparedData, save_pointer
    from dkan_core.data.parallel import finish_preparation, fit_preparation, plan_preparation, prepare_part
    from dkan_core.data.prepare import prepare
    from dkan_core.data.sources import fingerprint_sources
    from dkan_core.drift.measures import Drift
    from dkan_core.errors import ConfigError, DataError, DkanError, GateError, OutputError, TrainingError, UserError
    from dkan_core.estimator.classifier import FastKANClassifier
    from dkan_core.evaluation import Evaluation, evaluate
    from dkan_core.explanation.explain import explain
    from dkan_core.explanation.learned import Explanation
    from dkan_core.model.fastkan import FastKAN
    from dkan_core.nodes.config import NodesConfig
    from dkan_core.nodes.launch import train_on_nodes
    from dkan_core.notebook.main import MainResult, main
    from dkan_core.prediction import predict
    from dkan_core.publishing import choose_best, publish
    from dkan_core.sample import write_sample
    from dkan_core.scoring.parts import measure_drift, score_part
    from dkan_core.scoring.plan import plan_scoring
    from dkan_core.scoring.summary import ScoringSummary, complete_scoring, summarize_scoring
    from dkan_core.settings import build_config
    from dkan_core.training.launch import TrainResult, train
    from dkan_core.training.planning.bench import SyncBench, bench_sync
    from dkan_core.training.planning.plan import Plan, plan
    from dkan_core.training.planning.slices import SlicePlan, plan_slices
    from dkan_core.training.tuning import TuneResult, tune_learning_rate

__version__ = "0.2.0"

_HOMES = {
    "ConfigError": "errors",
    "DataError": "errors",
    "DkanError": "errors",
    "Drift": "drift.measures",
    "Evaluation": "evaluation",
    "Explanation": "explanation.learned",
    "FastKAN": "model.fastkan",
    "FastKANClassifier": "estimator.classifier",
    "GateError": "errors",
    "MainResult": "notebook.main",
    "NodesConfig": "nodes.config",
    "OutputError": "errors",
    "Plan": "training.planning.plan",
    "PrepareConfig": "config",
    "PreparedData": "data.manifest",
    "ScoringSummary": "scoring.summary",
    "SlicePlan": "training.planning.slices",
    "SyncBench": "training.planning.bench",
    "TrainConfig": "config",
    "TrainResult": "training.launch",
    "TrainingError": "errors",
    "TuneResult": "training.tuning",
    "UserError": "errors",
    "bench_sync": "training.planning.bench",
    "build_config": "settings",
    "choose_best": "publishing",
    "complete_scoring": "scoring.summary",
    "evaluate": "evaluation",
    "explain": "explanation.explain",
    "fingerprint_sources": "data.sources",
    "finish_preparation": "data.parallel",
    "fit_preparation": "data.parallel",
    "main": "notebook.main",
    "measure_drift": "scoring.parts",
    "plan": "training.planning.plan",
    "plan_preparation": "data.parallel",
    "plan_scoring": "scoring.plan",
    "plan_slices": "training.planning.slices",
    "predict": "prediction",
    "prepare": "data.prepare",
    "prepare_part": "data.parallel",
    "publish": "publishing",
    "save_pointer": "data.manifest",
    "score_part": "scoring.parts",
    "shared_folder": "data.earlier",
    "summarize_scoring": "scoring.summary",
    "train": "training.launch",
    "train_on_nodes": "nodes.launch",
    "tune_learning_rate": "training.tuning",
    "write_sample": "sample",
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
