"""Chaos: training runs that meet faults at seeded moments, and what must hold after each.

``schedule`` draws the faults of a seed, ``workers`` holds worker processes that can be hurt,
``hooks`` is what happens inside them, ``job`` is the coordinator in a process of its own,
``harness`` drives a job through a schedule, and ``verdict`` names what went wrong.
"""
