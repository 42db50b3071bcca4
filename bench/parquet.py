#!/usr/bin/env python3
"""Reads the texts of Parquet files on one thread by smelt's reader, carquet and pyarrow, in turn.

    FOLDER/venv/bin/python bench/parquet.py FOLDER [--rounds 15]     with the environment that tests/golden/check_parquet.py makes in FOLDER, after make

The texts are sources and documentation of this machine in documents of 3,100 characters, each with a number of its own, so that a dictionary is as long as they
are. smelt and carquet run in a C program that copies each text, once; pyarrow makes an array. Prints the best and the median of MB of text a second."""
import argparse
import glob
import os
import random
import statistics
import subprocess
import time

import carquet
import pyarrow as pa
import pyarrow.parquet as pq

LIBRARIES = "-fopenmp -lyaml -ljansson -lxxhash -lpcre2-8 -lutf8proc -lcrypto -lz -lzstd -llzma -ldl -lm -lpthread".split()
PROGRAM = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "parquet/parquet.h"
enum { ROOM = 1 << 24 };
static char *copy;
static size_t at, bytes;
static void take(const void *text, size_t size) {
    if (at + size > ROOM) at = 0;
    memcpy(copy + at, text, size);
    at += size;
    bytes += size;
}
static void read_smelt(const char *path) {
    Error error = {0};
    ParquetFile *file = parquet_open(&(ObjectPlace){.path = path}, &error);
    ParquetColumn column = {0};
    ParquetPage page;
    ParquetValues values = {0};
    ParquetValue value;
    const ParquetNode *node = file ? parquet_find(file, "text") : NULL;
    if (!node || !parquet_check(file, node, &error)) exit(1);
    for (int64_t group = 0; group < parquet_groups(file); group++) {
        parquet_column_start(&column, file, node, group);
        while (parquet_column_page(&column, &page, &error) && page.stored) {
            if (!parquet_values_open(&values, &page, column.dictionary, &error)) exit(1);
            while (values.left > 0 && parquet_values_next(&values, &value, &error)) take(value.bytes, value.size);
            parquet_page_free(&page);
        }
    }
    if (error.code) exit(1);
}
typedef struct { int32_t rows, threads; bool map; const int32_t *columns; int32_t count; const char *const *names; int32_t name_count; } Settings;
typedef struct { const unsigned char *bytes; int32_t size; } Text;
static void read_carquet(void *library, const char *path) {
    void *(*open)(const char *, const void *, void *) = dlsym(library, "carquet_reader_open");
    void (*init)(Settings *) = dlsym(library, "carquet_batch_reader_config_init");
    void *(*create)(void *, const Settings *, void *) = dlsym(library, "carquet_batch_reader_create");
    int (*next)(void *, void **) = dlsym(library, "carquet_batch_reader_next");
    int (*column)(void *, int32_t, const void **, const uint8_t **, int64_t *) = dlsym(library, "carquet_row_batch_column");
    void (*drop)(void *) = dlsym(library, "carquet_row_batch_free");
    Settings settings;
    init(&settings);
    settings.threads = 1;
    settings.names = (const char *const[]){"text"};
    settings.name_count = 1;
    void *reader = create(open(path, NULL, NULL), &settings, NULL), *batch = NULL;
    const Text *texts;
    const uint8_t *nulls;
    for (int64_t count; next(reader, &batch) == 0 && batch; drop(batch), batch = NULL) {
        column(batch, 0, (const void **)&texts, &nulls, &count);
        for (int64_t i = 0; i < count; i++) take(texts[i].bytes, (size_t)texts[i].size);
    }
}
int main(int count, char **words) {
    struct timespec start, end;
    void *library = count > 2 ? dlopen(words[2], RTLD_NOW) : NULL;
    copy = malloc(ROOM);
    memset(copy, 1, ROOM);
    clock_gettime(CLOCK_MONOTONIC, &start);
    if (library) read_carquet(library, words[1]);
    else read_smelt(words[1]);
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("%zu %.6f\n", bytes, (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec));
}
"""


def texts():
    rng, found = random.Random(1), []
    for path in sorted(glob.glob("/usr/lib/python3*/**/*.py", recursive=True) + glob.glob("/usr/share/doc/**/*", recursive=True)):
        if os.path.isfile(path):
            text = open(path, encoding="utf-8", errors="ignore").read()
            found += [text[at:at + 3100] for at in range(0, len(text), 3100)]
    rng.shuffle(found)
    return [f"{i} {text}" for i, text in enumerate((found * 9)[:24000])]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    program, library = os.path.join(options.folder, "read"), os.path.join(os.path.dirname(carquet.__file__), "libcarquet.so")
    subprocess.run(["cc", "-O2", "-std=gnu17", "-D_GNU_SOURCE", "-Isrc", "-x", "c", "-", "-o", program, "-x", "none", "build/libsmelt.a"] + LIBRARIES, input=PROGRAM, text=True, check=True)
    table = pa.table({"text": texts()})
    files = {
        "snappy, dictionary, groups of 1,000 (FineWeb)": {"row_group_size": 1000},
        "zstd, plain, groups of 1,024 (nanochat)": {"row_group_size": 1024, "use_dictionary": False, "compression": "zstd", "compression_level": 3, "write_statistics": False},
        "snappy, plain": {"row_group_size": 1000, "use_dictionary": False},
    }
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    for name, settings in files.items():
        path, times = os.path.join(options.folder, "bench.parquet"), {"smelt": [], "carquet": [], "pyarrow": []}
        pq.write_table(table, path, **settings)
        for _ in range(options.rounds):
            for reader, words in (("smelt", []), ("carquet", [library])):
                size, seconds = subprocess.run([program, path] + words, capture_output=True, text=True, check=True, env=environment).stdout.split()
                times[reader].append(float(seconds) / int(size) * 1e6)
            start = time.perf_counter()
            read = pq.read_table(path, columns=["text"], use_threads=False)
            times["pyarrow"].append((time.perf_counter() - start) / int(size) * 1e6)
            assert read.num_rows == table.num_rows
        print(f"{name}: " + ", ".join(f"{reader} {1 / min(own):.0f} (median {1 / statistics.median(own):.0f})" for reader, own in times.items()) + " MB/s of text", flush=True)


if __name__ == "__main__":
    main()
