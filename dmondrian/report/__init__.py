"""A run as one page: what was trained on what, how well, how fast, and how to train it again.

Runs side by side: what differs, and which forecast better where that can be known.

Relies on run folders alone, finished or in progress. Promises a page of one file that opens
without a network: no script, no picture or font from elsewhere.
"""

from dmondrian.report.comparison import compare_runs
from dmondrian.report.comparison_page import write_comparison
from dmondrian.report.page import write_report

__all__ = ["compare_runs", "write_comparison", "write_report"]
