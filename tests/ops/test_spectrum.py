"""Transforms and spectra against NumPy and SciPy."""

import numpy as np
import pytest
import scipy.signal

from fusewire import ops

RNG = np.random.default_rng(10)


@pytest.mark.parametrize("length", [None, 3, 8])
@pytest.mark.parametrize("onesided", [False, True])
def test_dft_of_parts_is_that_of_complex_numbers(length: int | None, onesided: bool) -> None:
    x = RNG.normal(size=(2, 5, 3, 1))
    found = ops.dft(x, length=length, axis=1, onesided=onesided)
    exact = (np.fft.rfft if onesided else np.fft.fft)(x[..., 0], length, axis=1)
    np.testing.assert_allclose(found[..., 0] + 1j * found[..., 1], exact, atol=1e-12)
    back = ops.dft(found, length=length or 5, axis=1, inverse=True, onesided=onesided)
    kept = x[:, : length or 5, :, 0]
    np.testing.assert_allclose(back[:, : kept.shape[1], :, 0], kept, atol=1e-12)


def test_transforms_of_several_axes_are_those_of_numpy() -> None:
    z = RNG.normal(size=(3, 4, 5)) + 1j * RNG.normal(size=(3, 4, 5))
    np.testing.assert_allclose(ops.fftn(z, axes=(0, 2)), np.fft.fftn(z, axes=(0, 2)))
    np.testing.assert_allclose(ops.ifftn(z), np.fft.ifftn(z))
    np.testing.assert_allclose(ops.rfftn(z.real), np.fft.rfftn(z.real))
    found = ops.irfftn(z, axes=(0, 2), length=7)
    np.testing.assert_allclose(found, np.fft.irfftn(z, (3, 7), (0, 2)))
    for axes in (None, (1, 2)):
        assert np.array_equal(ops.fftshift(z, axes=axes), np.fft.fftshift(z, axes))
        assert np.array_equal(ops.ifftshift(z, axes=axes), np.fft.ifftshift(z, axes))


def test_stft_is_that_of_scipy_and_istft_undoes_it() -> None:
    signal, window = RNG.normal(size=(2, 61)), scipy.signal.windows.hamming(16, sym=False)
    found = ops.stft(signal[..., None], window, frame_step=5, frame_length=16)
    frames = np.lib.stride_tricks.sliding_window_view(signal, 16, 1)[:, ::5]
    exact = np.fft.rfft(frames * window)
    np.testing.assert_allclose(found[..., 0] + 1j * found[..., 1], exact, atol=1e-12)
    back = ops.istft(found, window, frame_step=5)
    np.testing.assert_allclose(back[..., 0], signal, atol=1e-12)


@pytest.mark.parametrize("periodic", [False, True])
@pytest.mark.parametrize("name", ["hann", "hamming", "blackman"])
def test_windows_are_those_of_scipy(name: str, periodic: bool) -> None:
    found = getattr(ops, f"{name}_window")(size=11, periodic=periodic, dtype="float64")
    # SciPy rounds the terms of the Hamming window to two digits.
    terms = {"hann": [0.5, 0.5], "hamming": [25 / 46, 21 / 46], "blackman": [0.42, 0.5, 0.08]}
    exact = scipy.signal.windows.general_cosine(11, terms[name], sym=not periodic)
    np.testing.assert_allclose(found, exact, atol=1e-14)


def test_mel_weights_are_triangles_that_peak_at_one() -> None:
    scalars = [np.array(n) for n in (8, 64, 16000)] + [np.float32(20), np.float32(8000)]
    found = ops.mel_weight_matrix(*scalars)
    assert found.shape == (33, 8)
    assert found.max(0).tolist() == [1.0] * 8
    for column in found.T:
        (filled,) = np.nonzero(column)
        assert np.array_equal(filled, np.arange(filled[0], filled[-1] + 1))
