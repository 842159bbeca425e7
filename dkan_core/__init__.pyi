"""The public names of dkan, each imported from its module when it is first used (``__init__.py``)."""

from dkan_core.batch_scoring.parts import measure_drift as measure_drift
from dkan_core.batch_scoring.parts import score_part as score_part
from dkan_core.batch_scoring.plan import plan_scoring as plan_scoring
from dkan_core.batch_scoring.summary import ScoringSummary as ScoringSummary
from dkan_core.batch_scoring.summary import complete_scoring as complete_scoring
from dkan_core.batch_scoring.summary import summarize_scoring as summarize_scoring
from dkan_core.config import NodesConfig as NodesConfig
from dkan_core.config import PrepareConfig as PrepareConfig
from dkan_core.config import TrainConfig as TrainConfig
from dkan_core.config import build_config as build_config
from dkan_core.config.forms import config_from_form as config_from_form
from dkan_core.data.example_data import write_sample as write_sample
from dkan_core.data.format.manifest import PreparedData as PreparedData
from dkan_core.data.format.manifest import save_pointer as save_pointer
from dkan_core.data.preparation.parallel import finish_preparation as finish_preparation
from dkan_core.data.preparation.parallel import fit_preparation as fit_preparation
from dkan_core.data.preparation.parallel import plan_preparation as plan_preparation
from dkan_core.data.preparation.parallel import prepare_part as prepare_part
from dkan_core.data.preparation.prepare import prepare as prepare
from dkan_core.data.preparation.reuse import shared_folder as shared_folder
from dkan_core.data.source.files import fingerprint_sources as fingerprint_sources
from dkan_core.errors import ConfigError as ConfigError
from dkan_core.errors import DataError as DataError
from dkan_core.errors import DkanError as DkanError
from dkan_core.errors import GateError as GateError
from dkan_core.errors import OutputError as OutputError
from dkan_core.errors import TrainingError as TrainingError
from dkan_core.errors import UserError as UserError
from dkan_core.evaluation.drift.measures import Drift as Drift
from dkan_core.evaluation.evaluate import Evaluation as Evaluation
from dkan_core.evaluation.evaluate import evaluate as evaluate
from dkan_core.evaluation.prediction import predict as predict
from dkan_core.evaluation.publishing import choose_best as choose_best
from dkan_core.evaluation.publishing import publish as publish
from dkan_core.explanation.explain import explain as explain
from dkan_core.explanation.learned import Explanation as Explanation
from dkan_core.integrations.notebook.main import MainResult as MainResult
from dkan_core.integrations.notebook.main import main as main
from dkan_core.integrations.sklearn.classifier import FastKANClassifier as FastKANClassifier
from dkan_core.model.fastkan import FastKAN as FastKAN
from dkan_core.onnx_export.export import ExportResult as ExportResult
from dkan_core.onnx_export.export import export as export
from dkan_core.training.launcher.train import TrainResult as TrainResult
from dkan_core.training.launcher.train import train as train
from dkan_core.training.planning.bench import SyncBench as SyncBench
from dkan_core.training.planning.bench import bench_sync as bench_sync
from dkan_core.training.planning.lr_sweep import TuneResult as TuneResult
from dkan_core.training.planning.lr_sweep import tune_learning_rate as tune_learning_rate
from dkan_core.training.planning.plan import Plan as Plan
from dkan_core.training.planning.plan import plan as plan
from dkan_core.training.planning.slices import SlicePlan as SlicePlan
from dkan_core.training.planning.slices import plan_slices as plan_slices
from dkan_core.trainjob.launch import train_on_nodes as train_on_nodes

__all__: list[str]
__version__: str
