#!/usr/bin/env python3
"""Fails the system calls on files, or the requests to S3, of one command after the other, and counts what is lost.

Each scenario is a command that is run once undisturbed; its calls are recorded (fault_calls.c). Then each call fails with each error that it can have: once,
three times (it and the next two of its kind), for some seconds, or for ever (all of its kind). After each such run an independent reader (xxh3 of the manifest
and of every range) looks for the checkpoints that were acknowledged, and compares tensors with those of the undisturbed run; a run that ended is started again.
Commands that make files must have made the whole of them or none, and a second start must make them. A command ends within --limit seconds, or says that it waits.

Calls of one kind on paths that differ in nothing but numbers (steps, shards, processes) are a sequence. Each sequence is covered, for each error and duration, by
its first call, its last call and one that is drawn at random; a drawn call is another one for each error and duration. --every covers each call of each sequence.
Cells with drawn calls run first, in an order drawn at random over all scenarios, so that a table that is cut short (--minutes) is a fair sample.

    tests/reliability/io_faults.py --smelt build/smelt --layer build/tests/reliability/fault_calls [--sample 200] [--only resume,pack]

--cells FILE runs the cells that the lines of FILE begin with, such as those of an earlier wrong.txt, and no others. The duration of such a cell may also be a
number of calls. One that is not reached counts as wrong, since it shows nothing.

Prints a Markdown table and what was wrong in each cell; exit code 1 if anything was. Needs Python's standard library and libxxhash; for S3 Debian's
swift-proxy, swift-account, swift-container and swift-object.
"""
import argparse
import collections
import concurrent.futures
import ctypes
import errno
import json
import multiprocessing
import os
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

MODEL = ["model.family=llama", "model.width=16", "model.layers=1", "model.heads=2", "model.kv_heads=1", "model.ffn=32"]
TRAIN = [*MODEL, "data.length=16", "batch.sequences=2", "batch.tokens=32", "optimizer.lr=5e-3", "schedule.warmup=2", "threads=1", "tensorboard=false",
         "device=cpu", "checkpoint.every=2", "checkpoint.keep=2", "eval.every=4", "eval.sequences=4", "steps=8"]
STEPS, SAVED, EVERY, KEEP = 8, 4, 2, 2  # steps of a run, those before it is continued, those between checkpoints, and how many of these stay

ALWAYS = ["EIO", "ESTALE", "EACCES", "EAGAIN", "ENOMEM", "ETIMEDOUT", "EINTR"]
CHANGES = ["ENOSPC", "EDQUOT", "EROFS"]
# The errors that the kernel, or a file system over a network, can return from a call of each kind. EAGAIN of a lock is not a fault: the lock is taken.
ERRORS = {
    "open": [*ALWAYS, "ENOENT", "EMFILE"], "create": [*ALWAYS, *CHANGES, "ENOENT", "EMFILE"], "read": [*ALWAYS, "ENOENT"], "write": [*ALWAYS, *CHANGES],
    "resize": [*ALWAYS, *CHANGES], "rename": [*ALWAYS, *CHANGES, "ENOENT"], "link": [*ALWAYS, *CHANGES, "ENOENT"], "remove": [*ALWAYS, *CHANGES],
    "mkdir": [*ALWAYS, *CHANGES, "ENOENT"], "sync": [*ALWAYS, *CHANGES], "list": [*ALWAYS, "ENOENT"], "stat": [*ALWAYS, "ENOENT"],
    "lock": [error for error in ALWAYS if error != "EAGAIN"], "close": [*ALWAYS, "ENOSPC", "EDQUOT"], "map": [*ALWAYS, "EMFILE"], "space": [*ALWAYS, "ENOENT"],
}
TWO = ["checkpoint.timeout=20"]  # of a run of two ranks
# How long: the words for fault_calls. An outage fails calls of all kinds. No signal interrupts calls for longer.
DURATIONS = {"once": ["for=1"], "three": ["for=3"], "seconds": ["for={seconds}s"], "outage": ["for={seconds}s", "scope=all"], "ever": ["for=1000000000"]}
PASSING = ("seconds", "outage")
WAITING = (*PASSING, "ever")  # commands that mostly wait, so that many of them run at once

CANNOT = 125  # the exit code of fault_calls where it cannot work

# One fault: call number `number` of a kind on a path, how it fails, and for how long.
Cell = collections.namedtuple("Cell", "scenario kind path number error duration")
# The damage after the fault, or "", and whether the fault came at all.
Verdict = collections.namedtuple("Verdict", "outcome text")
GOOD = ("not reached", "unharmed", "ended, with a reason", "refused at the start", "finished by the next start", "waits, and says so")
UNKNOWN = "not run"  # there was no time


# -- The independent reader


xxhash = ctypes.CDLL("libxxhash.so.0")
xxhash.XXH3_64bits.restype = ctypes.c_uint64
xxhash.XXH3_64bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]


def xxh3(data):
    return "%016x" % xxhash.XXH3_64bits(data, len(data))


class Damaged(Exception):
    pass


def expect(condition, what):
    if not condition:
        raise Damaged(what)


def read_checkpoint(read):
    """The hash of each tensor of a checkpoint whose files `read` gives by name; raises Damaged or OSError."""
    text = read("manifest.json")
    match = re.fullmatch(rb'(.*,\n"manifest_xxh3": ")([0-9a-f]{16})"\n}\n', text, re.DOTALL)
    expect(match and xxh3(match[1]).encode() == match[2], "the manifest's checksum")
    manifest, tensors = json.loads(text), {}
    files = [read(entry["name"]) for entry in manifest["files"]]
    for entry, data in zip(manifest["files"], files):
        expect(len(data) == entry["bytes"], "the size of " + entry["name"])
        expect(xxh3(data[:entry["header_bytes"]]) == entry["header_xxh3"], "the header of " + entry["name"])
    for interval in manifest["intervals"]:
        data = files[interval["file"]][interval["begin"]:interval["end"]]
        expect(xxh3(data) == interval["xxh3"], "the bytes of " + interval["tensor"])
        tensors.setdefault(interval["tensor"], []).append((interval["first"], data))
    return {tensor: xxh3(b"".join(data for _, data in sorted(parts))) for tensor, parts in tensors.items()}


def read_file(folder):
    def read(name):
        with open(os.path.join(folder, name), "rb") as file:
            return file.read()
    return read


def read_checkpoints(folder):
    """By step, the tensors of each good checkpoint in a folder."""
    good = {}
    for name in os.listdir(folder) if os.path.isdir(folder) else []:
        if re.fullmatch(r"step-\d{8}", name):
            try:
                good[int(name[5:])] = read_checkpoint(read_file(os.path.join(folder, name)))
            except (Damaged, OSError, ValueError, KeyError, IndexError):
                pass
    return good


def read_tree(folder):
    """The bytes of every file below a folder, but for those with a temporary name."""
    tree = {}
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            if not re.search(r"\.partial|\.smelt-|\.next\b|\.replaced\b|/hashes$", path):
                with open(path, "rb") as file:
                    tree[os.path.relpath(path, folder)] = file.read()
    return tree


def is_waiting(folder):
    """Whether what a packing made is whole on the disk, and only its names are missing."""
    for name in os.listdir(folder):
        record = os.path.join(folder, name, "pack.json")
        if name.endswith(".pack.json.next") or (name.endswith(".next") and os.path.exists(record) and json.loads(read_file(folder)(name + "/pack.json"))["complete"]):
            return True
    return False


def read_cells(path):
    """The cells of a file, one a line: "SCENARIO KIND PATH NUMBER ERROR DURATION", and perhaps ":" and more."""
    with open(path) as file:
        lines = [line.split(":")[0].split() for line in file if line.strip()]
    return [Cell(scenario, kind, where, int(number), error, duration) for scenario, kind, where, number, error, duration in lines]


def role(path):
    """A path without its numbers and checksums."""
    return re.sub(r"\d+", "N", re.sub(r"[0-9a-f]{16}", "H", path))


# -- Scenarios


class Result:
    """A command that has ended."""

    def __init__(self, code, text, hung=False, stopped=False):
        self.code, self.text, self.hung, self.stopped = code, text, hung, stopped
        self.says = re.findall(r"^(?:.*: )?(?:error|warning): .*$", text, re.MULTILINE)


class Broken(Exception):
    """An undisturbed command failed."""

    def __init__(self, name, result):
        super().__init__("%s: exit code %d: %s" % (name, result.code, result.text[-600:]))


class Scenario:
    """A command below the folder "root" of a folder of its own, which begins as a copy of `template`."""

    paced = None  # the file whose writes pace it; None: it is not paced
    only = None  # "NAME=VALUE" in the environment of the processes whose calls fail; None: all
    about = None  # a regular expression of the paths whose calls fail; None: all

    def __init__(self, table, name, words, before=(), only=None, about=None):
        self.table, self.name, self.words, self.before, self.only, self.about = table, name, list(words), before, only, about
        self.template = os.path.join(table.folder, name + ".template")
        self.whole = os.path.join(table.folder, name + ".whole")

    def prepare(self):
        """Makes the template and runs the command undisturbed. Returns its calls."""
        os.makedirs(os.path.join(self.template, "root"))
        for words in self.before:
            result = self.table.execute(self.template, words) if words[0] == "cp" else self.table.smelt(self.template, words)
            if result.code:
                raise Broken(" ".join(words), result)
        shutil.copytree(self.template, self.whole, symlinks=True)
        result, calls = self.table.layer(self.whole, self.words, self.layer_words(False))
        if result.code:
            raise Broken(self.name, result)
        self.record()
        return calls

    def errors(self, kind):
        return ERRORS[kind]

    def cells(self, calls, chance):
        """The cells of the calls of the undisturbed command; each with 0 where its call was drawn, else 1."""
        counted, sequences = collections.Counter(), collections.defaultdict(list)
        for _, kind, path, _ in calls:
            counted[kind, path] += 1
            if not self.about or re.search(self.about, path):
                sequences[kind, role(path)].append((kind, path, counted[kind, path]))
        for (kind, _), sequence in sequences.items():
            for error in self.errors(kind):
                for duration in self.table.options.durations.split(","):
                    drawn = chance.choice(sequence)
                    if error == "EINTR" and duration not in ("once", "three"):
                        continue
                    for call in {drawn, *(sequence if self.table.options.every else (sequence[0], sequence[-1]))}:
                        yield call != drawn, Cell(self.name, *call, error, duration)

    def layer_words(self, paced):
        """What fault_calls gets beside the fault."""
        return [*(["only=" + self.only] if self.only else []), *(["pace=%d:%s" % (self.pace(), self.paced)] if self.paced and paced else [])]

    def fault(self, cell):
        return ["kind=" + cell.kind, "path=" + cell.path, "call=%d" % cell.number, "error=%d" % getattr(errno, cell.error),
                *(word.format(seconds=self.table.options.seconds) for word in DURATIONS.get(cell.duration, ["for=" + cell.duration])), *self.layer_words(cell.duration in PASSING)]

    def run(self, cell, folder):
        shutil.copytree(self.template, folder, symlinks=True)
        result, calls = self.table.layer(folder, self.words, self.fault(cell))
        return self.look(cell, folder, result, any(call[3] != "0" for call in calls))

    def look(self, cell, folder, result, failed):
        if result.stopped:
            return Verdict(UNKNOWN, "")
        if not failed:
            return Verdict("not reached", "")
        if result.hung and not (cell.duration == "ever" and re.search("again|wait", " ".join(result.says[-3:]))):
            return Verdict("hung", result.text[-300:])
        if result.hung:
            return self.judge(cell, folder, result)
        if result.code > 9 or result.code < 0:
            return Verdict("crashed", "exit code %d: %s" % (result.code, result.text[-300:]))
        if result.code and not result.says:
            return Verdict("ended without a reason", "exit code %d" % result.code)
        return self.judge(cell, folder, result)


class Training(Scenario):
    """A run of which `saved` steps are done, and the last two saves acknowledged. `later` are settings of the start that is disturbed."""

    paced = "run/metrics.jsonl"

    def __init__(self, table, name, saved, settings=(), ranks=1, later=(), keep=KEEP, data=None, seconds=0, **options):
        launch = ["launch", "-n", str(ranks), "--"] if ranks > 1 else []
        self.saved, self.left, self.keep, self.seconds = [step for step in (saved - EVERY, saved) if step > 0], STEPS - saved, keep, seconds
        data = data or ["data.train=%s/data-train" % table.folder, "data.valid=%s/data-valid" % table.folder]
        words = [*launch, "train", *TRAIN, *data, "run=root/run", *settings]
        super().__init__(table, name, [*words, *later], [[*words, "stop_at=%d" % saved]] if saved else [], **options)

    def pace(self):
        """Milliseconds of a step, so that the run outlives what passes with time, or lasts for `seconds`."""
        return 1000 * (self.seconds or self.table.options.seconds + 1) / self.left

    def layer_words(self, paced):
        return super().layer_words(paced or self.seconds)

    def again(self, folder):
        return self.table.smelt(folder, self.words)

    def read(self, folder):
        return read_checkpoints(os.path.join(folder, "root", "run", "checkpoints"))

    def record(self):
        """The checkpoints of an undisturbed run that keeps those of all steps: a run that a fault ends saves its last one."""
        folder = self.whole + "-all"
        os.makedirs(os.path.join(folder, "root"))
        result = self.table.smelt(folder, [*self.words, "checkpoint.keep=1000", "checkpoint.every=1"])
        if result.code:
            raise Broken(self.name, result)
        self.right = self.read(folder)

    def judge(self, cell, folder, result):
        acknowledged = {*self.saved, *map(int, re.findall(r"checkpoint of step (\d+): .* in ", result.text))}
        good = self.read(folder)
        kept = sorted(acknowledged | set(good))[-self.keep:]
        lost = [step for step in kept if step in acknowledged and step not in good]
        other = [step for step in good if good[step] != self.right.get(step)]
        text = "exit code %d; lost %s, there are %s; %s" % (result.code, lost, sorted(good), " | ".join(result.says)[-600:])
        if lost:
            return Verdict("lost, and said so" if any("step" in line for line in result.says) else "lost in silence", text)
        if other or (result.code == 0 and STEPS not in good):
            return Verdict("wrong", text)
        if result.hung:
            return Verdict("waits, and says so", text)
        if result.code == 0:
            return Verdict("unharmed", text)
        return self.restart(cell, folder, result, acknowledged, text)

    def restart(self, cell, folder, result, acknowledged, text):
        """After a run that ended: where the same command goes on, and with what it ends."""
        again = self.again(folder)
        if again.stopped:
            return Verdict(UNKNOWN, "")
        first = re.search(r"^ +(\d+)/\d+ ", again.text, re.MULTILINE)
        if again.code or self.read(folder).get(STEPS) != self.right[STEPS]:
            return Verdict("cannot go on", "%s; again: exit code %d, %s" % (text, again.code, again.text[-300:]))
        if first and acknowledged and int(first[1]) <= max(acknowledged):
            return Verdict("went back", "%s; again from step %s" % (text, first[1]))
        if cell.duration == "ever":
            return Verdict("ended, with a reason", text)
        return Verdict("ended a healthy run" if re.search(r"^ +\d+/\d+ ", result.text, re.MULTILINE) else "refused at the start", text)


class Bucket:
    """tests/support/s3_server.py, and what it holds as its own protocol tells it, so that no request has to be signed."""

    def __init__(self, folder):
        self.folder = folder
        server = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support", "s3_server.py")
        self.process = subprocess.Popen([os.environ.get("SMELT_S3_PYTHON", "/usr/bin/python3"), server, folder, "faults"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = self.process.stdout.readline().split()
        if len(line) != 2:
            sys.exit("the S3 server did not start: install swift-proxy swift-account swift-container swift-object, or name scenarios without s3")
        self.url = "http://127.0.0.1:" + line[1]
        self.environment = {"AWS_ACCESS_KEY_ID": "test:tester", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_ENDPOINT_URL": self.url, "AWS_REGION": "us-east-1",
                            "AWS_MAX_ATTEMPTS": "4"}
        self.token = self.ask("/auth/v1.0", {"X-Storage-User": "test:tester", "X-Storage-Pass": "testing"}, lambda answer: answer.headers["X-Auth-Token"])

    def ask(self, path, headers=(), take=lambda answer: answer.read(), **options):
        with urllib.request.urlopen(urllib.request.Request(self.url + path, headers=dict(headers), **options), timeout=120) as answer:
            return take(answer)

    def get(self, name):
        return self.ask("/v1/AUTH_test/faults/" + name, {"X-Auth-Token": self.token})

    def list(self, prefix):
        return self.ask("/v1/AUTH_test/faults?prefix=" + urllib.parse.quote(prefix), {"X-Auth-Token": self.token}).decode().split()

    def fault(self, name, rule):
        path = os.path.join(self.folder, "faults", name)
        with open(path + ".new", "w") as file:
            json.dump(rule, file)
        os.replace(path + ".new", path)

    def requests(self, name):
        path = os.path.join(self.folder, "requests", name)
        return [json.loads(line) for line in open(path)] if os.path.exists(path) else []


class S3Training(Training):
    """A run whose checkpoints go to a bucket, under the name of its folder. Requests fail in place of system calls."""

    def __init__(self, table, name, saved, settings=(), **options):
        super().__init__(table, name, saved, settings, **options)
        self.before, self.first = [], self.before

    def bucket(self, folder):
        return self.table.buckets[hash(folder) % len(self.table.buckets)]

    def command(self, folder, words):
        return [*words, "checkpoint.store=s3://faults/" + os.path.basename(folder)]

    def prepare(self):
        os.makedirs(os.path.join(self.template, "root"))
        result, requests = self.attempt(self.whole, {}, False)
        if result.code:
            raise Broken(self.name, result)
        self.record()
        return [(0, kind, key, 0) for kind, key, _ in requests]

    def errors(self, kind):
        return ("403", "404", "500", "503", "reset", "slow", *(("cut",) if kind in ("GET", "LIST") else ()))

    def record(self):
        folder = self.whole + "-all"
        os.makedirs(os.path.join(folder, "root"))
        self.table.smelt(folder, [*self.command(folder, self.words), "checkpoint.keep=1000", "checkpoint.every=1"], self.bucket(folder).environment)
        self.right = self.read(folder)

    def read(self, folder):
        prefix, good, bucket = os.path.basename(folder) + "/checkpoints/", {}, self.bucket(folder)
        steps = {name[len(prefix):].split("/")[0] for name in bucket.list(prefix)}
        for step in (step for step in steps if re.fullmatch(r"step-\d{8}", step)):
            try:
                good[int(step[5:])] = read_checkpoint(lambda name: bucket.get(prefix + step + "/" + name))
            except (Damaged, OSError, ValueError, KeyError, IndexError):
                pass
        return good

    def again(self, folder):
        return self.table.smelt(folder, self.command(folder, self.words), self.bucket(folder).environment)

    def attempt(self, folder, rule, paced):
        """The run, after what is to be done before it. Returns also its requests."""
        bucket, name = self.bucket(folder), os.path.basename(folder)
        os.makedirs(os.path.join(folder, "root"))
        for words in self.first:
            self.table.smelt(folder, self.command(folder, words), bucket.environment)
        bucket.fault(name, rule)
        result, _ = self.table.layer(folder, self.command(folder, self.words), self.layer_words(paced), bucket.environment)
        return result, bucket.requests(name)

    def run(self, cell, folder):
        seconds = self.table.options.seconds if cell.duration in PASSING else 1e9
        rule = {"kind": cell.kind, "key": cell.path, "number": cell.number, "answer": cell.error, "seconds": seconds,
                "times": {"once": 1, "three": 3}.get(cell.duration, 1000000000), "scope": "all" if cell.duration == "outage" else "kind"}
        result, requests = self.attempt(folder, rule, cell.duration in PASSING)
        failed = any(fails for _, _, fails in requests)
        self.bucket(folder).fault(os.path.basename(folder), {})
        return self.look(cell, folder, result, failed)


class Product(Scenario):
    """A command that makes files below "root". `before` makes an older result there, which the command replaces."""

    def record(self):
        self.right, self.old = read_tree(os.path.join(self.whole, "root")), read_tree(os.path.join(self.template, "root"))

    def judge(self, cell, folder, result):
        tree = read_tree(os.path.join(folder, "root"))
        differing = sorted({name for name, _ in set(tree.items()) ^ set(self.right.items())})
        text = "exit code %d; %s; %s" % (result.code, " ".join(differing[:4]), " | ".join(result.says)[-400:])
        if result.hung:
            return Verdict("waits, and says so" if tree in (self.old, self.right) or not self.old else "an older result gone", text)
        if result.code == 0:
            return Verdict("unharmed" if tree == self.right else "wrong", text)
        waits = is_waiting(os.path.join(folder, "root"))
        again = self.table.smelt(folder, self.words)
        if again.stopped:
            return Verdict(UNKNOWN, "")
        if tree != self.right and (again.code or read_tree(os.path.join(folder, "root")) != self.right):
            return Verdict("cannot go on", "%s; again: exit code %d, %s" % (text, again.code, again.text[-300:]))
        if tree in (self.old, self.right) or not self.old:
            return Verdict("ended, with a reason", text)
        # What replaces it is whole on the disk, and waits for its names; else the older one is gone for nothing.
        return Verdict("finished by the next start" if waits else "an older result gone", text)


def scenarios(table):
    shared = table.folder
    text, lines, tokenizer = (os.path.join(shared, name) for name in ("text", "lines.jsonl", "tokenizer.json"))
    other = os.path.join(shared, "other")
    own = ["data.train=" + text, "data.tokenizer=" + tokenizer]
    return [
        Training(table, "start", 0),
        Training(table, "resume", SAVED),
        Training(table, "resume-best", SAVED, ["checkpoint.keep_best=true"], about="checkpoints"),
        Training(table, "save-sync", SAVED, ["checkpoint.async=false"], about="checkpoints"),
        Training(table, "prune", SAVED, later=["checkpoint.keep=1"], keep=1, about="checkpoints"),
        Training(table, "lease", 0, seconds=40, about="lease"),
        Training(table, "start-text", 0, about="run/(data|tokenizer)", data=own),
        Training(table, "resume-text", SAVED, about="run/(data|tokenizer)", data=own),
        Training(table, "2-ranks", SAVED, TWO, 2, about="checkpoints|lease"),
        *(Training(table, "2-ranks-" + only.lower().replace("=", ""), SAVED, TWO, 2, only=only) for only in ("RANK=0", "RANK=1")),
        S3Training(table, "s3-start", 0),
        S3Training(table, "s3-resume", SAVED),
        S3Training(table, "s3-prune", SAVED, later=["checkpoint.keep=1"], keep=1),
        S3Training(table, "s3-2-ranks", SAVED, TWO, ranks=2),
        Product(table, "pack", ["data", "pack", text, "root/out"]),
        Product(table, "pack-split", ["data", "pack", text, "root/out", "valid=0.1", "tokenizer=" + tokenizer]),
        Product(table, "pack-jsonl", ["data", "pack", lines, "root/out", "dedup=near"]),
        Product(table, "pack-over", ["data", "pack", text, "root/out", "overwrite=true"], [["data", "pack", other, "root/out"]]),
        Product(table, "pack-folder", ["data", "pack", lines, "root/out", "shard_tokens=2000", "valid=0.1", "tokenizer=" + tokenizer]),
        Product(table, "pack-folder-over", ["data", "pack", text, "root/out", "shard_tokens=2000", "valid=0.1", "overwrite=true"],
                [["data", "pack", other, "root/out", "shard_tokens=2000", "valid=0.1"]]),
        Product(table, "pack-inputs", ["data", "pack", "root/in", "root/out", "tokenizer=root/tokenizer"],
                [["cp", "-r", shared + "/in", "root/in"], ["cp", "-r", shared + "/tokenizer", "root/tokenizer"]]),
        Product(table, "tokenizer", ["data", "train-tokenizer", text, "root/tokenizer.json", "vocabulary=300"]),
        Product(table, "tokenizer-over", ["data", "train-tokenizer", text, "root/tokenizer.json", "vocabulary=300", "overwrite=true"],
                [["data", "train-tokenizer", other, "root/tokenizer.json", "vocabulary=290"]]),
        Product(table, "convert", ["convert", shared + "/model", "root/out"]),
        Product(table, "convert-inputs", ["convert", "root/model", "root/out"], [["cp", "-r", shared + "/hf", "root/model"]]),
        Product(table, "convert-gguf-inputs", ["convert", "root/model", "root/out.gguf"], [["cp", "-r", shared + "/hf", "root/model"]]),
        Product(table, "convert-over", ["convert", shared + "/model", "root/out", "overwrite=true"], [["convert", shared + "/older", "root/out"]]),
        Product(table, "convert-gguf", ["convert", shared + "/model", "root/out.gguf"]),
        Product(table, "convert-gguf-over", ["convert", shared + "/model", "root/out.gguf", "overwrite=true"], [["convert", shared + "/older", "root/out.gguf"]]),
    ]


# -- The table


class Table:
    def __init__(self, options):
        self.options = options
        self.program, self.supervisor = os.path.abspath(options.smelt), os.path.abspath(options.layer)
        self.folder = tempfile.mkdtemp(prefix="smelt-io-", dir=options.folder)
        self.environment = dict(os.environ, OMP_WAIT_POLICY="passive", SMELT_SECRET="the secret of all tests")
        self.given = read_cells(options.cells) if options.cells else None
        self.buckets, self.end = [], time.monotonic() + options.minutes * 60 if options.minutes else float("inf")
        self.write_inputs()

    def write_inputs(self):
        chance = random.Random(1)
        words = "the checkpoint of a model holds every weight and no step is lost when machine stops because bytes are on disk before it says so".split()
        lines = [" ".join(chance.choices(words, k=9)) + "." for _ in range(400)]
        for name, text in (("text", "\n".join(lines)), ("other", "\n".join(reversed(lines))), ("lines.jsonl", "\n".join(json.dumps({"text": x}) for x in lines))):
            with open(os.path.join(self.folder, name), "w") as file:
                file.write(text + "\n")
        os.mkdir(os.path.join(self.folder, "in"))
        train = [*TRAIN, "data.train=data-train", "data.valid=data-valid", "data.tokenizer=tokenizer.json"]
        for command in (["data", "train-tokenizer", "text", "tokenizer.json", "vocabulary=300"], ["data", "pack", "text", "data", "valid=0.1"],
                        ["data", "pack", "text", "model-data", "tokenizer=tokenizer.json"],
                        ["train", *train[:-3], "data.train=model-data", "eval.every=0", "run=model"],
                        ["train", *train[:-3], "data.train=model-data", "eval.every=0", "run=older", "seed=2"], ["convert", "model", "hf"],
                        ["cp", "-r", "hf", "tokenizer"], ["cp", "text", "lines.jsonl", "in"]):
            result = self.execute(self.folder, command) if command[0] == "cp" else self.smelt(self.folder, command)
            if result.code:
                raise Broken(" ".join(command), result)

    def ends(self, process):
        """Whether a process ends in time. Popen.wait would ask again and again, in each of hundreds of threads."""
        handle, ended = os.pidfd_open(process.pid), select.poll()
        ended.register(handle, select.POLLIN)
        try:
            return bool(ended.poll(1000 * max(0, min(self.options.limit, self.end - time.monotonic()))))
        finally:
            os.close(handle)

    def execute(self, folder, words, environment=()):
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(words, cwd=folder, env={**self.environment, **dict(environment)}, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                       start_new_session=True)
            hung = not self.ends(process)
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            code = process.wait()
            output.seek(0)
            return Result(code, output.read().decode(errors="replace"), hung, hung and time.monotonic() >= self.end)

    def smelt(self, folder, words, environment=()):
        return self.execute(folder, [self.program, *words], environment)

    def layer(self, folder, words, fault, environment=()):
        """Runs smelt with a fault. Returns also its calls: seconds, kind, path, and the error or "0"."""
        log = os.path.join(folder, "calls")
        result = self.execute(folder, [self.supervisor, os.path.join(folder, "root"), log, *fault, "--", self.program, *words], environment)
        if result.code == CANNOT:
            sys.exit("the kernel, or a container, permits no filter of system calls here")
        if result.stopped:
            return result, []
        with open(log) as file:
            calls = [line[:-1].split(" ", 2) for line in file if line.endswith("\n")]  # the last line of one that was killed is torn
            return result, [[seconds, kind, *rest.rsplit(" ", 1)] for seconds, kind, rest in calls]

    def cell(self, scenario, cell, number):
        if time.monotonic() >= self.end:
            return cell, Verdict(UNKNOWN, "")
        folder = os.path.join(self.folder, "%s.%d" % (scenario.name, number))
        try:
            verdict = scenario.run(cell, folder)
        except Exception as failure:  # a fault of this program is a row as well
            verdict = Verdict("failed", "%s: %s" % (type(failure).__name__, failure))
        if verdict.outcome in (*GOOD, UNKNOWN) or not self.options.keep:
            shutil.rmtree(folder, ignore_errors=True)
        return cell, verdict

    @staticmethod
    def prepare(scenario):
        """The calls of a scenario, or why there are none."""
        try:
            return scenario.prepare()
        except Broken as failure:
            return failure

    def draw(self, chosen, prepared):
        """The cells of all scenarios in the order in which they run."""
        chance, cells = random.Random(self.options.seed), []
        for scenario, calls in zip(chosen, prepared):
            if isinstance(calls, Broken):
                print(calls, file=sys.stderr, flush=True)
                continue
            given = [(False, cell) for cell in self.given or () if cell.scenario == scenario.name]
            own = [(late, chance.random(), scenario, cell) for late, cell in given or scenario.cells(calls, chance)]
            own.sort(key=lambda each: each[:2])
            print("%s: %d cells of %d calls" % (scenario.name, len(own), len(calls)), file=sys.stderr, flush=True)
            cells += own[:self.options.sample or len(own)]
        return sorted(cells, key=lambda each: each[:2])

    def measure(self, chosen, report):
        """Calls `report` with each cell that has run. Returns how many cells and how many broken scenarios there are."""
        with concurrent.futures.ThreadPoolExecutor(self.options.jobs) as busy:
            if any(isinstance(scenario, S3Training) for scenario in chosen):
                self.buckets = list(busy.map(Bucket, [os.path.join(self.folder, "bucket-%d" % i) for i in range((self.options.jobs + 1) // 2)]))
            prepared = list(busy.map(self.prepare, chosen))
        cells = list(enumerate(self.draw(chosen, prepared)))
        verdicts, workers = multiprocessing.SimpleQueue(), []
        for first in range(self.options.drivers):
            workers.append(multiprocessing.Process(target=self.work, args=(first, cells[first::self.options.drivers], verdicts.put)))
            workers[-1].start()
        for _ in cells:
            report(*verdicts.get())
        for worker in workers:
            worker.join()
        return len(cells), sum(isinstance(calls, Broken) for calls in prepared)

    def work(self, first, cells, report):
        """Runs the share of cells of one driver, on its share of the processors: a Python process runs one thread at a time, and judging a cell is work."""
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[first::self.options.drivers] or os.sched_getaffinity(0))
        share = -(-self.options.jobs // self.options.drivers), -(-self.options.waiting // self.options.drivers)
        with concurrent.futures.ThreadPoolExecutor(share[0]) as busy, concurrent.futures.ThreadPoolExecutor(share[1]) as waiting:
            futures = [(waiting if cell.duration in WAITING else busy).submit(self.cell, scenario, cell, number) for number, (_, _, scenario, cell) in cells]
            for future in concurrent.futures.as_completed(futures):
                report(future.result())


class Report:
    """Counts cells, and keeps the table and what was wrong in a folder as they come."""

    def __init__(self, folder, given):
        self.counts, self.wrong, self.folder, self.given, self.written = collections.Counter(), 0, folder, given, 0
        if folder:
            os.makedirs(folder, exist_ok=True)

    def add(self, cell, verdict):
        self.counts[cell.scenario, cell.duration, verdict.outcome] += 1
        if verdict.outcome == UNKNOWN:
            self.keep("left.txt", " ".join(map(str, cell)))
        if verdict.outcome not in (*GOOD[self.given:], UNKNOWN):
            self.wrong += 1
            line = "%s: %s: %s" % (" ".join(map(str, cell)), verdict.outcome, verdict.text)
            print(line, file=sys.stderr, flush=True)
            self.keep("wrong.txt", line)
        if self.folder and time.monotonic() > self.written + 20:
            self.write(self.text())

    def keep(self, name, line):
        if self.folder:
            with open(os.path.join(self.folder, name), "a") as file:
                file.write(line + "\n")

    def write(self, text):
        self.written = time.monotonic()
        if self.folder:
            with open(os.path.join(self.folder, "table.md"), "w") as file:
                file.write(text)

    def text(self):
        outcomes = [*GOOD, UNKNOWN, *sorted({outcome for _, _, outcome in self.counts} - {*GOOD, UNKNOWN})]
        lines = ["| scenario | fault | cells | %s |\n|%s" % (" | ".join(outcomes), "---|" * (len(outcomes) + 3))]
        for name, duration in sorted({(name, duration) for name, duration, _ in self.counts}):
            row = [self.counts[name, duration, outcome] for outcome in outcomes]
            lines.append("| %s | %s | %d | %s |" % (name, duration, sum(row), " | ".join(map(str, row))))
        return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smelt", default="build/smelt", help="the program (build/smelt)")
    parser.add_argument("--layer", default="build/tests/reliability/fault_calls", help="what makes calls fail (build/tests/reliability/fault_calls)")
    parser.add_argument("--sample", type=int, default=0, help="cells of each scenario, drawn at random (all)")
    parser.add_argument("--every", action="store_true", help="every call of each sequence")
    parser.add_argument("--seed", type=int, default=1, help="of what is drawn (1)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at once (the processors)")
    parser.add_argument("--drivers", type=int, default=1, help="processes that share the cells (1)")
    parser.add_argument("--waiting", type=int, default=0, help="runs beside them with faults that last, which mostly wait (as many)")
    parser.add_argument("--seconds", type=float, default=5, help="how long a fault lasts that passes with time (5)")
    parser.add_argument("--durations", default=",".join(DURATIONS), help="of " + ", ".join(DURATIONS))
    parser.add_argument("--limit", type=float, default=120, help="seconds after which a command hangs, unless it says that it waits (120)")
    parser.add_argument("--minutes", type=float, default=0, help="stop then, and count what was not run (no limit)")
    parser.add_argument("--only", default="", help="scenarios, with commas between them")
    parser.add_argument("--without", default="", help="scenarios that are left out")
    parser.add_argument("--cells", help="a file of cells, which run in place of drawn ones")
    parser.add_argument("--out", help="a folder that gets table.md, wrong.txt and, for --cells, left.txt: what was not run")
    parser.add_argument("--folder", help="where runs lie (the folder for temporary files)")
    parser.add_argument("--keep", action="store_true", help="keep the folder of a cell that went wrong")
    options = parser.parse_args()
    options.waiting = options.waiting or options.jobs
    table = Table(options)
    known = {scenario.name: scenario for scenario in scenarios(table)}
    given = sorted({cell.scenario for cell in table.given or ()})
    names = given or options.only.split(",") if given or options.only else [name for name in known if name not in options.without.split(",")]
    if not set(names) <= set(known):
        parser.error("unknown scenario; there are " + ", ".join(known))
    started, report = time.monotonic(), Report(options.out, bool(options.cells))
    try:
        cells, broken = table.measure([known[name] for name in names], report.add)
    finally:
        for bucket in table.buckets:
            bucket.process.kill()
    left = sum(count for (_, _, outcome), count in report.counts.items() if outcome == UNKNOWN)
    text = report.text() + "\n%d of %d cells in %.0f s, %d wrong, %d not run, %d scenarios broken, seed %d\n" % (
        cells - left, cells, time.monotonic() - started, report.wrong, left, broken, options.seed)
    report.write(text)
    print(text)
    if not options.keep:
        shutil.rmtree(table.folder, ignore_errors=True)
    sys.exit(bool(report.wrong or broken))


if __name__ == "__main__":
    main()
