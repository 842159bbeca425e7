"""The encoding as a graph: the very scores and codes of ``Preprocessor.transform``, for any knots and any values."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dkan_core.data.encoding.preprocessor import (
    TRUTHS,
    CategoryFeature,
    NumericFeature,
    Preprocessor,
    ValueFeature,
)
from dkan_core.data.encoding.raw_columns import LARGEST
from dkan_core.model.decoding import decode_scores
from dkan_core.onnx_export.encoding import add_encoding
from dkan_core.onnx_export.graph import Graph
from dkan_core.onnx_export.verification import boundary_rows, graph_inputs
from tests.onnx_export.models import NumericDtype

onnx = pytest.importorskip("onnx", reason="needs the onnx extra")
onnxruntime = pytest.importorskip("onnxruntime", reason="needs the onnx extra")

FINITE = st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.one_of(st.sampled_from(sum(TRUTHS, ())), st.text(max_size=5))


def encoded(preprocessor: Preprocessor, rows: pa.RecordBatch) -> dict[str, npt.NDArray[Any]]:
    """Encode rows by a graph whose outputs are scores and codes."""
    code_names = [f"code {index}" for index in range(len(preprocessor.coded))]
    graph = Graph(reserved=[*preprocessor.columns, *code_names, "scores"])
    columns = add_encoding(graph, preprocessor, range(len(preprocessor.coded)), "?")
    names = {f"code {index}": name for index, name in columns.codes.items()}
    names |= {} if columns.scores is None else {"scores": columns.scores}
    outputs = [
        onnx.helper.make_tensor_value_info(
            graph.node("Identity", value, output=name),
            *((onnx.TensorProto.FLOAT, ["N", "F"]) if name == "scores" else (onnx.TensorProto.INT64, ["N"])),
        )
        for name, value in names.items()
    ]
    model = graph.model(outputs[0], {}, "0")
    model.graph.output.extend(outputs[1:])
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found = session.run(list(names), graph_inputs(rows, preprocessor, "?"))
    return dict(zip(names, found, strict=True))


def check_same(preprocessor: Preprocessor, rows: pa.RecordBatch) -> None:
    found, wanted = encoded(preprocessor, rows), preprocessor.transform(rows, "rows")
    for index in range(len(preprocessor.coded)):
        np.testing.assert_array_equal(found[f"code {index}"], wanted["categorical"][:, index])
    if preprocessor.numeric:
        np.testing.assert_array_equal(found["scores"], decode_scores(torch.from_numpy(wanted["numeric"])).numpy())


@st.composite
def numeric_features(draw: st.DrawFn, name: str) -> NumericFeature:
    knots = sorted(draw(st.sets(FINITE, min_size=1, max_size=9)))
    scores = draw(st.lists(st.floats(-3, 3), min_size=len(knots), max_size=len(knots)))
    return NumericFeature(name=name, knots=knots, scores=sorted(scores))


def values_near(numbers: list[float]) -> st.SearchStrategy[float]:
    """Return a strategy of numbers, their neighbours, anything else, and what is no number."""
    exact = st.sampled_from(numbers) if numbers else st.nothing()
    neighbours = st.tuples(exact, st.sampled_from([-math.inf, math.inf])).map(lambda pair: math.nextafter(*pair))
    return st.one_of(exact, neighbours, st.floats())


@st.composite
def cases(draw: st.DrawFn) -> tuple[Preprocessor, pa.RecordBatch]:
    """Draw an encoding of two numeric columns and one of texts, and rows for it."""
    numeric = [draw(numeric_features("x")), draw(numeric_features("y"))]
    frequent = sorted(draw(st.sets(st.one_of(st.sampled_from(numeric[1].knots), FINITE), max_size=6)))
    texts = sorted(draw(st.sets(TEXTS.filter(lambda text: text != "?"), max_size=4)))
    preprocessor = Preprocessor(
        numeric=numeric,
        coded=[ValueFeature(name="y", vocabulary=frequent), CategoryFeature(name="c", vocabulary=texts)],
        numeric_dtype=draw(st.sampled_from(["uint8", "float16", "float32"])),
    )
    count = draw(st.integers(0, 12))

    def column(values: st.SearchStrategy[Any], kind: pa.DataType) -> pa.Array:
        return pa.array(draw(st.lists(st.one_of(values, st.none()), min_size=count, max_size=count)), kind)

    known = st.sampled_from(texts) if texts else st.nothing()
    rows = {
        "x": column(values_near(numeric[0].knots), pa.float64()),
        "y": column(values_near([*frequent, *numeric[1].knots]), pa.float64()),
        "c": column(st.one_of(known, TEXTS.filter(lambda text: text != "?")), pa.string()),
    }
    return preprocessor, pa.record_batch(rows)


@settings(max_examples=60)
@given(cases())
def test_any_encoding_gives_the_same_scores_and_codes(case: tuple[Preprocessor, pa.RecordBatch]) -> None:
    check_same(*case)


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32"])
@pytest.mark.parametrize(
    "knots",
    [
        [-1.7e308, 1.7e308],
        [0.0, 5e-324, 1e-323, 1.0],
        [1.0, np.nextafter(1.0, 2.0), 2.0],
        [-1.7e308, -1.0, 0.0, 1.7e308],
        [7.0],
    ],
)
def test_knots_closer_or_farther_apart_than_a_slope_can_say(knots: list[float], dtype: NumericDtype) -> None:
    scores = np.linspace(-3, 3, len(knots)).tolist()
    preprocessor = Preprocessor(
        numeric=[NumericFeature(name="x", knots=knots, scores=scores)], coded=[], numeric_dtype=dtype
    )
    check_same(preprocessor, boundary_rows(preprocessor, "?"))


def test_numbers_beyond_the_largest_count_as_it() -> None:
    preprocessor = Preprocessor(
        numeric=[NumericFeature(name="x", knots=[-LARGEST, LARGEST], scores=[-1.0, 1.0])],
        coded=[ValueFeature(name="x", vocabulary=[-LARGEST, LARGEST])],
        numeric_dtype="float32",
    )
    rows = pa.record_batch({"x": [-1.7e308, -1e301, 1e301, 1.7e308, 0.0, math.inf]})
    assert preprocessor.transform(rows, "rows")["categorical"][:, 0].tolist() == [2, 2, 3, 3, 0, 1]
    check_same(preprocessor, rows)


def test_every_step_of_uint8_is_reached_at_the_same_value() -> None:
    """Of many knots, whose scores fall on and between the stored steps."""
    rng = np.random.default_rng(3)
    scores = np.sort(np.concatenate([np.linspace(-3, 3, 509), rng.uniform(-3, 3, 200)])).round(6).tolist()
    numeric = [NumericFeature(name="x", knots=np.sort(rng.normal(size=709)).tolist(), scores=scores)]
    preprocessor = Preprocessor(numeric=numeric, coded=[], numeric_dtype="uint8")
    rows = boundary_rows(preprocessor, "?")
    assert len(np.unique(preprocessor.transform(rows, "rows")["numeric"])) == 256
    check_same(preprocessor, rows)
