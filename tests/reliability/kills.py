#!/usr/bin/env python3
"""Kills runs with SIGKILL at random moments, continues them with the same command, and compares what they end with.

Each variant of training is run once undisturbed. Then as many runs of it as asked for are killed, half of them a second time while they continue, and
run to their end: the bytes of every tensor of the last checkpoint (weights and optimizer state) and every record of steps, evaluations and samples but for times
must be those of the undisturbed run. Of a variant with two ranks the supervisor or one of its ranks is killed.

    tests/reliability/kills.py --smelt build/smelt --kills 30 --jobs 8 [device=cuda]
    tests/reliability/kills.py --smelt build/smelt --minutes 20          as many runs as begin within this time

Prints a Markdown table, with the folder of each run that differs, which stays; exit code 1 if there is one. Needs Python's standard library alone, and for
the variant `s3` Debian's swift-proxy, swift-account, swift-container and swift-object.
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

LLAMA = ["model.family=llama", "model.width=32", "model.layers=2", "model.heads=2", "model.kv_heads=1", "model.ffn=64"]
ZAYA = ["model.family=zaya", "model.width=32", "model.layers=2", "model.heads=2", "model.kv_heads=1", "model.ffn=32", "model.experts=4", "model.router_width=8"]
# The embedding of positions that no sequence reaches never changes, so that files of later checkpoints are links to earlier ones.
GPT2 = ["model.family=gpt2", "model.width=32", "model.layers=1", "model.heads=2", "model.ffn=64", "model.context=16384"]
COMMON = ["data.length=32", "batch.sequences=4", "batch.tokens=256", "optimizer.lr=5e-3", "schedule.warmup=4", "steps=90", "threads=1", "tensorboard=false",
          "checkpoint.every=3", "eval.every=20", "eval.sequences=8"]
STEPS = 90
# Name: ranks, and settings, which win over those above.
VARIANTS = {
    "async": (1, LLAMA),
    "sync": (1, [*LLAMA, "checkpoint.async=false"]),
    "shared-files": (2, [*GPT2, "optimizer.weight_decay=0", "checkpoint.whole_every=21"]),
    "muon": (1, [*LLAMA, "optimizer.name=muon"]),
    "lion": (1, [*LLAMA, "optimizer.name=lion"]),
    "zaya": (1, ZAYA),
    "pure_bf16": (1, [*LLAMA, "precision=pure_bf16"]),
    "fp32": (1, [*LLAMA, "precision=fp32"]),
    "accumulation": (1, [*ZAYA, "batch.sequences=2", "batch.tokens=512"]),
    "lora": (1, [*LLAMA, "lora.rank=4", "init=base"]),
    "zero0": (2, [*ZAYA, "layout.zero=0"]),
    "zero1": (2, [*ZAYA, "layout.zero=1"]),
    "zero3": (2, [*ZAYA, "layout.zero=3"]),
    "s3": (1, [*LLAMA, "checkpoint.every=15", "checkpoint.store=s3://kills/{run}"]),
}
LIMIT = 600  # seconds that a process may take before it counts as hung
MOST_RUNS = 1000  # of each variant within --minutes


class Failure(Exception):
    pass


# -- The S3 server


class Bucket:
    """tests/support/s3_server.py, and what it holds as its own protocol tells it, so that no request has to be signed."""

    def __init__(self, folder):
        server = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support", "s3_server.py")
        self.process = subprocess.Popen(["/usr/bin/python3", server, folder, "kills"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = self.process.stdout.readline().split()
        if len(line) != 2:
            sys.exit("the S3 server did not start: install swift-proxy swift-account swift-container swift-object, or give --skip s3")
        self.url = "http://127.0.0.1:" + line[1]
        self.environment = {"AWS_ACCESS_KEY_ID": "test:tester", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_ENDPOINT_URL": self.url}

    def get(self, name):
        headers = {"X-Storage-User": "test:tester", "X-Storage-Pass": "testing"}
        with urllib.request.urlopen(urllib.request.Request(self.url + "/auth/v1.0", headers=headers), timeout=LIMIT) as answer:
            token = {"X-Auth-Token": answer.headers["X-Auth-Token"]}
        with urllib.request.urlopen(urllib.request.Request(self.url + "/v1/AUTH_test/kills/" + name, headers=token), timeout=LIMIT) as answer:
            return answer.read()


# -- Running and killing


def children(pid):
    """The ranks of a supervisor; none of a process that has ended."""
    try:
        with open("/proc/%d/task/%d/children" % (pid, pid)) as file:
            return [int(child) for child in file.read().split()]
    except OSError:
        return []


def await_end(pids):
    until = time.monotonic() + LIMIT
    while any(os.path.exists("/proc/%d" % pid) for pid in pids):
        if time.monotonic() > until:
            raise Failure("process %s outlives its supervisor" % pids)
        time.sleep(0.01)


class Trial:
    """One run of a variant in a folder of its own."""

    def __init__(self, table, name, run):
        self.table, self.name, self.run = table, name, run
        self.ranks, settings = VARIANTS[name]
        words = [*COMMON, *(word.format(run=run) for word in settings), "data.train=text", "run=" + run, *table.options.settings]
        launch = ["launch", "-n", str(self.ranks), "--"] if self.ranks > 1 else []
        self.command = [table.smelt, *launch, "train", *words]
        self.kills = self.saves = 0

    def start(self):
        log = open(os.path.join(self.table.folder, self.run + ".log"), "a")
        with log:
            return subprocess.Popen(self.command, cwd=self.table.folder, env=self.table.environment, stdout=log, stderr=log)

    def await_success(self, process):
        if process.wait(LIMIT) != 0:
            with open(os.path.join(self.table.folder, self.run + ".log")) as log:
                raise Failure("exit code %d: %s" % (process.returncode, log.read()[-500:]))

    def finish(self):
        started = time.monotonic()
        self.await_success(self.start())
        return time.monotonic() - started

    def kill(self, delay, chance):
        """Whether the run was killed `delay` seconds after its start. When a rank was, its supervisor goes on to the end."""
        process = self.start()
        try:
            process.wait(delay)
        except subprocess.TimeoutExpired:
            ranks = children(process.pid) if self.ranks > 1 else []
            victim = chance.choice([process.pid, *ranks])
            os.kill(victim, signal.SIGKILL)
            self.kills += 1
            self.saves += self.is_half_saved()
            if victim != process.pid:
                self.await_success(process)
            process.wait(LIMIT)
            await_end(ranks)
            return True
        self.await_success(process)
        return False

    def is_half_saved(self):
        folder = os.path.join(self.table.folder, self.run, "checkpoints")
        return os.path.isdir(folder) and any(".partial-" in name for name in os.listdir(folder))

    # What a run ends with

    def file(self, name):
        name = "checkpoints/step-%08d/%s" % (STEPS, name)
        if self.name == "s3":
            return self.table.bucket.get(self.run + "/" + name)
        with open(os.path.join(self.table.folder, self.run, name), "rb") as file:
            return file.read()

    def tensors(self):
        """A hash of the bytes of each tensor, however they are cut into intervals and files."""
        manifest = json.loads(self.file("manifest.json"))
        files = [self.file(entry["name"]) for entry in manifest["files"]]
        pieces = {}
        for interval in manifest["intervals"]:
            data = files[interval["file"]][interval["begin"]:interval["end"]]
            pieces.setdefault((interval["tensor"], interval["dtype"]), []).append((interval["first"], data))
        return {tensor: hashlib.sha256(b"".join(data for _, data in sorted(parts))).hexdigest() for tensor, parts in pieces.items()}

    def records(self):
        """What each step, evaluation and sample reported that does not depend on time, as text to the last digit."""
        fields = ("kind", "step", "loss", "auxiliary", "grad_norm", "lr", "tokens", "tokens_seen", "text")
        with open(os.path.join(self.table.folder, self.run, "metrics.jsonl")) as file:
            lines = [json.loads(line, parse_float=str) for line in file]
        return sorted([str(line.get(field)) for field in fields] for line in lines if line["kind"] in ("step", "evaluation", "sample"))

    def difference(self, other):
        mine, theirs = self.tensors(), other.tensors()
        differing = sorted(tensor for tensor, _ in dict(mine.items() ^ theirs.items()))
        if differing:
            return "%d of %d tensors differ, such as %s" % (len(set(differing)), len(theirs), differing[0])
        mine, theirs = self.records(), other.records()
        return "" if mine == theirs else "records differ, such as %s" % next(row for row in mine + theirs if (row in mine) != (row in theirs))

    def resumes(self):
        with open(os.path.join(self.table.folder, self.run, "metrics.jsonl")) as file:
            return sum(line["kind"] == "start" and 0 < line["step"] < STEPS for line in map(json.loads, file))

    def shares(self):
        """Whether the last checkpoint has a file that an earlier save wrote."""
        return any(entry["name"].startswith("step-") for entry in json.loads(self.file("manifest.json"))["files"])

    def remove(self):
        shutil.rmtree(os.path.join(self.table.folder, self.run))


# -- The table


class Table:
    def __init__(self, options):
        self.options = options
        self.smelt = os.path.abspath(options.smelt)
        self.folder = tempfile.mkdtemp(prefix="smelt-kills-", dir=options.folder)
        self.environment = dict(os.environ, OMP_WAIT_POLICY="passive")
        self.bucket = None
        self.whole, self.seconds = {}, {}
        self.until = time.monotonic() + 60 * options.minutes if options.minutes else float("inf")
        chance = random.Random(1)
        words = "the checkpoint of a model holds every weight and no step is lost when machine stops because bytes are on disk before it says so".split()
        with open(os.path.join(self.folder, "text"), "w") as file:
            file.write("".join(" ".join(chance.choices(words, k=9)) + ".\n" for _ in range(2000)))

    def open(self, variants):
        if "s3" in variants:
            self.bucket = Bucket(os.path.join(self.folder, "bucket"))
            self.environment.update(self.bucket.environment)
        if "lora" in variants:
            base = [*COMMON, *LLAMA, "data.train=text", "run=base", "stop_at=3", *self.options.settings]
            subprocess.run([self.smelt, "train", *base], cwd=self.folder, env=self.environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def undisturbed(self, name):
        self.whole[name] = Trial(self, name, name + "-whole")
        self.seconds[name] = self.whole[name].finish()
        if name == "shared-files" and not self.whole[name].shares():
            raise SystemExit("no file of the last checkpoint of shared-files is an earlier one's: nothing would be tested")

    def disturbed(self, name, number):
        """A run that is killed once, or twice if its number is odd; how often it was continued; and what is wrong with it in the end, or "". None: the time is over."""
        if time.monotonic() > self.until:
            return None
        chance = random.Random("%d %s %d" % (self.options.seed, name, number))

        def killed(trial):
            return trial.kill(chance.uniform(0, self.seconds[name]), chance)

        for attempt in range(100):
            trial = Trial(self, name, "%s-%d.%d" % (name, number, attempt))
            try:
                if not killed(trial):  # it ended first
                    trial.remove()
                    continue
                if number % 2:
                    killed(trial)
                trial.finish()
                wrong, resumes = trial.difference(self.whole[name]), trial.resumes()
            except (Failure, OSError, subprocess.TimeoutExpired, KeyError, ValueError) as failure:
                return trial, 0, "%s: %s" % (type(failure).__name__, failure)
            if not wrong:
                trial.remove()
            return trial, resumes, wrong
        return trial, 0, "it ended before each kill"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smelt", default="build/smelt", help="the program (build/smelt)")
    parser.add_argument("--kills", type=int, default=30, help="runs of each variant that are killed (30)")
    parser.add_argument("--minutes", type=float, help="after this time no run is begun; as many of each variant as fit, instead of --kills")
    parser.add_argument("--jobs", type=int, default=max(1, os.cpu_count() // 2), help="runs at once (half the processors)")
    parser.add_argument("--seed", type=int, default=1, help="of the moments (1)")
    parser.add_argument("--folder", help="where runs lie; S3 needs extended attributes there (the folder for temporary files)")
    parser.add_argument("--only", default=",".join(VARIANTS), help="variants, with commas between them")
    parser.add_argument("--skip", default="", help="variants to leave out")
    parser.add_argument("settings", nargs="*", help="settings for all runs, such as device=cuda")
    options = parser.parse_args()
    variants = [name for name in options.only.split(",") if name not in options.skip.split(",")]
    unknown = [name for name in variants if name not in VARIANTS]
    if unknown:
        parser.error("unknown variant: %s; there are %s" % (", ".join(unknown), ", ".join(VARIANTS)))
    if not any(word.startswith("device=") for word in options.settings):
        options.settings.append("device=cpu")
    sys.exit(measure(Table(options), variants))


def measure(table, variants):
    started, failed = time.monotonic(), 0
    try:
        table.open(variants)
        with concurrent.futures.ThreadPoolExecutor(table.options.jobs) as pool:
            list(pool.map(table.undisturbed, variants))
            # The one S3 server is the slowest part: its runs are spread among the others.
            trials = {name: [] for name in variants}
            for number in range(MOST_RUNS if table.options.minutes else table.options.kills):
                for name in variants:
                    trials[name].append(pool.submit(table.disturbed, name, number))
            print("| variant | runs | kills | with a save half done | continued from a checkpoint | other than undisturbed |\n|---|---|---|---|---|---|", flush=True)
            for name in variants:
                results = [result for result in (trial.result() for trial in trials[name]) if result]
                wrong = [(trial, reason) for trial, _, reason in results if reason]
                failed += len(wrong)
                print("| %s | %d | %d | %d | %d | %d |" % (name, len(results), sum(trial.kills for trial, _, _ in results), sum(trial.saves for trial, _, _ in results),
                                                      sum(resumes for _, resumes, _ in results), len(wrong)), flush=True)
                for trial, reason in wrong:
                    print("%s/%s: %s" % (table.folder, trial.run, reason), file=sys.stderr, flush=True)
    finally:
        if table.bucket:
            table.bucket.process.kill()
    print("\n%d variants in %.0f s, seed %d" % (len(variants), time.monotonic() - started, table.options.seed))
    if not failed:
        shutil.rmtree(table.folder)
    return 1 if failed else 0


if __name__ == "__main__":
    main()
