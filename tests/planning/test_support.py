"""What a backend answers when it is asked about an op."""

import pytest

import fusewire as fw
from fusewire.errors import DTypeError, FusewireError, RegistryError
from fusewire.ops.table import all_ops
from fusewire.planning.support import Support


def test_answer_is_true_if_every_sample_is_taken() -> None:
    assert fw.supports("onnxruntime", "softmax")
    # A composite is taken as what it is made of.
    assert fw.supports("xla", "softmax", "bfloat16", device="cpu")
    assert not Support(2, 3, "refused")
    assert not Support(3, 3, "known to be wrong")


def test_answer_says_why_an_op_is_refused() -> None:
    answer = fw.supports("xla", "unique", "float32")
    assert not answer
    assert answer.taken == 0
    assert answer.samples > 0
    assert "XLA" in answer.reason


def test_dtype_decides() -> None:
    wide, common = (fw.supports("webgpu", "attention", of) for of in ("float64", "float32"))
    assert common
    assert not wide
    assert "float64" in wide.reason


def test_question_that_cannot_be_asked_is_an_error() -> None:
    with pytest.raises(DTypeError, match="exp does not take int32, on any backend"):
        fw.supports("xla", "exp", "int32")
    with pytest.raises(RegistryError, match="xla was asked about cuda:0 and has cpu"):
        fw.supports("xla", "exp", device="cuda:0")
    with pytest.raises(FusewireError, match="exq"):
        fw.supports("xla", "exq")


def test_reference_supports_every_op() -> None:
    names = [op.name for op in all_ops().values()][::25]
    assert [name for name in names if not fw.supports("reference", name)] == []
