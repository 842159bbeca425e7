"""``AdditiveFastKAN`` as nodes of a graph: a lookup for each term.

Shape suffixes: N rows, F numeric features, L labels, V rows of the model's table.
"""

import numpy as np

from dkan_core.data.encoding.preprocessor import UNSEEN
from dkan_core.model.additive import AdditiveFastKAN
from dkan_core.model.additive_shape import SCORE_CODES, Term
from dkan_core.onnx_export.encoding import EncodedColumns
from dkan_core.onnx_export.graph import Graph
from dkan_core.utils.arrays import Array


def add_terms(graph: Graph, model: AdditiveFastKAN, columns: EncodedColumns) -> str:
    """Add the sum of a row's terms and the intercept, ``(N, L)`` float32, not calibrated."""
    return _Terms(graph, model, columns).add()


class _Terms:
    def __init__(self, graph: Graph, model: AdditiveFastKAN, columns: EncodedColumns) -> None:
        self.graph, self.model, self.columns = graph, model, columns
        self.table_VL: Array = model.mean_table().detach().numpy()
        self.bins_V: Array = model.bins.numpy().astype(np.int64)
        self.score_rows: Array = model.score_rows.numpy()
        self.numeric = model.config.num_numeric
        self.coded = {term.features[0]: term for term in model.layout.coded}
        # The code of each feature, in the graph.
        self.codes: dict[int, str] = {}

    def add(self) -> str:
        terms = [self.graph.constant(self.model.bias.detach().numpy(), "additive_intercept")]
        if self.numeric:
            terms.append(self._numeric())
        terms += [self._lookup(self.table_VL[term.rows], self._code(feature)) for feature, term in self.coded.items()]
        terms += [self._pair(term) for term in self.model.layout.pairs]
        return self.graph.node("Sum", *terms)

    def _numeric(self) -> str:
        """Add the terms of all numeric features: one lookup."""
        assert self.columns.score_codes is not None
        table_CL = self.table_VL[self.score_rows.ravel()]
        firsts = self.graph.constant(np.arange(0, len(table_CL), SCORE_CODES)[None], "first_codes")
        found_NFL = self._lookup(table_CL, self.graph.node("Add", self.columns.score_codes, firsts))
        return self.graph.node("ReduceSum", found_NFL, self.graph.indexes(1), keepdims=0)

    def _pair(self, term: Term) -> str:
        first, second = (self._bin(feature) for feature in term.features)
        stride = self.graph.number(term.shape[1], np.int64)
        joint = self.graph.node("Add", self.graph.node("Mul", first, stride), second)
        return self._lookup(self.table_VL[term.rows], joint)

    def _bin(self, feature: int) -> str:
        """Add the bin ``(N,)`` of a feature in its pairs."""
        rows_C = self.coded[feature].rows if feature in self.coded else self.score_rows[feature]
        return self._lookup(self.bins_V[rows_C], self._code(feature))

    def _code(self, feature: int) -> str:
        """Add the code ``(N,)`` of a feature; of a coded one, that in its term."""
        if feature not in self.codes:
            self.codes[feature] = self._coded(feature) if feature in self.coded else self._scored(feature)
        return self.codes[feature]

    def _scored(self, feature: int) -> str:
        assert self.columns.score_codes is not None
        return self.graph.node("Gather", self.columns.score_codes, self.graph.number(feature, np.int64), axis=1)

    def _coded(self, feature: int) -> str:
        code = self.columns.codes[feature - self.numeric]
        rare = self.graph.node("GreaterOrEqual", code, self.graph.number(self.coded[feature].size, np.int64))
        return self.graph.node("Where", rare, self.graph.number(UNSEEN, np.int64), code)

    def _lookup(self, table: Array, indices: str) -> str:
        return self.graph.node("Gather", self.graph.constant(table, "additive_table"), indices)
