"""Losses over labelled classes."""

from __future__ import annotations

from collections.abc import Mapping

from fusewire.onnx.read.call import Converted, OnnxCall, Read
from fusewire.ops import loss, normalization


def _negative_log_likelihood(call: OnnxCall) -> Converted:
    return loss.nll_loss(
        call[0],
        call[1],
        call.get(2),
        ignore_index=call.attr("ignore_index"),
        reduction=call.attr("reduction", "mean"),
    )


def _softmax_cross_entropy(call: OnnxCall) -> Converted:
    found = loss.cross_entropy(
        call[0],
        call[1],
        call.get(2),
        ignore_index=call.attr("ignore_index"),
        reduction=call.attr("reduction", "mean"),
    )
    return [found, normalization.log_softmax(call[0], axis=1) if call.wants(1) else None]


READERS: Mapping[str, Read] = {
    "NegativeLogLikelihoodLoss": _negative_log_likelihood,
    "SoftmaxCrossEntropyLoss": _softmax_cross_entropy,
}
