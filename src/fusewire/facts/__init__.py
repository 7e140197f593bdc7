"""What integers a graph holds: their elements, ranges and roles, and what is proven of them.

Values that ops declare it with (``Range``, ``Interval``, ``Requirement``) are in ``fusewire.ops``.
"""
