"""Recurrent layers: directions, layers, layouts, given states, projections, and cells."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from benchmarks.modules.case import Arguments, ModuleCase, Parallel, positional


class Cells(nn.Module):
    """Unroll three cells by hand over the steps of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru, self.rnn = nn.LSTMCell(6, 8), nn.GRUCell(8, 8), nn.RNNCell(8, 5)

    def forward(self, x: Any) -> Any:
        hidden = cell = update = torch.zeros(x.shape[0], 8, dtype=x.dtype)
        state = torch.zeros(x.shape[0], 5, dtype=x.dtype)
        states = []
        for step in x.unbind(1):
            hidden, cell = self.lstm(step, (hidden, cell))
            update = self.gru(hidden, update)
            state = self.rnn(update, state)
            states.append(state)
        return torch.stack(states, 1)


def _with_states(size: int) -> Arguments:
    state = torch.randn(2, size, 10), torch.randn(2, size, 10)
    return (torch.randn(7, size, 5),), {"hx": state}


MODULES = (
    ModuleCase(
        "rnn",
        lambda: nn.RNN(5, 7, num_layers=2, nonlinearity="relu", batch_first=True),
        positional((None, 9, 5)),
        sizes=(3, 2, 5),
    ),
    ModuleCase(
        "lstm",
        lambda: nn.LSTM(12, 16, num_layers=2, bidirectional=True, batch_first=True, dropout=0.2),
        positional((None, 11, 12)),
        sizes=(3, 2, 5),
        is_small=True,
    ),
    ModuleCase("lstm_states", lambda: nn.LSTM(5, 10, num_layers=2), _with_states, sizes=(3, 2)),
    ModuleCase(
        "lstm_projected",
        lambda: nn.LSTM(6, 12, proj_size=5, batch_first=True),
        positional((None, 8, 6)),
        sizes=(3, 2),
    ),
    ModuleCase(
        "gru",
        lambda: Parallel(
            both=nn.GRU(6, 9, num_layers=2, bidirectional=True),
            unbiased=nn.GRU(6, 9, bias=False),
        ),
        positional((10, None, 6)),
        sizes=(3, 2, 5),
    ),
    ModuleCase("cells", Cells, positional((None, 5, 6)), sizes=(3, 2)),
)
