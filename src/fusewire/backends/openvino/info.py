"""The identity and options of the OpenVINO backend. Must never import the engine."""

from fusewire.contract.backend import BackendInfo, BackendOption, Config, Fact
from fusewire.errors import OptionsError
from fusewire.process.wheels import installed

INFO = BackendInfo(
    name="openvino",
    version=installed("openvino") or "none",
    description="OpenVINO, on all that it lists; compiled once for any input size.",
    vendor="Intel",
    extra="openvino",
)
NAN = ("exact", "engine")
OPTIONS = (
    BackendOption(
        "nan",
        NAN[0],
        'With "exact", NaN and infinities come through as the ops define it; with "engine", as the '
        "engine's own nodes do, which is faster and may lose them.",
    ),
)


def launch_of(config: Config) -> dict[str, Fact]:
    """Give what an artifact is built and run with; as little as there is to say."""
    nan = config.checked(INFO.name, OPTIONS)["nan"]
    if nan not in NAN:
        raise OptionsError(f'{INFO.name} has no nan={nan!r}. It has "exact" and "engine".')
    threads: dict[str, Fact] = {} if config.threads is None else {"threads": config.threads}
    return threads if nan == NAN[0] else {**threads, "nan": nan}
