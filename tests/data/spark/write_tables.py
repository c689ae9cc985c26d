"""Writes the files of this folder with Spark: see README.md beside it.

    python tests/data/spark/write_tables.py ICEBERG.jar FOLDER

FOLDER is made, and gets the files; the tables know it by its absolute path. Without a jar plain
Parquet is written to it, and stays there.
"""

from __future__ import annotations

import json
import re
import shutil
import struct
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CODES = {3: 5, 4: 5, 5: 9, 6: 9, 7: 3, 8: 3, 9: 5, 10: 5, 11: 5, 12: 5, 15: 4, 16: 3, 17: 5}
CODES |= {18: 5, 19: 3, 20: 3}  # bytes of each constant of a Java class, by its kind

PLAIN = "com/fasterxml/jackson"
MOVED = "org/apache/iceberg/shaded/com/fasterxml/jackson"  # where the jar of Iceberg looks for it

EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"

SOURCE = """
select id, id * 7 % 100 / 100 as x,
element_at(array('a', 'b', 'c d'), cast(id % 3 + 1 as int)) as k,
timestamp '2024-01-01' + make_interval(0, 0, 0, 0, cast(id as int)) as t, id * 7 % 100 > 50 as y,
cast(id % 7 as decimal(10, 2)) as price, if(id % 5 = 0, null, id * 1.5) as n from range(60)
"""


def write_plain(spark: Any, folder: Path) -> None:
    """Write plain Parquet: by partitions, with zstd, and with times of 96 bits."""
    rows = spark.sql(SOURCE)
    rows.repartition(3).write.partitionBy("k").parquet(str(folder / "partitioned"))
    rows.write.option("compression", "zstd").parquet(str(folder / "zstd"))
    spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    rows.write.parquet(str(folder / "int96"))


def write_iceberg(spark: Any, folder: Path, name: str, version: int, mode: str) -> None:
    """Write a table of Iceberg step by step; `steps.json` has the metadata and ids of each."""
    table = f"tables.n.{name}"
    steps: list[dict[str, Any]] = []

    def insert(first: int, last: int) -> None:
        spark.sql(
            f"insert into {table} select cast(id as double), concat('k', id % 3), id % 2 "
            f"from range({first}, {last})"
        )

    def compact() -> None:
        options = "map('rewrite-all', 'true', 'delete-file-threshold', '1')"
        spark.sql(
            f"call tables.system.rewrite_data_files(table => 'n.{name}', options => {options})"
        ).collect()

    def step(what: str) -> None:
        found = (folder / "n" / name / "metadata").glob("v*.metadata.json")
        newest = max(found, key=lambda path: int(re.findall(r"\d+", path.name)[0]))
        ids = [row[0] for row in spark.sql(f"select id from {table} order by id").collect()]
        steps.append({"step": what, "metadata": newest.name, "ids": ids})

    properties = {"format-version": version, "write.parquet.compression-codec": "zstd"}
    properties |= {f"write.{what}.mode": mode for what in ("delete", "update", "merge")}
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    spark.sql(f"create table {table} (id double, k string, y bigint) using iceberg "
              f"tblproperties ({listed})")  # fmt: skip
    insert(0, 6)
    insert(6, 12)
    step("start")
    insert(12, 18)
    step("append")
    compact()
    step("compaction")
    insert(18, 24)
    spark.sql(f"delete from {table} where id in (3, 8)")
    step("append, delete of learned rows")
    spark.sql(f"update {table} set id = id + 100 where id = 5")
    step("update of a learned row")
    compact()
    step("compaction of what was changed")
    insert(24, 30)
    step("append again")
    spark.sql(
        f"merge into {table} t using (select cast(id as double) id, 'k9' k, 1L y from "
        "range(28, 32)) s on t.id = s.id when matched then update set k = s.k "
        "when not matched then insert *"
    )
    step("merge of two learned rows and two new ones")
    spark.sql(f"alter table {table} add column z double")
    spark.sql(f"insert into {table} select cast(id as double), 'k1', 1L, 2.0 from range(40, 44)")
    step("append with a new column")
    about = {"folder": str(folder), "steps": steps}
    (folder / "n" / name / "steps.json").write_text(json.dumps(about, indent=1))


def relocated(jars: Path, out: Path) -> None:
    """Write a jar with the Jackson of Spark under the name by which Iceberg looks for it."""
    with zipfile.ZipFile(out, "w") as made:
        for jar in sorted(jars.glob("jackson-*.jar")):
            if not re.match(r"jackson-(core|databind|annotations)-2", jar.name):
                continue
            with zipfile.ZipFile(jar) as found:
                for name in found.namelist():
                    if name.startswith(PLAIN) and name.endswith(".class"):
                        moved = name.replace(PLAIN, MOVED, 1)
                        made.writestr(moved, b"".join(_moved(found.read(name))))


def _moved(code: bytes) -> Iterator[bytes]:
    """Yield the parts of a Java class with other names in its table of constants."""
    (n_constants,) = struct.unpack(">H", code[8:10])
    yield code[:10]
    at, number = 10, 1
    while number < n_constants:
        kind = code[at]
        if kind == 1:  # a text
            (size,) = struct.unpack(">H", code[at + 1 : at + 3])
            text = code[at + 3 : at + 3 + size]
            for sign in ("/", "."):
                names = (one.replace("/", sign).encode() for one in (PLAIN, MOVED))
                text = text.replace(*names)
            yield b"\1" + struct.pack(">H", len(text)) + text
            at += 3 + size
        else:
            yield code[at : at + CODES[kind]]
            at += CODES[kind]
        number += 2 if kind in (5, 6) else 1
    yield code[at:]


def pack(folder: Path, out: Path) -> None:
    """Write the files of a folder, without Hadoop's checksums, as one archive."""
    with tarfile.open(out, "w:xz", preset=9) as made:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.suffix != ".crc" and not path.name.startswith("_"):
                about = tarfile.TarInfo(path.relative_to(folder).as_posix())
                about.size = path.stat().st_size
                made.addfile(about, BytesIO(path.read_bytes()))


def main() -> None:
    """Write all."""
    import pyspark
    from pyspark.sql import SparkSession

    *jars, folder = (Path(text).absolute() for text in sys.argv[1:])
    folder.mkdir()
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.session.timeZone": "UTC",
    }
    if jars:
        jackson = folder / "jackson.jar"
        relocated(Path(pyspark.__file__).parent / "jars", jackson)
        settings |= {
            "spark.jars": f"{jars[0]},{jackson}",
            "spark.sql.extensions": EXTENSIONS,
            "spark.sql.catalog.tables": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.tables.type": "hadoop",
            "spark.sql.catalog.tables.warehouse": str(folder),
        }
    builder = SparkSession.builder.master("local[1]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    write_plain(spark, folder)
    if not jars:
        return
    for name, version, mode in (
        ("cow", 2, "copy-on-write"),
        ("mor", 2, "merge-on-read"),
        ("dv", 3, "merge-on-read"),
    ):
        write_iceberg(spark, folder, name, version, mode)
        pack(folder / "n" / name, HERE / f"{name}.tar.xz")
    for name in ("partitioned", "zstd", "int96"):
        pack(folder / name, HERE / f"{name}.tar.xz")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
