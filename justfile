# What there is to do here: `just` lists it. Each task uses .venv, which `just setup` makes.

export PATH := justfile_directory() / ".venv/bin:" + env("PATH")

_list:
    @just --list --unsorted

# Make .venv, with every engine and the tools
setup:
    .ci/setup

# Tests after every edit, in under two minutes: without PyTorch, jax and Ray
[no-exit-message]
smoke *ARGS:
    pytest --numprocesses 2 -m "not (slow or torch or xla or ray or webgpu or triton)" {{ARGS}} \
        tests/architecture tests/ir tests/facts tests/rewrite tests/ops tests/frontends \
        tests/platforms/test_smoke.py

# Tests of what differs from main, or from a commit
changed BASE="" *ARGS:
    tests=$(python -m tests.changed {{BASE}}) && { [ -z "$tests" ] || pytest $tests {{ARGS}}; }

# Where Python is told to write no bytecode, thousands of children would each compile the package.
_bytecode:
    @python -m compileall -q src tests benchmarks

# Each process keeps to its half of the files, whose fixtures it has, until the other has nothing
# left.
#
# All tests; what fails runs again, and is named if it passes: a machine may be busy
[no-exit-message]
full *ARGS: _bytecode
    pytest --numprocesses 2 --dist worksteal --reruns 1 -rR --durations 40 --durations-min 5 \
        --junitxml build/tests.xml {{ARGS}}

# Where the time of the last full run went, or of another: a junit file, or what pytest printed
minutes FILE="build/tests.xml" *ARGS:
    python -m tests.minutes {{FILE}} {{ARGS}}

# Tests where extras are not installed: names with commas between them, or "all"
[no-exit-message]
without EXTRAS *ARGS:
    python -m tests.environments build/without {{EXTRAS}}
    PATH="$PWD/build/without/bin:$PATH" python -m pytest {{ARGS}}

# Style
lint:
    ruff check .
    ruff format --check .

# Types, here and as on the two other systems, which have caches of their own
types:
    mypy
    mypy --platform darwin --cache-dir .mypy_cache/darwin src examples docs
    mypy --platform win32 --cache-dir .mypy_cache/win32 src examples docs

# The code's size and structure
house: _bytecode
    python benchmarks/house.py

# The documentation as a site, in build/site
docs: _bytecode
    python -m sphinx -q -W --keep-going -c docs . build/site
