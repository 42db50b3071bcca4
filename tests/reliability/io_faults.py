#!/usr/bin/env python3
"""Fails the system calls on files, or the requests to S3, of one command after the other, and counts what is lost.

Each scenario is a command that is run once undisturbed; its calls are recorded (fault_calls.c). Then each call fails with each error that it can have: once,
three times (it and the next two of its kind), for some seconds, or for ever (all of its kind). After each such run an independent reader (xxh3 of the manifest
and of every range) looks for the checkpoints that were acknowledged, and compares tensors with those of the undisturbed run; a run that ended is started again.
Commands that make files must have made the whole of them or none, and a second start must make them.

    tests/reliability/io_faults.py --smelt build/smelt --layer build/tests/reliability/fault_calls [--sample 200] [--only resume,pack]

Prints a Markdown table and what was wrong in each cell; exit code 1 if anything was. Needs Python's standard library and libxxhash; for S3 Debian's
swift-proxy, swift-account, swift-container and swift-object.
"""
import argparse
import collections
import concurrent.futures
import ctypes
import errno
import json
import os
import random
import re
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
         "device=cpu", "checkpoint.every=4", "checkpoint.keep=2", "eval.every=4", "eval.sequences=4", "steps=16"]
STEPS, SAVED, KEEP = 16, 8, 2  # steps of a run, those of a run that is to be continued, and how many checkpoints stay
PACE = 800  # milliseconds of a step where faults pass with time, so that the run outlives them

ALWAYS = ["EIO", "ESTALE", "EACCES", "EAGAIN", "ENOMEM", "ETIMEDOUT", "EINTR"]
CHANGES = ["ENOSPC", "EDQUOT", "EROFS"]
# The errors that the kernel, or a file system over a network, can return from a call of each kind. EAGAIN of a lock is not a fault: the lock is taken.
ERRORS = {
    "open": [*ALWAYS, "ENOENT", "EMFILE"], "create": [*ALWAYS, *CHANGES, "ENOENT", "EMFILE"], "read": [*ALWAYS, "ENOENT"], "write": [*ALWAYS, *CHANGES],
    "resize": [*ALWAYS, *CHANGES], "rename": [*ALWAYS, *CHANGES, "ENOENT"], "link": [*ALWAYS, *CHANGES, "ENOENT"], "remove": [*ALWAYS, *CHANGES],
    "mkdir": [*ALWAYS, *CHANGES, "ENOENT"], "sync": [*ALWAYS, *CHANGES], "list": [*ALWAYS, "ENOENT"], "stat": [*ALWAYS, "ENOENT"],
    "lock": [error for error in ALWAYS if error != "EAGAIN"], "close": [*ALWAYS, "ENOSPC", "EDQUOT"], "map": [*ALWAYS, "EMFILE"], "space": [*ALWAYS, "ENOENT"],
}
# How long: the words for fault_calls. An outage fails calls of all kinds. No signal interrupts calls for ever.
DURATIONS = {"once": ["for=1"], "three": ["for=3"], "seconds": ["for={seconds}s"], "outage": ["for={seconds}s", "scope=all"], "ever": ["for=1000000000"]}
PASSING = ("seconds", "outage")

# One fault: call number `number` of a kind on a path, how it fails, and for how long.
Cell = collections.namedtuple("Cell", "scenario kind path number error duration")
# The damage after the fault, or "", and whether the fault came at all.
Verdict = collections.namedtuple("Verdict", "outcome text")
GOOD = ("not reached", "unharmed", "ended, with a reason", "refused at the start", "finished by the next start")


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


# -- Scenarios


class Result:
    """A command that has ended."""

    def __init__(self, code, text, hung):
        self.code, self.text, self.hung = code, text, hung
        self.says = re.findall(r"^(?:.*: )?(?:error|warning): .*$", text, re.MULTILINE)


class Scenario:
    """A command below the folder "root" of a folder of its own, which begins as a copy of `template`."""

    paced = None  # the file whose writes pace it; None: it is not paced

    def __init__(self, table, name, words, before=()):
        self.table, self.name, self.words, self.before = table, name, list(words), before
        self.template = os.path.join(table.folder, name + ".template")
        self.whole = os.path.join(table.folder, name + ".whole")

    def prepare(self):
        """Makes the template and runs the command undisturbed. Returns its calls."""
        os.makedirs(os.path.join(self.template, "root"))
        for words in self.before:
            result = self.table.execute(self.template, words) if words[0] == "cp" else self.table.smelt(self.template, words)
            if result.code:
                sys.exit("%s: %s" % (" ".join(words), result.text))
        shutil.copytree(self.template, self.whole, symlinks=True)
        result, calls = self.table.layer(self.whole, self.words, [])
        if result.code:
            sys.exit("%s: exit code %d: %s" % (self.name, result.code, result.text))
        self.record()
        return calls

    def cells(self, calls):
        """Every single call of the undisturbed command with every error that it can have."""
        counted = collections.Counter()
        for _, kind, path, _ in calls:
            counted[kind, path] += 1
            for error in ERRORS[kind]:
                yield kind, path, counted[kind, path], error

    def fault(self, cell):
        return ["kind=" + cell.kind, "path=" + cell.path, "call=%d" % cell.number, "error=%d" % getattr(errno, cell.error),
                *(word.format(seconds=self.table.options.seconds) for word in DURATIONS[cell.duration]),
                *(["pace=%d:%s" % (PACE, self.paced)] if self.paced and cell.duration in PASSING else [])]

    def run(self, cell, folder):
        shutil.copytree(self.template, folder, symlinks=True)
        result, calls = self.table.layer(folder, self.words, self.fault(cell))
        return self.look(cell, folder, result, any(call[3] != "0" for call in calls))

    def look(self, cell, folder, result, failed):
        if not failed:
            return Verdict("not reached", "")
        if result.hung:
            return Verdict("hung", result.text[-300:])
        if result.code > 9 or result.code < 0:
            return Verdict("crashed", "exit code %d: %s" % (result.code, result.text[-300:]))
        if result.code and not result.says:
            return Verdict("ended without a reason", "exit code %d" % result.code)
        return self.judge(cell, folder, result)


class Training(Scenario):
    """A run of which `saved` steps are done, and the last two saves acknowledged."""

    paced = "run/metrics.jsonl"

    def __init__(self, table, name, saved, settings=(), ranks=1):
        launch = ["launch", "-n", str(ranks), "--"] if ranks > 1 else []
        self.saved = [step for step in (saved - 4, saved) if step > 0]
        words = [*launch, "train", *TRAIN, "data.train=%s/data-train" % table.folder, "data.valid=%s/data-valid" % table.folder, "run=root/run", *settings]
        super().__init__(table, name, words, [[*words, "stop_at=%d" % saved]] if saved else [])

    def command(self, folder, words):
        return words

    def read(self, folder):
        return read_checkpoints(os.path.join(folder, "root", "run", "checkpoints"))

    def record(self):
        """The checkpoints of an undisturbed run that keeps all."""
        folder = self.whole + "-all"
        os.makedirs(os.path.join(folder, "root"))
        result = self.table.smelt(folder, [*self.words, "checkpoint.keep=1000"])
        if result.code:
            sys.exit(result.text)
        self.right = self.read(folder)

    def judge(self, cell, folder, result):
        acknowledged = {*self.saved, *map(int, re.findall(r"checkpoint of step (\d+): .* in ", result.text))}
        good = self.read(folder)
        kept = sorted(acknowledged | set(good))[-KEEP:]
        lost = [step for step in kept if step in acknowledged and step not in good]
        other = [step for step in good if good[step] != self.right.get(step)]
        text = "exit code %d; lost %s, there are %s; %s" % (result.code, lost, sorted(good), " | ".join(result.says)[-600:])
        if lost:
            return Verdict("lost, and said so" if any("step" in line for line in result.says) else "lost in silence", text)
        if other or (result.code == 0 and STEPS not in good):
            return Verdict("wrong", text)
        if result.code == 0:
            return Verdict("unharmed", text)
        return self.restart(cell, folder, result, acknowledged, text)

    def restart(self, cell, folder, result, acknowledged, text):
        """After a run that ended: where the same command goes on, and with what it ends."""
        again = self.table.smelt(folder, self.command(folder, self.words))
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
        server = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support", "s3_server.py")
        self.process = subprocess.Popen(["/usr/bin/python3", server, folder, "faults"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = self.process.stdout.readline().split()
        if len(line) != 2:
            sys.exit("the S3 server did not start: install swift-proxy swift-account swift-container swift-object, or name scenarios without s3")
        self.url = "http://127.0.0.1:" + line[1]
        self.environment = {"AWS_ACCESS_KEY_ID": "test:tester", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_ENDPOINT_URL": self.url, "AWS_REGION": "us-east-1"}
        self.token = self.ask("/auth/v1.0", {"X-Storage-User": "test:tester", "X-Storage-Pass": "testing"}, lambda answer: answer.headers["X-Auth-Token"])

    def ask(self, path, headers=(), take=lambda answer: answer.read(), **options):
        with urllib.request.urlopen(urllib.request.Request(self.url + path, headers=dict(headers), **options), timeout=120) as answer:
            return take(answer)

    def get(self, name):
        return self.ask("/v1/AUTH_test/faults/" + name, {"X-Auth-Token": self.token})

    def list(self, prefix):
        return self.ask("/v1/AUTH_test/faults?prefix=" + urllib.parse.quote(prefix), {"X-Auth-Token": self.token}).decode().split()

    def fault(self, name, rule):
        self.ask("/.faults/" + name, method="PUT", data=json.dumps(rule).encode())

    def requests(self, name):
        return json.loads(self.ask("/.faults/" + name))


class S3Training(Training):
    """A run whose checkpoints go to a bucket, under the name of its folder. Requests fail in place of system calls."""

    def __init__(self, table, name, saved, settings=()):
        super().__init__(table, name, saved, settings)
        self.before, self.first = [], self.before

    def command(self, folder, words):
        return [*words, "checkpoint.store=s3://faults/" + os.path.basename(folder)]

    def prepare(self):
        os.makedirs(os.path.join(self.template, "root"))
        self.table.bucket = self.table.bucket or Bucket(os.path.join(self.table.folder, "bucket"))
        self.table.environment.update(self.table.bucket.environment)
        _, requests = self.attempt(self.whole, {}, False)
        self.record()
        return [(0, kind, key, 0) for kind, key, _ in requests]

    def cells(self, calls):
        counted = collections.Counter()
        for _, kind, key, _ in calls:
            counted[kind, key] += 1
            for answer in ("403", "404", "500", "503", "reset", "slow", *(("cut",) if kind in ("GET", "LIST") else ())):
                yield kind, key, counted[kind, key], answer

    def record(self):
        folder = self.whole + "-all"
        os.makedirs(os.path.join(folder, "root"))
        self.table.smelt(folder, [*self.command(folder, self.words), "checkpoint.keep=1000"])
        self.right = self.read(folder)

    def read(self, folder):
        prefix, good = os.path.basename(folder) + "/checkpoints/", {}
        steps = {name[len(prefix):].split("/")[0] for name in self.table.bucket.list(prefix)}
        for step in (step for step in steps if re.fullmatch(r"step-\d{8}", step)):
            try:
                good[int(step[5:])] = read_checkpoint(lambda name: self.table.bucket.get(prefix + step + "/" + name))
            except (Damaged, OSError, ValueError, KeyError, IndexError):
                pass
        return good

    def attempt(self, folder, rule, paced):
        """The run, after what is to be done before it. Returns also its requests."""
        os.makedirs(os.path.join(folder, "root"))
        for words in self.first:
            self.table.smelt(folder, self.command(folder, words))
        self.table.bucket.fault(os.path.basename(folder), rule)
        pace = ["pace=%d:%s" % (PACE, self.paced)] if paced else []
        result, _ = self.table.layer(folder, self.command(folder, self.words), pace)
        return result, self.table.bucket.requests(os.path.basename(folder))

    def run(self, cell, folder):
        seconds = self.table.options.seconds if cell.duration in PASSING else 1e9
        rule = {"kind": cell.kind, "key": cell.path, "number": cell.number, "answer": cell.error, "seconds": seconds,
                "times": {"once": 1, "three": 3}.get(cell.duration, 1000000000), "scope": "all" if cell.duration == "outage" else "kind"}
        result, requests = self.attempt(folder, rule, cell.duration in PASSING)
        failed = any(fails for _, _, fails in requests)
        self.table.bucket.fault(os.path.basename(folder), {})
        return self.look(cell, folder, result, failed)


class Product(Scenario):
    """A command that makes files below "root". `before` makes an older result there, which the command replaces."""

    def record(self):
        self.right, self.old = read_tree(os.path.join(self.whole, "root")), read_tree(os.path.join(self.template, "root"))

    def judge(self, cell, folder, result):
        tree = read_tree(os.path.join(folder, "root"))
        differing = sorted({name for name, _ in set(tree.items()) ^ set(self.right.items())})
        text = "exit code %d; %s; %s" % (result.code, " ".join(differing[:4]), " | ".join(result.says)[-400:])
        if result.code == 0:
            return Verdict("unharmed" if tree == self.right else "wrong", text)
        waits = any(name.endswith(".pack.json.next") for name in os.listdir(os.path.join(folder, "root")))
        again = self.table.smelt(folder, self.words)
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
    return [
        Training(table, "start", 0),
        Training(table, "resume", SAVED),
        Training(table, "resume-best", SAVED, ["checkpoint.keep_best=true"]),
        Training(table, "resume-sync", SAVED, ["checkpoint.async=false"]),
        Training(table, "resume-2-ranks", SAVED, ["checkpoint.timeout=20"], ranks=2),
        S3Training(table, "s3-start", 0),
        S3Training(table, "s3-resume", SAVED),
        Product(table, "pack", ["data", "pack", text, "root/out"]),
        Product(table, "pack-split", ["data", "pack", text, "root/out", "valid=0.1", "tokenizer=" + tokenizer]),
        Product(table, "pack-jsonl", ["data", "pack", lines, "root/out", "dedup=near"]),
        Product(table, "pack-over", ["data", "pack", text, "root/out", "overwrite=true"], [["data", "pack", other, "root/out"]]),
        Product(table, "pack-folder", ["data", "pack", lines, "root/out", "shard_tokens=2000", "valid=0.1", "tokenizer=" + tokenizer]),
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
        self.bucket = None
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
                sys.exit("%s: %s" % (" ".join(command), result.text))

    def execute(self, folder, words):
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(words, cwd=folder, env=self.environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
            try:
                code, hung = process.wait(self.options.limit), False
            except subprocess.TimeoutExpired:
                code, hung = -1, True
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
            output.seek(0)
            return Result(code, output.read().decode(errors="replace"), hung)

    def smelt(self, folder, words):
        return self.execute(folder, [self.program, *words])

    def layer(self, folder, words, fault):
        """Runs smelt with a fault. Returns also its calls: seconds, kind, path, and the error or "0"."""
        log = os.path.join(folder, "calls")
        result = self.execute(folder, [self.supervisor, os.path.join(folder, "root"), log, *fault, "--", self.program, *words])
        with open(log) as file:
            calls = [line[:-1].split(" ", 2) for line in file if line.endswith("\n")]  # the last line of one that was killed is torn
            return result, [[seconds, kind, *rest.rsplit(" ", 1)] for seconds, kind, rest in calls]

    def cell(self, scenario, cell, number):
        folder = os.path.join(self.folder, "%s.%d" % (scenario.name, number))
        try:
            verdict = scenario.run(cell, folder)
        except Exception as failure:  # a fault of this program is a row as well
            verdict = Verdict("failed", "%s: %s" % (type(failure).__name__, failure))
        if verdict.outcome in GOOD or not self.options.keep:
            shutil.rmtree(folder, ignore_errors=True)
        return cell, verdict

    def measure(self, chosen):
        counts, wrong, chance = collections.Counter(), [], random.Random(self.options.seed)
        with concurrent.futures.ThreadPoolExecutor(self.options.jobs) as pool:
            for scenario in chosen:
                calls = list(scenario.cells(scenario.prepare()))
                cells = [Cell(scenario.name, *call, duration) for call in calls for duration in self.options.durations.split(",")
                         if call[-1] != "EINTR" or duration in ("once", "three")]
                whole = len(cells)
                if self.options.sample and self.options.sample < whole:
                    cells = chance.sample(cells, self.options.sample)
                print("%s: %d of %d cells" % (scenario.name, len(cells), whole), file=sys.stderr, flush=True)
                for future in [pool.submit(self.cell, scenario, cell, number) for number, cell in enumerate(cells)]:
                    cell, verdict = future.result()
                    counts[scenario.name, cell.duration, verdict.outcome] += 1
                    if verdict.outcome not in GOOD:
                        wrong.append((cell, verdict))
                        print("%s: %s" % (" ".join(map(str, cell)), verdict.outcome + ": " + verdict.text), file=sys.stderr, flush=True)
        return counts, wrong


def print_table(counts):
    outcomes = [*GOOD, *sorted({outcome for _, _, outcome in counts} - set(GOOD))]
    print("| scenario | fault | cells | %s |\n|%s" % (" | ".join(outcomes), "---|" * (len(outcomes) + 3)))
    for name, duration in dict.fromkeys((name, duration) for name, duration, _ in counts):
        row = [counts[name, duration, outcome] for outcome in outcomes]
        print("| %s | %s | %d | %s |" % (name, duration, sum(row), " | ".join(map(str, row))))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smelt", default="build/smelt", help="the program (build/smelt)")
    parser.add_argument("--layer", default="build/tests/reliability/fault_calls", help="what makes calls fail (build/tests/reliability/fault_calls)")
    parser.add_argument("--sample", type=int, default=0, help="cells of each scenario, drawn at random (all)")
    parser.add_argument("--seed", type=int, default=1, help="of the sample (1)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at once (the processors)")
    parser.add_argument("--seconds", type=float, default=5, help="how long a fault lasts that passes with time (5)")
    parser.add_argument("--durations", default=",".join(DURATIONS), help="of " + ", ".join(DURATIONS))
    parser.add_argument("--limit", type=float, default=120, help="seconds after which a command hangs (120)")
    parser.add_argument("--only", default="", help="scenarios, with commas between them")
    parser.add_argument("--folder", help="where runs lie (the folder for temporary files)")
    parser.add_argument("--keep", action="store_true", help="keep the folder of a cell that went wrong")
    options = parser.parse_args()
    table = Table(options)
    known = {scenario.name: scenario for scenario in scenarios(table)}
    names = options.only.split(",") if options.only else list(known)
    if not set(names) <= set(known):
        parser.error("unknown scenario; there are " + ", ".join(known))
    started = time.monotonic()
    try:
        counts, wrong = table.measure([known[name] for name in names])
    finally:
        if table.bucket:
            table.bucket.process.kill()
    print_table(counts)
    print("\n%d cells in %.0f s, %d wrong, seed %d" % (sum(counts.values()), time.monotonic() - started, len(wrong), options.seed))
    if not options.keep:
        shutil.rmtree(table.folder, ignore_errors=True)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
