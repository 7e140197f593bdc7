"""Profiles of runs: what engines and the host did, as data, files and pages."""
