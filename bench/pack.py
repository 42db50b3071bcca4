#!/usr/bin/env python3
"""Packing of JSON lines or Parquet into token shards: smelt against `datasets` + `tokenizers`, against datatrove (Parquet only), and against a script that
works as Megatron's preprocess_data.py does, with `tokenizers` in a pool of processes, which reads JSON lines. Same cores, same texts, same tokenizer; the
shards of smelt and of the script must have the same bytes. A ceiling for any program around `tokenizers`: its encode_batch over texts in memory (encode).
With --megatron CHECKOUT, Megatron's own script runs too. With --passes N, smelt also packs N copies of the text as Parquet, each with the lines of its
documents in another order; the others are too slow for it.

    bench/pack.py FOLDER [--smelt build/smelt] [--megabytes 200] [--cores N] [--rounds 3] [--parquet] [--megatron CHECKOUT] [--passes N] [--out RESULT.csv]
    bench/pack.py FOLDER --python PYTHON ...    with a Python that has bench/requirements-pack.txt in place of a venv

FOLDER is made: the text (documentation, sources and manual pages of this machine, one document a file), a byte-level BPE of 50,257 tokens that smelt
learns from its first 64 MB, with --parquet the same texts in files of 16 MB as pyarrow writes them by default (snappy, dictionaries), and a venv with bench/requirements-pack.txt. The contestants take turns; a rate is the median over the rounds, MB/s of
JSON lines, from start to end of the process. CPU seconds are those of all its processes: on a machine that others use too, they say more."""
import argparse
import csv
import glob
import gzip
import json
import multiprocessing
import os
import platform
import random
import resource
import shutil
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOTS = ["/usr/share/doc", "/usr/share/man", "/usr/lib/python3", "/usr/lib/python3.11", "/usr/include", "/usr/share/perl", "/usr/share/perl5", "/usr/lib", "/usr/share",
         "/usr/local/lib"]
END = "<|endoftext|>"
ENCODER = None


# -- Input ---------------------------------------------------------------------------------------------------------------------------------------------

def documents():
    """Every text file below ROOTS once, in the order of paths; gzip files unpacked; text is UTF-8 without zero bytes, of 200 bytes or more."""
    seen = set()
    for root in ROOTS:
        for folder, folders, names in os.walk(root):
            folders.sort()
            for name in sorted(names):
                path = os.path.join(folder, name)
                if os.path.islink(path) or path in seen or not os.path.isfile(path):
                    continue
                seen.add(path)
                try:
                    with (gzip.open if name.endswith(".gz") else open)(path, "rb") as file:
                        text = file.read(4 << 20)
                    if b"\0" not in text and len(text) >= 200:
                        yield text.decode()
                except (OSError, EOFError, UnicodeDecodeError, gzip.BadGzipFile):
                    continue


def make_text(path, size):
    written = 0
    with open(path + ".partial", "w", encoding="utf-8") as file:
        for text in documents():
            written += file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
            if written >= size:
                break
    if written < size:
        sys.exit(f"this machine has {written / 1e6:.0f} MB of text: install linux-doc, or give fewer --megabytes")
    os.rename(path + ".partial", path)


def write_copy(text, folder, copy):
    """The texts in files of about 16 MB. In every copy but the first, the lines of each document are in another order."""
    import pyarrow
    import pyarrow.parquet
    order = random.Random(copy)
    with open(text, encoding="utf-8") as lines:
        for number, part in enumerate(iter(lambda: lines.readlines(16 << 20), [])):
            texts = [json.loads(line)["text"] for line in part]
            if copy:
                texts = ["\n".join(order.sample(split, len(split))) for split in (one.split("\n") for one in texts)]
            table = pyarrow.table({"text": texts, "id": [f"<{number}:{i}>" for i in range(len(texts))], "score": [i % 500 / 100 for i in range(len(texts))]})
            pyarrow.parquet.write_table(table, os.path.join(folder, f"{copy:03}-{number:05}.parquet"), row_group_size=1000)


def make_parquet(text, folder, copies, cores):
    os.makedirs(folder + ".partial")
    with multiprocessing.Pool(cores) as pool:
        pool.starmap(write_copy, [(text, folder + ".partial", copy) for copy in range(copies)], chunksize=1)
    os.rename(folder + ".partial", folder)


def make_environment(folder):
    python = os.path.join(folder, "venv/bin/python")
    if not os.path.exists(python):
        subprocess.run([sys.executable, "-m", "venv", os.path.join(folder, "venv")], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "-r", os.path.join(HERE, "requirements-pack.txt")], check=True)
    return python


# -- Contestants, each a process of its own --------------------------------------------------------------------------------------------------------------

def open_encoder(path):
    global ENCODER
    import tokenizers
    ENCODER = tokenizers.Tokenizer.from_file(path)
    ENCODER.encode_special_tokens = True  # as smelt's default: what a text spells is text


def encode_line(line):
    import numpy
    return numpy.array(ENCODER.encode(json.loads(line)["text"], add_special_tokens=False).ids + [ENCODER.token_to_id(END)], dtype=numpy.uint16)


def run_pool(text, tokenizer, output, cores):
    """As preprocess_data.py: a pool takes lines by 32 and gives ids; one process writes .bin and .idx."""
    import numpy
    lengths = []
    with multiprocessing.Pool(cores, initializer=open_encoder, initargs=(tokenizer,)) as pool, open(text, encoding="utf-8") as lines, \
            open(output + ".bin", "wb") as tokens:
        for ids in pool.imap(encode_line, lines, 32):
            tokens.write(ids.tobytes(order="C"))
            lengths.append(len(ids))
    ends = numpy.cumsum(lengths, dtype=numpy.int64)
    with open(output + ".idx", "wb") as index:
        index.write(b"MMIDIDX\0\0" + (1).to_bytes(8, "little") + b"\x08" + len(lengths).to_bytes(8, "little") + (len(lengths) + 1).to_bytes(8, "little"))
        index.write(numpy.array(lengths, dtype=numpy.int32).tobytes() + ((ends - lengths) * 2).tobytes() + numpy.arange(len(lengths) + 1, dtype=numpy.int64).tobytes())


def encode_batch(batch):
    end = ENCODER.token_to_id(END)
    return {"ids": [encoding.ids + [end] for encoding in ENCODER.encode_batch(batch["text"], add_special_tokens=False)]}


def run_datasets(text, tokenizer, output, cores):
    """load_dataset, then map over batches of 1,000 in as many processes as there are cores, and save_to_disk."""
    import datasets
    open_encoder(tokenizer)
    kind, files = ("parquet", sorted(glob.glob(text + "/*.parquet"))) if os.path.isdir(text) else ("json", text)
    data = datasets.load_dataset(kind, data_files=files, split="train", cache_dir=output + ".cache")
    data = data.map(encode_batch, batched=True, num_proc=cores, remove_columns=data.column_names, features=datasets.Features({"ids": datasets.Sequence(datasets.Value("uint16"))}))
    data.save_to_disk(output + ".arrow")


def run_datatrove(text, tokenizer, output, cores):
    """A reader of Parquet and a DocumentTokenizer, a task for each core, which takes whole files."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import ParquetReader
    from datatrove.pipeline.tokens import DocumentTokenizer
    pipeline = [ParquetReader(text), DocumentTokenizer(output_folder=output + ".cache", tokenizer_name_or_path=tokenizer, eos_token=END, shuffle_documents=False)]
    LocalPipelineExecutor(pipeline, tasks=cores, workers=cores, logging_dir=output + ".arrow", skip_completed=False, start_method="fork").run()


def run_encode(text, tokenizer, output, cores):
    """The encoder alone: the texts are read before the clock starts, and the ids are thrown away."""
    import pyarrow.parquet
    open_encoder(tokenizer)
    files = sorted(glob.glob(text + "/*.parquet"))
    texts = [one for file in files for one in pyarrow.parquet.read_table(file, columns=["text"])["text"].to_pylist()] if files else [json.loads(line)["text"] for line in open(text)]
    start = time.perf_counter()
    for at in range(0, len(texts), 1000):
        ENCODER.encode_batch_fast(texts[at:at + 1000], add_special_tokens=False)
    with open(output + ".seconds", "w") as file:
        file.write(str(time.perf_counter() - start))


def measure(command, environment):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def same_bytes(a, b):
    with open(a, "rb") as left, open(b, "rb") as right:
        while True:
            one, other = left.read(1 << 20), right.read(1 << 20)
            if one != other:
                return False
            if not one:
                return True


# -- The comparison --------------------------------------------------------------------------------------------------------------------------------------

def main():
    contestants = {"pool": run_pool, "datasets": run_datasets, "datatrove": run_datatrove, "encode": run_encode, "parquet": lambda text, folder, copies, cores: make_parquet(text, folder, int(copies), cores)}
    if len(sys.argv) == 6 and sys.argv[1] in contestants:
        return contestants[sys.argv[1]](*sys.argv[2:5], int(sys.argv[5]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=os.path.abspath)
    parser.add_argument("--smelt", type=os.path.abspath, default="build/smelt")
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parquet", action="store_true")
    parser.add_argument("--megatron", type=os.path.abspath)
    parser.add_argument("--passes", type=int, default=0)
    parser.add_argument("--python")
    parser.add_argument("--out")
    arguments = parser.parse_args()

    os.makedirs(arguments.folder, exist_ok=True)
    text, tokenizer, sample = (os.path.join(arguments.folder, name) for name in ("text.jsonl", "tokenizer.json", "sample.jsonl"))
    python = arguments.python or make_environment(arguments.folder)
    if not os.path.exists(text):
        make_text(text, arguments.megabytes * 1000000)
    if not os.path.exists(tokenizer):
        with open(text, "rb") as whole, open(sample, "wb") as part:
            part.writelines(whole.readlines(64000000))
        subprocess.run([arguments.smelt, "data", "train-tokenizer", sample, tokenizer, "vocabulary=50257", "pattern=gpt2"], check=True)
    size = os.path.getsize(text)
    source, names = text, ["pool", "datasets", "encode"]
    if arguments.parquet:
        source, names = os.path.join(arguments.folder, "parquet"), ["pool", "datasets", "datatrove", "encode"]
        if not os.path.exists(source):
            subprocess.run([python, os.path.abspath(__file__), "parquet", text, source, "1", "1"], check=True)
    copies = os.path.join(arguments.folder, "copies")
    if arguments.passes and not os.path.exists(copies):
        subprocess.run([python, os.path.abspath(__file__), "parquet", text, copies, str(arguments.passes), str(arguments.cores)], check=True)

    environment = dict(os.environ, TOKENIZERS_PARALLELISM="false", HF_DATASETS_OFFLINE="1", HF_HUB_OFFLINE="1", OMP_NUM_THREADS=str(arguments.cores))
    outputs = {name: os.path.join(arguments.folder, "out-" + name) for name in ["smelt", *names]}
    commands = {"smelt": [arguments.smelt, "data", "pack", source, outputs["smelt"], "tokenizer=" + tokenizer, "overwrite=true"]}
    commands.update({name: [python, os.path.abspath(__file__), name, text if name == "pool" else source, tokenizer, outputs[name], str(arguments.cores)] for name in names})
    if arguments.megatron:
        model = os.path.join(arguments.folder, "model")
        os.makedirs(model, exist_ok=True)
        shutil.copy(tokenizer, model)
        with open(os.path.join(model, "tokenizer_config.json"), "w") as file:
            json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END}, file)
        outputs["megatron"] = os.path.join(arguments.folder, "out-megatron")
        commands["megatron"] = [python, os.path.join(arguments.megatron, "tools/preprocess_data.py"), "--input", text, "--output-prefix", outputs["megatron"],
                                "--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", model, "--append-eod", "--workers", str(arguments.cores)]
    runs = {name: [] for name in commands}
    for _ in range(arguments.rounds):
        for name, command in commands.items():
            for leftover in (outputs[name] + ".cache", outputs[name] + ".arrow"):
                shutil.rmtree(leftover, ignore_errors=True)
            parallel = dict(environment, TOKENIZERS_PARALLELISM="true", RAYON_NUM_THREADS=str(arguments.cores)) if name == "encode" else environment
            wall, cpu = measure(command, parallel)
            if name == "encode":
                with open(outputs[name] + ".seconds") as file:
                    wall = float(file.read())
            runs[name].append((wall, cpu))
            print(f"{name}: {size / runs[name][-1][0] / 1e6:.1f} MB/s, {runs[name][-1][1]:.1f} CPU seconds", flush=True)
    if not same_bytes(outputs["smelt"] + ".bin", outputs["pool"] + ".bin"):
        sys.exit("the shards differ: the comparison is void")
    sizes = dict.fromkeys(runs, size)
    if arguments.passes:
        runs["copies"], sizes["copies"] = [measure([arguments.smelt, "data", "pack", copies, os.path.join(arguments.folder, "out-copies"), "tokenizer=" + tokenizer, "overwrite=true"], environment)], size * arguments.passes

    rows = []
    for name, results in runs.items():
        wall, cpu = (statistics.median(values) for values in zip(*results))
        rows.append({"contestant": name, "mb_per_s": round(sizes[name] / wall / 1e6, 2), "cpu_seconds": round(cpu, 1), "least": round(sizes[name] / max(r[0] for r in results) / 1e6, 2),
                     "most": round(sizes[name] / min(r[0] for r in results) / 1e6, 2), "bytes": sizes[name], "cores": arguments.cores, "rounds": len(results),
                     "machine": platform.processor() or open("/proc/cpuinfo").read().split("model name\t: ")[1].split("\n")[0], "date": time.strftime("%Y-%m-%d")})
    others = [row for row in rows[1:] if row["contestant"] not in ("encode", "copies")]
    fastest = max(row["mb_per_s"] for row in others)
    least_cpu = min(row["cpu_seconds"] for row in others)
    for row in rows:
        print(f"{row['contestant']:10} {row['mb_per_s']:8.1f} MB/s ({row['least']} to {row['most']}), {row['cpu_seconds']:.1f} CPU seconds")
    print(f"smelt is {rows[0]['mb_per_s'] / fastest:.2f} times as fast as the fastest of the others, with {least_cpu / rows[0]['cpu_seconds']:.2f} times less CPU time")
    if arguments.out:
        with open(arguments.out, "w", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
