"""Reasons, tables, pictures and pages of programs and plans."""
