"""The identity and options of the OpenVINO backend. Must never import the engine."""

from fusewire.contract.backend import (
    CALIBRATED,
    EXACT_NODES,
    NAN,
    BackendInfo,
    BackendOption,
    Config,
    Fact,
    fitted_sizes_option,
    nan_option,
)
from fusewire.process.wheels import installed

INFO = BackendInfo(
    name="openvino",
    version=installed("openvino") or "none",
    description="OpenVINO, on all that it lists; compiled for any input size, and for known ones.",
    vendor="Intel",
    extra="openvino",
)
PRECISIONS = ("f32", "bf16", "f16", "int8")
BLOCKS = (128, 32)
OPTIONS = (
    nan_option(),
    BackendOption(
        "precision",
        PRECISIONS[0],
        'What float32 is computed in: "f32", or "bf16" or "f16" where the device has '
        'instructions for it; "int8" rounds weights of matrix products, and what they are '
        "multiplied with.",
        PRECISIONS,
    ),
    BackendOption(
        "block",
        BLOCKS[0],
        "With int8, how many elements of a sum share a scale: 128 or 32.",
        BLOCKS,
    ),
    fitted_sizes_option(),
    BackendOption(CALIBRATED, (), "Ranges of layers in int8; calibrate writes it."),
    BackendOption(
        EXACT_NODES, "", "With int8, places of the matrix products that stay exact, such as 3,7-9."
    ),
)
# Options that an artifact is built with.
_BUILT_WITH = (NAN, "precision", "block")


def launch_of(config: Config) -> dict[str, Fact]:
    """Give what an artifact is built and run with; as little as there is to say."""
    options = config.checked(INFO.name, OPTIONS)
    launch: dict[str, Fact] = {} if config.threads is None else {"threads": config.threads}
    for option in OPTIONS:
        if option.name in _BUILT_WITH and options[option.name] != option.default:
            launch[option.name] = options[option.name]
    if lines := options[CALIBRATED]:
        launch[CALIBRATED] = lines
    if options[EXACT_NODES]:
        launch[EXACT_NODES] = str(options[EXACT_NODES])
    return launch
