"""Engines behind the contract, found by entry point; each in a folder of its own."""
