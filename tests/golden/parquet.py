#!/usr/bin/env python3
"""Writes tests/golden/parquet: the same rows in each encoding, codec and version of pages, by pyarrow, polars, duckdb and carquet, and as JSON lines.

    FOLDER/venv/bin/python tests/golden/parquet.py     with the environment that tests/golden/check_parquet.py makes in FOLDER

tests/data/test_parquet.c packs each file, and expects the shard of the JSON lines. refused/ has files that smelt refuses, named after what it says."""
import datetime
import json
import os

import carquet
import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "parquet")
WORDS = ["alpha", "beta", "gamma", "d\u00e9j\u00e0 vu", "\U0001f600 \"quoted\"\\\n", "common start: one", "common start: two", None, "", "x" * 300]
TEXTS = [{"id": i, "text": (WORDS[i % 7] or "") + str(i // 9) if i % 5 else WORDS[i % 10], "score": i / 8, "flag": [True, False, None][i % 3]} for i in range(40)]
CALL = [{"function": {"name": "f", "arguments": {"city": None, "days": -3, "share": 0.1, "big": 1 << 60, "odd": True}}}]
CHATS = [{"messages": [{"role": "system", "content": "Be brief.", "tool_calls": None}, {"role": "user", "content": WORDS[i % 7] + str(i), "tool_calls": None},
                       {"role": "assistant", "content": f"answer {i}", "tool_calls": CALL if i % 4 == 0 else None}][i % 2:],
          "label": [True, None][i % 2], "note": "not read"} for i in range(24)] + [{"messages": [], "label": True, "note": None}, {"messages": None, "label": None, "note": None}]


def lines(name, rows):
    with open(os.path.join(ROOT, name), "w") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def texts(name, table=None, **options):
    pq.write_table(table or pa.Table.from_pylist(TEXTS), os.path.join(ROOT, "texts-" + name + ".parquet"), **{"row_group_size": 17, "store_schema": False, "write_statistics": False} | options)


def chats(name, **options):
    pq.write_table(pa.Table.from_pylist(CHATS), os.path.join(ROOT, "chats-" + name + ".parquet"), **{"row_group_size": 11, "store_schema": False, "write_statistics": False} | options)


def refused(name, table, **options):
    pq.write_table(table, os.path.join(ROOT, "refused", name + ".parquet"), **{"store_schema": False} | options)


LISTS = [{"id": i, "input_ids": [(i * 7 + j * j) % 256 for j in range(i % 11)] if i % 9 else None, "mask": [1] * (i % 3)} for i in range(60)] + [{"id": 60, "input_ids": [1, 99999], "mask": []}]


def main():
    os.makedirs(os.path.join(ROOT, "refused"), exist_ok=True)
    lines("texts.jsonl", TEXTS)
    lines("chats.jsonl", CHATS)
    for codec in ("none", "snappy", "gzip", "zstd", "lz4"):
        texts(f"dictionary-{codec}", compression=codec)
        texts(f"plain-{codec}-v2", compression=codec, use_dictionary=False, data_page_version="2.0", data_page_size=200, write_batch_size=5)
    for encoding in ("DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"):
        texts(encoding.lower().replace("_", "-"), use_dictionary=False, column_encoding={"text": encoding}, write_page_checksum=True)
        texts(encoding.lower().replace("_", "-") + "-v2", use_dictionary=False, column_encoding={"text": encoding}, data_page_version="2.0", compression="zstd")
    texts("fallback", dictionary_pagesize_limit=60, data_page_size=60, write_batch_size=4)
    texts("categories", pa.Table.from_pylist(TEXTS).set_column(1, "text", pa.array([row["text"] for row in TEXTS]).dictionary_encode()))
    duck, polar = pa.Table.from_pylist(TEXTS), polars.DataFrame(TEXTS)
    duckdb.sql(f"copy duck to '{ROOT}/texts-duckdb.parquet' (format parquet, parquet_version v2, compression lz4_raw)")
    polar.write_parquet(f"{ROOT}/texts-polars.parquet", compression="zstd", row_group_size=13)
    carquet.write_table(duck, f"{ROOT}/texts-carquet.parquet", compression="snappy", row_group_size=13, store_schema=False)
    chats("dictionary")
    chats("plain-v2", use_dictionary=False, data_page_version="2.0", data_page_size=50, write_batch_size=3, compression="lz4")
    chats("deltas", use_dictionary=False, compression="zstd", column_encoding={"messages.list.element.tool_calls.list.element.function.arguments.days": "DELTA_BINARY_PACKED",
                                                                               "messages.list.element.content": "DELTA_BYTE_ARRAY", "label": "RLE"})
    polars.DataFrame(CHATS).write_parquet(f"{ROOT}/chats-polars.parquet", compression="gzip", row_group_size=9)
    lists = os.path.join(ROOT, "..", "token_lists")
    os.makedirs(lists, exist_ok=True)
    with open(os.path.join(lists, "rows.jsonl"), "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in LISTS)
    pq.write_table(pa.Table.from_pylist(LISTS), os.path.join(lists, "rows.parquet"), row_group_size=17, data_page_size=64, write_batch_size=3, compression="zstd")
    refused("text is a list", pa.table({"text": [["a"], ["b"]]}))
    refused("text is a struct", pa.table({"text": [{"a": "b"}]}))
    refused("text is a number", pa.table({"text": [1, 2]}))
    refused("text is a boolean", pa.table({"text": [True, None]}))
    refused("text is null in every row", pa.table({"text": pa.nulls(2), "id": [1, 2]}))
    refused("pass format=chat to smelt data pack", pa.table({"text": pa.nulls(1), "messages": [[{"role": "user", "content": "a"}]]}))
    refused("several columns named text", pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"]))
    refused("text is compressed by brotli", pa.table({"text": ["a"]}), compression="brotli")
    refused("text is of type FIXED_LEN_BYTE_ARRAY", pa.table({"text": pa.array([b"ab"], pa.binary(2))}))
    refused("text is of type INT96", pa.table({"text": [datetime.datetime(2020, 1, 1)]}), use_deprecated_int96_timestamps=True)
    refused("its columns are body, id", pa.table({"body": ["a"], "id": [1]}))


if __name__ == "__main__":
    main()
