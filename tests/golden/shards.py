"""Writes tests/golden/shards by the programs that own the formats, and checks that Megatron reads smelt's shards.

    pip install mosaicml-streaming megatron-core
    python tests/golden/shards.py LLM.C LLMQ SMELT    # checkouts of karpathy/llm.c and IST-DASLab/llmq; the program

The six documents are [50256, 0 + d, 7 + d, 14 + d, ...] with 21 + d tokens, d = 0 to 5.
"""

import os
import subprocess
import sys
import tempfile
from typing import Optional

import numpy as np
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
from streaming import MDSWriter

OUTPUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shards")
DOCUMENTS = [[50256] + [7 * k + d for k in range(20 + d)] for d in range(6)]


def write_llmc(checkout):
    sys.path.insert(0, os.path.join(checkout, "dev/data"))
    from data_common import write_datafile

    tokens = sum(DOCUMENTS, [])
    write_datafile(os.path.join(OUTPUT, "llmc_gpt2.bin"), tokens)
    write_datafile(os.path.join(OUTPUT, "llmc_llama3.bin"), [t + 100000 for t in tokens], "llama-3")


def write_llmq(checkout):
    """The writer's class alone: the rest of the script downloads data."""
    source = open(os.path.join(checkout, "scripts/tokenize_data.py")).read()
    names = {"np": np, "Optional": Optional}
    exec(source[source.index("class TokenizedDataFileWriter") : source.index("def init_worker")], names)
    for name, masking in (("llmq", False), ("llmq_masks", True)):
        with names["TokenizedDataFileWriter"](os.path.join(OUTPUT, name + ".bin"), 50257, masking) as file:
            for tokens in DOCUMENTS:
                file.add_document(tokens, np.ones(len(tokens), dtype=bool) if masking else None)


def write_mds():
    bytes_rows = [{"tokens": np.array(d, dtype=np.int64).tobytes()} for d in DOCUMENTS]
    array_rows = [{"tokens": np.array(d[:20], dtype=np.uint16), "id": "d" * i, "n": i} for i, d in enumerate(DOCUMENTS)]
    columns = {"tokens": "ndarray:uint16:20", "id": "str", "n": "int"}
    for name, encodings, rows, compression in (
        ("mds_bytes", {"tokens": "bytes"}, bytes_rows, "zstd"),
        ("mds_array", columns, array_rows, None),
        ("mds_text", {"text": "str"}, [{"text": "no tokens"}], None),
    ):
        with MDSWriter(out=os.path.join(OUTPUT, name), columns=encodings, compression=compression, size_limit=1000) as out:
            for row in rows:
                out.write(row)


def write_megatron():
    for name, kind in (("megatron_u16", np.uint16), ("megatron_i64", np.int64)):
        prefix = os.path.join(OUTPUT, name)
        builder = IndexedDatasetBuilder(prefix + ".bin", dtype=kind)
        for tokens in DOCUMENTS:
            builder.add_document(np.array(tokens), [len(tokens)])
        builder.finalize(prefix + ".idx")


def read_by_megatron(smelt):
    with tempfile.TemporaryDirectory() as folder:
        text = os.path.join(folder, "text")
        open(text, "w").write("one\n%\ntwo and three\n%\nfour")
        subprocess.run([smelt, "data", "pack", text, os.path.join(folder, "s"), "separator=%"], check=True, stdout=subprocess.DEVNULL)
        read = IndexedDataset(os.path.join(folder, "s"))
        documents = [bytes(int(t) for t in read[i][:-1]).decode() for i in range(len(read))]
        assert documents == ["one\n", "two and three\n", "four"], documents
        assert list(read.document_indices) == [0, 1, 2, 3]
        print("Megatron reads smelt's shard")


if __name__ == "__main__":
    os.makedirs(OUTPUT, exist_ok=True)
    write_llmc(sys.argv[1])
    write_llmq(sys.argv[2])
    write_mds()
    write_megatron()
    read_by_megatron(sys.argv[3])
