"""Deciding which region runs where, and why. The runtime executes what is decided here."""
