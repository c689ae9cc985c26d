"""A run as one page: what was trained on what, how well, how fast, and how to train it again.

Relies on the run folder alone, finished or in progress. Promises a page of one file that opens
without a network: no script, no picture or font from elsewhere.
"""

from dmondrian.report.page import write_report

__all__ = ["write_report"]
