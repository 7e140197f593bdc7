"""How modules of PyTorch are called: tensors in any structure, and state that may change.

Nothing is copied on the way: arrays share the memory of the tensors of a call, and the tensors of
a result that of the arrays an engine returned.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Sequence
from itertools import pairwise
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from fusewire.contract.calling import Arguments, CallForm, Calling, Named, Restore, StateGuard
from fusewire.contract.frontend import Spec, plain_key
from fusewire.errors import TraceError
from fusewire.frontends.torch.arrays import call_array, result_tensor
from fusewire.frontends.torch.flat_call import FlatCall
from fusewire.frontends.torch.module_call import ModuleCall
from fusewire.frontends.torch.state import ModuleState
from fusewire.frontends.torch.trees import PLAIN, Tree
from fusewire.ir.graph import Array
from fusewire.process.guard import guarded

_is_grad_enabled = torch.is_grad_enabled
_set_grad_enabled = torch._C._set_grad_enabled
_is_autocast = torch._C.is_autocast_enabled
_dispatch_modes = torch._C._len_torch_dispatch_stack
_transforms = torch._C._functorch.maybe_current_level
_increment_version = torch.autograd.graph.increment_version
# What PyTorch says to a module that computes gradients of its own, where it may not.
_NO_GRADIENT = "does not require grad"


def _tensor_key(x: Tensor) -> tuple[Any, ...]:
    return x.shape, x.dtype, x.is_cpu, x.requires_grad and _is_grad_enabled()


def _key(x: Any) -> Any:
    """Return the key of an argument, which has its types and plain values."""
    kind = type(x)
    if kind is Tensor or kind is nn.Parameter:
        return _tensor_key(x)
    if kind in PLAIN:
        return plain_key(x)
    if kind is tuple or kind is list:
        return kind, tuple([_key(item) for item in x])
    if kind is dict:
        return kind, tuple([(name, _key(item)) for name, item in x.items()])
    if isinstance(x, Tensor | Spec):
        # Only the module takes such tensors.
        return kind
    tree, tensors = Tree.of(x)
    if (strange := tree.strange) is not None:
        return strange
    return tree.key, tuple([_key(tensor) for tensor in tensors])


@final
class ModuleForm(CallForm):
    """One structure of a module's arguments."""

    def __init__(self, call: ModuleCall, tree: Tree, is_flat: bool) -> None:
        self._call, self._tree, self._is_flat = call, tree, is_flat

    @property
    def source(self) -> FlatCall:
        """The module as it is now, with flat arguments and results."""
        return self._call.flat()

    def arrays(self, arguments: Arguments, named: Named) -> Arguments:
        """Return the tensors of a call as arrays that share their memory."""
        tensors = arguments if self._is_flat else self._tensors(arguments, named)
        if self._call.updated:
            _begin_writing(tensors, self._call.updated, self._call.memory)
        return tuple([call_array(x) for x in tensors])

    def _tensors(self, arguments: Arguments, named: Named) -> Sequence[Any]:
        return Tree.of((arguments, named))[1]

    def note(self, arguments: Arguments, named: Named, result: Any) -> None:
        """Note what the module returned."""
        self._call.note(arguments, named, result)

    def restorer(self, arguments: Arguments, named: Named) -> Restore:
        """Return what makes results of arrays."""
        results = self._call.results(arguments, named)
        if results.problem is not None:
            raise TraceError(results.problem)
        if results.is_tensor:
            return _only_tensor
        if (row := results.row) is not None:
            # As Dynamo's graphs return them; the way through the tree takes as long as a tiny call.
            count = len(results.tree.parts)
            # The new values of arguments that are written to come last.
            return lambda outputs, arguments, named: row(map(result_tensor, outputs[:count]))

        def restore(outputs: Sequence[Array], arguments: Arguments, named: Named) -> Any:
            tensors = [result_tensor(output) for output in outputs]
            return results.restore(tensors, lambda: self._tensors(arguments, named))

        return restore


def _only_tensor(outputs: Sequence[Array], arguments: Arguments, named: Named) -> Tensor:
    return result_tensor(outputs[0])


def _begin_writing(
    tensors: Sequence[Any], places: Sequence[int], owned: Container[int | None]
) -> None:
    """Count a write to some tensors of a call, as PyTorch does.

    ValueError if any two overlap, or one is in memory that the module owns.
    """
    found = [x for x in tensors if isinstance(x, Tensor) and x.numel()]
    spans = sorted((x.data_ptr(), x.data_ptr() + _span(x)) for x in found)
    if any(second[0] < first[1] for first, second in pairwise(spans)):
        raise ValueError("Two arguments share memory, and one of them is written to.")
    written = [tensors[place] for place in places if isinstance(tensors[place], Tensor)]
    if any(x.untyped_storage().data_ptr() in owned for x in written):
        raise ValueError("An argument that is written to is a view of a parameter or buffer.")
    _increment_version([x for x in written if not x.is_inference()])


def _span(tensor: Tensor) -> int:
    """Return the bytes from the first element of a tensor to the end of its last."""
    if tensor.is_contiguous():
        return int(tensor.nbytes)
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return int((1 + sum((size - 1) * step for size, step in steps)) * tensor.itemsize)


@final
class ModuleCalling(Calling):
    """Calls one module; ``exported`` is the program that it was made of, if there is one."""

    def __init__(self, module: nn.Module, exported: Any = None) -> None:
        self._module, self._exported = module, exported
        self._forms: dict[Any, ModuleForm] = {}
        # It computes gradients itself, so it cannot run without them.
        self._needs_gradients = False

    @staticmethod
    def of_exported(exported: Any) -> ModuleCalling:
        """Return how an exported program is called."""
        module = exported.module()
        for part in module.modules():
            # It was exported in the mode that it has, and nothing looks at the flag.
            part.training = False
        return ModuleCalling(module, exported)

    @property
    def name(self) -> str:
        """The name of the module's class."""
        return type(self._module).__name__

    def key(self, arguments: Arguments, named: Named) -> Hashable:
        """Return the key of a call."""
        keys = [_tensor_key(x) if type(x) is Tensor else _key(x) for x in arguments]
        if named:
            keys += [(name, _key(x)) for name, x in named.items()]
        modes = _dispatch_modes(), forward_ad._current_level, _transforms()
        return _is_autocast("cpu"), modes, tuple(keys)

    def call(self, arguments: Arguments, named: Named) -> Any:
        """Call the module."""
        return self._module(*arguments, **named)

    def infer(self, arguments: Arguments, named: Named) -> Any:
        """Call the module without recording what gradients would need."""
        if self._needs_gradients or not _is_grad_enabled() or self._module.training:
            return self._module(*arguments, **named)
        _set_grad_enabled(False)
        try:
            return self._module(*arguments, **named)
        except RuntimeError as error:
            if _NO_GRADIENT not in str(error):
                raise
            self._needs_gradients = True
        finally:
            _set_grad_enabled(True)
        return self._module(*arguments, **named)

    def mode(self) -> str | None:
        """Say why the module must answer as long as it is in its mode."""
        if self._needs_gradients:
            return f"{self.name} computes gradients of its own."
        parts = list(self._module.modules())
        if any(part.training for part in parts):
            return f"{self.name} is in training mode; call eval() to have engines answer."
        if any(map(_is_observed, parts)):
            return f"{self.name} has forward hooks, which an engine would not call."
        return None

    def refusal(self, arguments: Arguments, named: Named) -> str | None:
        """Say why only the module can answer calls with the key of this one."""
        if _is_autocast("cpu"):
            return "Autocast is on, which engines do not follow."
        if _dispatch_modes():
            return "The call is traced, or made in a mode of PyTorch that takes over its operators."
        if forward_ad._current_level >= 0 or _transforms() is not None:
            return "The call is differentiated or mapped by torch.func or forward_ad."
        tree, tensors = Tree.of((arguments, named))
        if (strange := tree.strange) is not None:
            return (
                f"An argument is a {strange.__name__}, which is neither a tensor nor a plain value "
                "that can be part of a program."
            )
        return next(filter(None, map(_tensor_refusal, tensors)), None)

    def form(self, arguments: Arguments, named: Named) -> ModuleForm:
        """Return the form of a call."""
        tree, tensors = Tree.of((arguments, named))
        key = tree.key
        if key not in self._forms:
            is_flat = not named and len(tensors) == len(arguments) == len(tree.parts)
            is_flat = is_flat and all(isinstance(x, Tensor | Spec) for x in arguments)
            call = ModuleCall(self._module, tree, self.infer, self.key, self._exported)
            self._forms[key] = ModuleForm(call, tree, is_flat)
        return self._forms[key]

    def guard(self) -> StateGuard:
        """Note the state of the module; EngineError if its parts are like no others."""
        return guarded(self.name, "load", "its parts", ModuleState, self._module)

    def results(self, result: Any) -> dict[str, Any]:
        """Return the tensors of a result, by name."""
        tree, tensors = Tree.of(result)
        return dict(zip((name or "output" for name in tree.names()), tensors, strict=True))


def _is_observed(part: nn.Module) -> bool:
    """Tell whether a module has hooks, beside PyTorch's own: these make or check parameters."""
    hooks = (*part._forward_hooks.values(), *part._forward_pre_hooks.values())
    return not all((getattr(hook, "__module__", "") or "").startswith("torch.") for hook in hooks)


def _tensor_refusal(tensor: Any) -> str | None:
    kind = type(tensor)
    if kind is Spec:
        return None
    if kind is not Tensor and kind is not nn.Parameter:
        return f"An argument is a {kind.__name__}, a kind of tensor of its own."
    if tensor.requires_grad and _is_grad_enabled():
        return "An argument requires a gradient, which engines do not compute."
    if not tensor.is_cpu:
        return f"An argument is on {tensor.device}, and engines take tensors on the CPU."
    return None
