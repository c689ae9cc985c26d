"""Data: Parquet files as a frozen, numbered stream of encoded rows.

`make_plan` reads a source once and fixes the order of its rows and their encoding;
`read_chunk` turns any chunk of the plan into arrays; `make_scoring_plan` reads other data with the
encoding of a model.
"""

from dmondrian.data.arrivals import Arrivals, Arrived
from dmondrian.data.asked import as_asked, asks_the_same
from dmondrian.data.batch_files import BatchFiles, Position, gives_batches
from dmondrian.data.block_table import Block
from dmondrian.data.chunks import Chunk
from dmondrian.data.common_rows import common_rows
from dmondrian.data.extend import change_between, extend_plan
from dmondrian.data.keyed_lags import KeyedLags, LaggedBatches
from dmondrian.data.label_join import Joined, LabelJoin
from dmondrian.data.lake import list_source
from dmondrian.data.make import make_plan, make_scoring_plan
from dmondrian.data.missing_counts import (
    ROWS_READ,
    count_missing,
    events_of,
    missing_shares,
)
from dmondrian.data.moved import absent_files, place, place_beside, places_of, stored_plan
from dmondrian.data.plan import BLOCK_ROWS, Plan
from dmondrian.data.read import Encoded, read_block, read_blocks, read_chunk
from dmondrian.data.schema import Column, Schema

__all__ = [
    "BLOCK_ROWS",
    "ROWS_READ",
    "Arrivals",
    "Arrived",
    "BatchFiles",
    "Block",
    "Chunk",
    "Column",
    "Encoded",
    "Joined",
    "KeyedLags",
    "LabelJoin",
    "LaggedBatches",
    "Plan",
    "Position",
    "Schema",
    "absent_files",
    "as_asked",
    "asks_the_same",
    "change_between",
    "common_rows",
    "count_missing",
    "events_of",
    "extend_plan",
    "gives_batches",
    "list_source",
    "make_plan",
    "make_scoring_plan",
    "missing_shares",
    "place",
    "place_beside",
    "places_of",
    "read_block",
    "read_blocks",
    "read_chunk",
    "stored_plan",
]
