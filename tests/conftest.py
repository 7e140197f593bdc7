"""What holds for all tests."""

import os

from hypothesis import HealthCheck, settings

# How long an example takes says how busy the machine is, and nothing about the code.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

# What an earlier run left behind decides nothing; tests of the store bring a folder of their own.
os.environ["FUSEWIRE_CACHE"] = "off"
