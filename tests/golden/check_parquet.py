#!/usr/bin/env python3
"""Compares smelt's reader of Parquet with pyarrow on random files, which pyarrow, polars, duckdb and carquet write.

    tests/golden/check_parquet.py FOLDER [--smelt build/smelt] [--files 500] [--seed 1] [--keep]     makes FOLDER/venv and fetches the packages (450 MB), once

Schemas, sizes of row groups and pages, versions of pages, encodings, codecs, nulls and dictionaries vary. `smelt data pack` of a file must give the texts
that pyarrow reads, byte by byte; of conversations and pairs of answers it must give the same shards as the JSON lines that Python's json makes of pyarrow's
rows. Real-shaped sets come first: FineWeb's columns, nanochat's, SmolTalk's. Prints a line for each file that differs, then counts; fails where one differs."""
import argparse
import collections
import json
import os
import random
import shutil
import subprocess
import sys

PEERS = ["pyarrow==26.0.1", "polars==2.1.0", "duckdb==2.0.1", "carquet==0.7.2"]
SEPARATOR = 256  # the byte tokenizer's end of a document


def environment(folder):
    """Runs this script again in FOLDER/venv, with the peers in place."""
    python = os.path.join(folder, "venv/bin/python")
    if not os.path.exists(os.path.join(folder, "ready")):
        subprocess.run([sys.executable, "-m", "venv", os.path.join(folder, "venv")], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q"] + PEERS, check=True)
        open(os.path.join(folder, "ready"), "w").close()
    if os.path.realpath(sys.prefix) != os.path.realpath(os.path.join(folder, "venv")):
        os.execv(python, [python] + sys.argv)


# -- Values -----------------------------------------------------------------------------------------------------------------------------------

WORDS = "the of and to in a is that it was for on are with as his they at be this have from or one had by word but not what all were we when".split()


def sentence(rng, words):
    return " ".join(rng.choice(WORDS) for _ in range(words))


def text(rng):
    kind = rng.random()
    if kind < 0.05:
        return ""
    if kind < 0.1:
        return "\u00e9\U0001f600\n\t\"\\\u0001" * rng.randrange(1, 5)
    if kind < 0.12:
        return sentence(rng, rng.randrange(1000, 20000))
    return sentence(rng, rng.randrange(1, 60)) + rng.choice(["", "\n", " \u2013 caf\u00e9"])


def texts(rng, count):
    """Texts, some null, with as many repetitions as a dictionary wants, or with common beginnings."""
    nulls = rng.choice([0, 0, 0.01, 0.3, 1 if rng.random() < 0.2 else 0])
    few = [text(rng) for _ in range(rng.choice([1, 3, 50, max(count, 1), max(count, 1)]))]
    start = sentence(rng, 8) if rng.random() < 0.2 else ""
    run, found = None, []
    for _ in range(count):
        run = run if run is not None and rng.random() < 0.3 else rng.choice(few)
        found.append(None if rng.random() < nulls else start[:rng.randrange(len(start) + 1)] + run)
    return found


def content(rng):
    return rng.choice([None, "", 5]) if rng.random() < 0.02 else text(rng) or "x"


def message(rng, role, extra):
    made = {"role": role, "content": content(rng)}
    if made["content"] == 5:
        made["content"] = None
    if extra == "calls":
        calls = [{"function": {"name": "f", "arguments": {"city": rng.choice([None, "here"]), "days": rng.randrange(9), "exact": rng.random() < 0.5}}} for _ in range(rng.randrange(3))]
        made["tool_calls"] = rng.choice([None, calls])
    if extra == "null":
        made["tool_calls"] = None
    if extra == "train":
        made["weight"] = rng.choice([None, 1, 1, 1, 0])
    return made


def conversation(rng, extra):
    if rng.random() < 0.03:
        return rng.choice([None, []])
    made = [message(rng, "system", extra)] if rng.random() < 0.3 else []
    for _ in range(rng.randrange(1, 5)):
        made += [message(rng, "user", extra), message(rng, "assistant", extra)]
    return made


def records(rng, count):
    """Rows of conversations or pairs of answers in one of their forms, and the format of smelt data pack."""
    form = rng.choice(["messages", "messages", "messages", "prompt", "lists", "alpaca", "pairs", "pair lists"])
    extra = rng.choice(["", "", "null", "calls", "train"])
    rows = []
    for _ in range(count):
        row = {"id": rng.randrange(1000)}
        if form == "messages":
            row["messages"] = conversation(rng, extra)
        elif form == "prompt":
            row |= {"prompt": text(rng), "completion": text(rng)}
        elif form == "lists":
            row |= {"prompt": [{"role": "user", "content": text(rng)}], "completion": [{"role": "assistant", "content": text(rng) or "x"}]}
        elif form == "alpaca":
            row |= {"instruction": text(rng), "input": rng.choice([None, text(rng)]), "output": text(rng)}
        elif form == "pairs":
            row |= {"prompt": text(rng) or "q", "chosen": text(rng), "rejected": text(rng), "label": rng.choice([True, True, None])}
        else:
            asked = [{"role": "user", "content": text(rng)}]
            row |= {"chosen": asked + [{"role": "assistant", "content": text(rng)}], "rejected": asked + [{"role": "assistant", "content": text(rng)}]}
        rows.append(row)
    return rows, "preference" if form.startswith("pair") else "chat"


# -- Files ------------------------------------------------------------------------------------------------------------------------------------


def other_columns(rng, count):
    """Columns that smelt passes over, some of types that it does not read."""
    import datetime
    import decimal

    import pyarrow as pa
    kinds = {
        "id": lambda: pa.array([f"<urn:uuid:{rng.getrandbits(64):x}>" for _ in range(count)]),
        "score": lambda: pa.array([rng.random() for _ in range(count)], pa.float64()),
        "language_score": lambda: pa.array([rng.choice([None, rng.random()]) for _ in range(count)], pa.float32()),
        "token_count": lambda: pa.array([rng.randrange(1 << 40) for _ in range(count)], pa.int64()),
        "flag": lambda: pa.array([rng.choice([None, True, False]) for _ in range(count)]),
        "time": lambda: pa.array([datetime.datetime(2020, 1, 1 + rng.randrange(28)) for _ in range(count)], pa.timestamp("us")),
        "price": lambda: pa.array([decimal.Decimal(rng.randrange(1000)) for _ in range(count)], pa.decimal128(10, 2)),
        "ids": lambda: pa.array([[rng.randrange(50000) for _ in range(rng.randrange(5))] for _ in range(count)], pa.list_(pa.int32())),
        "meta": lambda: pa.array([{"a": rng.randrange(9), "b": {"c": sentence(rng, 2)}} for _ in range(count)]),
        "nothing": lambda: pa.nulls(count),
    }
    names = rng.sample(sorted(kinds), rng.randrange(5))
    return {name: kinds[name]() for name in names}


def write_pyarrow(rng, table, path, column):
    import pyarrow as pa
    import pyarrow.parquet as pq
    options = {
        "compression": rng.choice(["NONE", "SNAPPY", "GZIP", "ZSTD", "LZ4"]),
        "data_page_version": rng.choice(["1.0", "2.0"]),
        "data_page_size": rng.choice([100, 4000, 100000, 1 << 20]),
        "row_group_size": rng.choice([1, 7, 100, 1000, 1 << 20]) if table.num_rows < 500 else rng.choice([100, 1000, 1 << 20]),
        "write_statistics": rng.random() < 0.7,
        "write_page_checksum": rng.random() < 0.4,
        "write_page_index": rng.random() < 0.3,
        "dictionary_pagesize_limit": rng.choice([50, 5000, 1 << 20]),
        "write_batch_size": rng.choice([3, 100, 1024]),
        "store_schema": rng.random() < 0.5,
    }
    options["use_dictionary"] = rng.random() < 0.5
    simple = column and not pa.types.is_dictionary(table.schema.field(column).type)
    if not options["use_dictionary"] and simple and rng.random() < 0.7:
        options["column_encoding"] = {column: rng.choice(["PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"])}
    if not column and not options["use_dictionary"] and rng.random() < 0.5:
        options["column_encoding"] = {"id": "DELTA_BINARY_PACKED"}
    pq.write_table(table, path, **options)
    return "pyarrow " + str({k: v for k, v in options.items() if not isinstance(v, bool)})


def write_polars(rng, table, path):
    import polars
    options = {"compression": rng.choice(["uncompressed", "snappy", "gzip", "zstd", "lz4"]), "row_group_size": rng.choice([None, 50, 1000]),
               "data_page_size": rng.choice([None, 1000, 100000]), "statistics": rng.random() < 0.5}
    polars.from_arrow(table).write_parquet(path, **options)
    return f"polars {options}"


def write_duckdb(rng, table, path):
    import duckdb
    codec, version = rng.choice(["uncompressed", "snappy", "gzip", "zstd", "lz4_raw"]), rng.choice(["V1", "V2"])
    size = rng.choice([2048, 122880])
    rows = table  # noqa: F841: duckdb finds it by its name
    duckdb.sql(f"copy rows to '{path}' (format parquet, compression {codec}, parquet_version {version}, row_group_size {size})")
    return f"duckdb {codec} {version} {size}"


def write_carquet(rng, table, path):
    import carquet
    options = {"compression": rng.choice(["none", "snappy", "gzip", "zstd", "lz4"]), "row_group_size": rng.choice([50, 1000, None]),
               "data_page_version": rng.choice([1, 2]), "write_crc": rng.random() < 0.5}
    carquet.write_table(table.drop_columns([name for name in ("nothing", "price") if name in table.column_names]), path, **options)  # it fails at these types
    return f"carquet {options}"


def write(rng, table, path, column):
    """Writes a table by one of the programs; returns which one, and how."""
    writer = rng.choices([write_polars, write_duckdb, write_carquet, None], [2, 2, 2, 6])[0]
    try:
        return writer(rng, table, path) if writer else write_pyarrow(rng, table, path, column)
    except Exception as refused:  # not every program writes every type
        print(f"note: {writer.__name__ if writer else 'write_pyarrow'}: {str(refused)[:120]}")
        return write_pyarrow(rng, table, path, column)


# -- Comparing --------------------------------------------------------------------------------------------------------------------------------


def pack(smelt, source, output, *settings):
    done = subprocess.run([smelt, "data", "pack", source, output, "overwrite=true", *settings], capture_output=True, text=True, errors="replace")
    errors = [line for line in done.stderr.splitlines() if line.startswith("error")]
    return done.returncode, (errors or done.stderr.splitlines() or [""])[0]


def documents(prefix):
    with open(prefix + ".bin", "rb") as file:
        tokens = memoryview(file.read()).cast("H").tolist()
    found, start = [], 0
    for at, token in enumerate(tokens):
        if token == SEPARATOR:
            found.append(bytes(tokens[start:at]))
            start = at + 1
    return found


def compare_texts(smelt, path, column):
    import pyarrow.parquet as pq
    values = pq.read_table(path, columns=[column], use_threads=False)[column].to_pylist()
    expected = [value if isinstance(value, bytes) else value.encode() for value in values if value]
    code, error = pack(smelt, path, path + ".out", "invalid=keep", f"field={column}")
    if not expected:
        return None if code == 3 else f"nothing expected, exit code {code}"
    if code:
        return f"exit code {code}: {error}"
    found = documents(path + ".out")
    return None if found == expected else f"{len(found)} texts of {sum(map(len, found))} bytes, expected {len(expected)} of {sum(map(len, expected))}"


def compare_records(smelt, path, format):
    import pyarrow.parquet as pq
    names = [name for name in pq.read_schema(path).names if name not in ("time", "price")]
    rows = pq.read_table(path, columns=names, use_threads=False).to_pylist()
    with open(path + ".jsonl", "w") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    settings = [f"format={format}", "template=" + os.path.join(os.path.dirname(os.path.abspath(__file__)), "parquet/template.jinja")]
    ours, theirs = pack(smelt, path, path + ".out", *settings), pack(smelt, path + ".jsonl", path + ".lines", *settings)
    if ours[0] != theirs[0]:
        return f"exit code {ours[0]} ({ours[1]}), of JSON lines {theirs[0]} ({theirs[1]})"
    for ending in [] if ours[0] else [".bin", ".idx"]:
        if open(path + ".out" + ending, "rb").read() != open(path + ".lines" + ending, "rb").read():
            return f"the shard's {ending} is not that of the JSON lines"
    return None


def random_file(rng, path):
    """Writes a random file. Returns how it was written, and how it is compared."""
    import pyarrow as pa
    count = rng.choice([0, 1, 2, 9, 100, 300, 2000])
    others = other_columns(rng, count)
    if rng.random() < 0.4:
        count = min(count, 300)
        rows, format = records(rng, count)
        table = pa.Table.from_pylist(rows) if rows else pa.table({"messages": pa.array([], pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())])))})
        for name, values in others.items():
            if name not in table.column_names:
                table = table.append_column(name, values[:count])
        return write(rng, table, path, None), lambda smelt: compare_records(smelt, path, format)
    column = rng.choice(["text", "text", "content", "raw_content"])
    values = texts(rng, count)
    kind = rng.choice(["string", "string", "large", "binary", "dictionary", "required"])
    if kind == "binary":
        values = [value and value.encode() + rng.choice([b"", b"\xff\xfe", b"\0"]) for value in values]
    types = {"large": pa.large_string(), "binary": pa.binary(), "dictionary": pa.dictionary(pa.int32(), pa.string())}
    array = pa.array(values, types.get(kind, pa.string()))
    columns = list(others.items())
    columns.insert(rng.randrange(len(columns) + 1), (column, array))
    fields = [pa.field(name, values.type, nullable=name != column or kind != "required" or values.null_count > 0) for name, values in columns]
    return write(rng, pa.Table.from_arrays([values for _, values in columns], schema=pa.schema(fields)), path, column), lambda smelt: compare_texts(smelt, path, column)


# -- Real-shaped sets -------------------------------------------------------------------------------------------------------------------------


def fineweb(rng, count):
    import pyarrow as pa
    rows = [{"text": sentence(rng, rng.randrange(100, 900)), "id": f"<urn:uuid:{rng.getrandbits(128):x}>", "dump": "CC-MAIN-2024-10", "url": f"https://example.org/{i}",
             "date": "2024-02-21T00:00:00Z", "file_path": "s3://commoncrawl/x.warc.gz", "language": "en", "language_score": rng.random(), "token_count": rng.randrange(2000),
             "score": 3 + rng.random(), "int_score": 3} for i in range(count)]
    return pa.Table.from_pylist(rows)


def real_sets(rng, folder):
    """Ten sets as they are on the Hub, written by the programs that made them or convert them."""
    import duckdb
    import polars
    import pyarrow as pa
    import pyarrow.parquet as pq
    web, texts = fineweb(rng, 4000), pa.table({"text": [sentence(rng, rng.randrange(50, 900)) for _ in range(4000)]})
    chats = pa.Table.from_pylist([{"messages": conversation(rng, "") or [message(rng, "user", ""), message(rng, "assistant", "")], "source": "smoltalk"} for _ in range(3000)])
    tools = pa.Table.from_pylist([{"messages": conversation(rng, "calls"), "tools": None} for _ in range(500)])
    pairs = pa.Table.from_pylist([{"prompt": sentence(rng, 9), "chosen": [{"role": "user", "content": "q"}, {"role": "assistant", "content": sentence(rng, 20)}],
                                   "rejected": [{"role": "user", "content": "q"}, {"role": "assistant", "content": sentence(rng, 21)}]} for _ in range(500)])

    def batches(path):  # datatrove's ParquetWriter: a row group for each batch of 1,000
        with pq.ParquetWriter(path, web.schema) as writer:
            for batch in web.to_batches(max_chunksize=1000):
                writer.write_batch(batch)

    sets = {
        "fineweb": (batches, "text"),
        "fineweb-polars": (lambda path: polars.from_arrow(web).write_parquet(path), "text"),
        "fineweb-duckdb": (lambda path: duckdb.from_arrow(web).write_parquet(path), "text"),
        "nanochat": (lambda path: pq.write_table(texts, path, row_group_size=1024, use_dictionary=False, compression="zstd", compression_level=3, write_statistics=False), "text"),
        "dclm": (lambda path: pq.write_table(web.select(["text", "url", "language_score"]), path, compression="gzip"), "text"),
        "smoltalk": (lambda path: pq.write_table(chats, path, row_group_size=1000), "chat"),
        "ultrachat-polars": (lambda path: polars.from_arrow(chats).write_parquet(path), "chat"),
        "smoltalk-duckdb": (lambda path: duckdb.from_arrow(chats).write_parquet(path), "chat"),
        "tools": (lambda path: pq.write_table(tools, path, data_page_version="2.0"), "chat"),
        "ultrafeedback": (lambda path: pq.write_table(pairs, path), "preference"),
    }
    for name, (save, kind) in sets.items():
        path = os.path.join(folder, name + ".parquet")
        save(path)
        compare = (lambda smelt, path=path: compare_texts(smelt, path, "text")) if kind == "text" else (lambda smelt, path=path, kind=kind: compare_records(smelt, path, kind))
        yield name, path, compare


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--smelt", default="build/smelt")
    parser.add_argument("--files", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="keep the files")
    options = parser.parse_args()
    environment(options.folder)
    folder, counts, wrong = os.path.join(options.folder, "files"), collections.Counter(), 0
    os.makedirs(folder, exist_ok=True)

    def judge(name, how, path, compare):
        fault = compare(options.smelt)
        counts[how.split()[0]] += 1
        if fault:
            print(f"{name}: {how}: {fault}", flush=True)
        return bool(fault)

    for name, path, compare in real_sets(random.Random(options.seed), folder):
        wrong += judge(name, "real-shaped", path, compare)
    for i in range(options.files):
        path = os.path.join(folder, f"{options.seed}-{i}.parquet")
        how, compare = random_file(random.Random(f"{options.seed} {i}"), path)
        wrong += judge(f"file {i}", how, path, compare)
        if not options.keep and not wrong:
            for ending in ("", ".jsonl", ".out.bin", ".out.idx", ".out.pack.json", ".lines.bin", ".lines.idx", ".lines.pack.json"):
                if os.path.exists(path + ending):
                    os.remove(path + ending)
            for ending in (".out.tokenizer", ".lines.tokenizer"):
                shutil.rmtree(path + ending, ignore_errors=True)
    print(f"{sum(counts.values())} files ({', '.join(f'{count} {name}' for name, count in sorted(counts.items()))}): {wrong} wrong")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
