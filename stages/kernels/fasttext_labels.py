"""fastText's output layer: label probabilities from document vectors, for all four losses.

Legend: D documents; P columns, a multiple of 16; L labels; N nodes of the Huffman tree; K answers a document.
`mean_DP` float32 and `n_inputs_D` int64 are those of `fasttext.vectors`; work arrays hold one document.

Cost a document: L dot products of P columns for softmax, one-vs-all and negative sampling; for hierarchical
softmax only the branches that can still reach the K best (about 20 of 175 nodes for lid.176), and the path of
one label. Equal to the fasttext package, its 1e-5 inside every logarithm and its 512-step sigmoid included: with
one-vs-all a value on the edge of a step may differ by that step (at most 0.008), as additions are ordered
differently. Source: A. Joulin et al., arXiv:1607.01759.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

LANES = 16
HIERARCHICAL_SOFTMAX, NEGATIVE_SAMPLING, SOFTMAX, ONE_VS_ALL = 1, 2, 3, 4
EPSILON = 1e-5
"""fastText adds this inside every logarithm; kept, so that published thresholds keep their meaning."""


@njit(nogil=True, cache=True, error_model="numpy")
def _dot(a_P: Any, b_P: Any, lanes_16: Any) -> Any:
    """Dot product in 16 independent lanes, so that it vectorises and has one order of additions everywhere."""
    for column in range(LANES):
        lanes_16[column] = 0.0
    for low in range(0, a_P.shape[0], LANES):
        for column in range(LANES):
            lanes_16[column] += a_P[low + column] * b_P[low + column]
    width = LANES // 2
    while width > 0:
        for column in range(width):
            lanes_16[column] += lanes_16[column + width]
        width //= 2
    return np.float64(lanes_16[0])


@njit(nogil=True, cache=True, error_model="numpy")
def _sigmoid(x: float) -> float:
    """Look up fastText's table of 512 steps over [-8, 8]."""
    if x < -8.0:
        return 0.0
    if x > 8.0:
        return 1.0
    step = np.int64((np.float32(x) + np.float32(8.0)) * np.float32(512.0) / np.float32(8.0) / np.float32(2.0))
    return 1.0 / (1.0 + math.exp(8.0 - step * 16.0 / 512.0))


@njit(nogil=True, cache=True, error_model="numpy")
def _insert(label: int, score: float, label_K: Any, score_K: Any, n: int) -> Any:
    """Keep the K best in falling order; equal scores keep the lower label first. Returns how many are held."""
    k = score_K.shape[0]
    if n == k and (score < score_K[k - 1] or (score == score_K[k - 1] and label > label_K[k - 1])):
        return n
    at = n if n < k else k - 1
    while at > 0 and (score_K[at - 1] < score or (score_K[at - 1] == score and label_K[at - 1] > label)):
        score_K[at] = score_K[at - 1]
        label_K[at] = label_K[at - 1]
        at -= 1
    score_K[at] = score
    label_K[at] = label
    return n + 1 if n < k else n


@njit(nogil=True, cache=True, error_model="numpy")
def _probabilities(mean_P: Any, output_LP: Any, loss: int, lanes_16: Any, out_L: Any) -> None:
    """Write the probability of every label (softmax) or of each on its own (one-vs-all, negative sampling)."""
    n_labels = output_LP.shape[0]
    for label in range(n_labels):
        out_L[label] = _dot(mean_P, output_LP[label], lanes_16)
    if loss == SOFTMAX:
        top = out_L[0]
        for label in range(1, n_labels):
            top = max(top, out_L[label])
        total = 0.0
        for label in range(n_labels):
            out_L[label] = math.exp(out_L[label] - top)
            total += out_L[label]
        for label in range(n_labels):
            out_L[label] /= total
    else:
        for label in range(n_labels):
            out_L[label] = _sigmoid(out_L[label])


@njit(nogil=True, cache=True, error_model="numpy")
def top_labels(
    mean_DP: Any, n_inputs_D: Any, output_LP: Any, loss: int, left_N: Any, right_N: Any,
    lanes_16: Any, work_L: Any, node_N: Any, log_N: Any, score_K: Any, label_DK: Any, probability_DK: Any,
) -> None:  # fmt: skip
    """Write the K most probable labels of each document in falling order (-1 and 0 where there are none).

    Hierarchical softmax walks the tree from the root, the likelier child first, and leaves out branches that
    cannot reach the K best or 1e-5. Documents without any input have no label.
    """
    n_labels = output_LP.shape[0]
    floor = math.log(EPSILON)
    for d in range(mean_DP.shape[0]):
        label_K = label_DK[d]
        for k in range(label_K.shape[0]):
            label_K[k] = -1
            probability_DK[d, k] = 0.0
        if n_inputs_D[d] == 0:
            continue
        held = 0
        if loss == HIERARCHICAL_SOFTMAX:
            node_N[0] = 2 * n_labels - 2
            log_N[0] = 0.0
            depth = 1
            while depth > 0:
                depth -= 1
                node = node_N[depth]
                score = log_N[depth]
                if score < floor or (held == score_K.shape[0] and score < score_K[held - 1]):
                    continue
                if node < n_labels:
                    held = _insert(node, score, label_K, score_K, held)
                    continue
                x = _dot(mean_DP[d], output_LP[node - n_labels], lanes_16)
                p = 1.0 / (1.0 + math.exp(-x))
                near, far = right_N[node], left_N[node]
                near_log = score + math.log(p + EPSILON)
                far_log = score + math.log(1.0 - p + EPSILON)
                if p < 0.5:
                    near, far = far, near
                    near_log, far_log = far_log, near_log
                node_N[depth] = far
                log_N[depth] = far_log
                node_N[depth + 1] = near
                log_N[depth + 1] = near_log
                depth += 2
            for k in range(held):
                probability_DK[d, k] = math.exp(score_K[k])
        else:
            _probabilities(mean_DP[d], output_LP, loss, lanes_16, work_L)
            for label in range(n_labels):
                held = _insert(label, work_L[label], label_K, score_K, held)
            for k in range(held):
                probability_DK[d, k] = score_K[k] + EPSILON


@njit(nogil=True, cache=True, error_model="numpy")
def label_probability(
    mean_DP: Any, n_inputs_D: Any, output_LP: Any, loss: int, label: int, parent_N: Any, left_N: Any,
    lanes_16: Any, work_L: Any, probability_D: Any,
) -> None:  # fmt: skip
    """Write the probability of one label in each document (0 where a document has no input)."""
    n_labels = output_LP.shape[0]
    for d in range(mean_DP.shape[0]):
        probability_D[d] = 0.0
        if n_inputs_D[d] == 0:
            continue
        if loss == HIERARCHICAL_SOFTMAX:
            score = 0.0
            node = label
            while parent_N[node] >= 0:
                above = parent_N[node]
                x = _dot(mean_DP[d], output_LP[above - n_labels], lanes_16)
                p = 1.0 / (1.0 + math.exp(-x))
                score += math.log((1.0 - p if left_N[above] == node else p) + EPSILON)
                node = above
            probability_D[d] = math.exp(score)
        else:
            _probabilities(mean_DP[d], output_LP, loss, lanes_16, work_L)
            probability_D[d] = work_L[label] + EPSILON


def top_k(
    model: Any, mean_DP: npt.NDArray[np.float32], n_inputs_D: npt.NDArray[np.int64], k: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """Return ``(label_DK int32, probability_DK float32)``, best first; -1 and 0 where there are fewer.

    Probabilities are the package's: up to 1e-5 (times the tree's depth) over the true one.
    """
    k = min(k, len(model.labels))
    n, n_labels = len(n_inputs_D), len(model.labels)
    labels, probabilities = np.empty((n, k), np.int32), np.empty((n, k), np.float32)
    top_labels(
        mean_DP, n_inputs_D, model.output_LP, model.loss, model.left_N, model.right_N,
        np.empty(LANES, np.float32), np.empty(n_labels), np.empty(2 * n_labels + 1, np.int64),
        np.empty(2 * n_labels + 1), np.empty(k), labels, probabilities,
    )  # fmt: skip
    return labels, probabilities


def probability_of(
    model: Any, mean_DP: npt.NDArray[np.float32], n_inputs_D: npt.NDArray[np.int64], label: int
) -> npt.NDArray[np.float32]:
    """Return the probability of one label, float32 (D); 0 where a document has no input."""
    out = np.empty(len(n_inputs_D), np.float32)
    label_probability(
        mean_DP, n_inputs_D, model.output_LP, model.loss, label, model.parent_N, model.left_N,
        np.empty(LANES, np.float32), np.empty(len(model.labels)), out,
    )  # fmt: skip
    return out
