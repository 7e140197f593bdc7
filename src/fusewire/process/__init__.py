"""Engines at arm's length: child processes, framed bytes, and the guard around engine calls."""
