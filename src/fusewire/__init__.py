"""Fusewire."""
