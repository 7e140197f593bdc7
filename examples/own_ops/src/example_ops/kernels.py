"""Kernels of the two ops in WGSL and Triton, and a lowering to XLA.

Only processes that run these backends import this module.
"""

from typing import Any, ClassVar

from fusewire import declare as fd

GELU2_WGSL = """
fn gelu2(v: f32) -> f32 {
    return v / (1.0 + exp(-slope * v));
}

fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    for (var step = 0u; step < each; step++) {
        let at = id.x * each + step;
        if (at < out_size) {
            out[at] = gelu2(x[at]);
        }
    }
}
"""

INTERLEAVE_WGSL = """
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < x_size) {
        out[2u * id.x] = x[id.x];
        out[2u * id.x + 1u] = y[id.x];
    }
}
"""


class WebGpuKernels(fd.Extension):
    """Kernels in WGSL; names in the source that are not declared there are given as constants."""

    lowerings: ClassVar[dict[str, Any]] = {
        "example_ops.gelu2": fd.WgslKernel(
            GELU2_WGSL,
            inputs=("x",),
            outputs=("out",),
            workgroup=("width",),
            grid=(fd.Cover("out", by="share"),),
            # A share is what a workgroup computes: width times each.
            configurations=(
                {"width": 64, "each": 1, "share": 64},
                {"width": 64, "each": 4, "share": 256},
                {"width": 128, "each": 1, "share": 128},
            ),
        ),
        "example_ops.interleave": fd.WgslKernel(
            INTERLEAVE_WGSL,
            inputs=("x", "y"),
            outputs=("out",),
            workgroup=("width",),
            grid=(fd.Cover("x", by="width"),),
            configurations=({"width": 64}, {"width": 256}),
        ),
    }


GELU2_TRITON = """
def gelu2(x, out):
    at = tl.program_id(0) * block + tl.arange(0, block)
    v = tl.load(x + at, mask=at < out_size, other=0.0)
    tl.store(out + at, v / (1.0 + tl.exp(-slope * v)), mask=at < out_size)
"""

INTERLEAVE_TRITON = """
def interleave(x, y, out):
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(out + 2 * at, tl.load(x + at, mask=at < x_size), mask=at < x_size)
    tl.store(out + 2 * at + 1, tl.load(y + at, mask=at < x_size), mask=at < x_size)
"""


class TritonKernels(fd.Extension):
    """Kernels in Triton: the text of a function, without its decorator."""

    lowerings: ClassVar[dict[str, Any]] = {
        "example_ops.gelu2": fd.TritonKernel(
            GELU2_TRITON,
            inputs=("x",),
            outputs=("out",),
            grid=(fd.Cover("out", by="block"),),
            configurations=({"block": 256}, {"block": 1024}),
        ),
        "example_ops.interleave": fd.TritonKernel(
            INTERLEAVE_TRITON,
            inputs=("x", "y"),
            outputs=("out",),
            grid=(fd.Cover("x", by="block"),),
            configurations=({"block": 256},),
        ),
    }


class XlaLowerings(fd.Extension):
    """Functions of jax.numpy, as the table of the XLA backend has them."""

    @property
    def lowerings(self) -> dict[str, Any]:
        import jax
        import jax.numpy as jnp

        def gelu2(node: fd.Node, x: Any) -> Any:
            return x * jax.nn.sigmoid(x * node.attrs["slope"])

        def interleave(node: fd.Node, x: Any, y: Any) -> Any:
            return jnp.stack([x, y], axis=-1).reshape(*x.shape[:-1], 2 * x.shape[-1])

        return {"example_ops.gelu2": gelu2, "example_ops.interleave": interleave}
