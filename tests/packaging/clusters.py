"""Checks packaging/kubernetes. Usage: clusters.py schemas | clusters.py codes SMELT, with a text in the file `text`

schemas: each file has the fields and types of Kubeflow Trainer's published models, and no others. codes: `smelt launch` ends with codes for which the
podFailurePolicy has the right rule."""
import os
import signal
import subprocess
import sys
import time

import yaml

FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "packaging/kubernetes")


def documents():
    for name in sorted(os.listdir(FOLDER)):
        with open(os.path.join(FOLDER, name)) as file:
            for document in yaml.safe_load_all(file):
                yield name, document


def differences(given, read, path=""):
    """Where a document differs from what the models kept of it: fields that they do not have."""
    if isinstance(given, dict) and isinstance(read, dict):
        for key, value in given.items():
            if key in read:
                yield from differences(value, read[key], f"{path}.{key}")
            elif value != {}:  # the models leave out what is empty
                yield f"{path}.{key}"
    elif isinstance(given, list) and isinstance(read, list) and len(given) == len(read):
        for i, pair in enumerate(zip(given, read)):
            yield from differences(*pair, f"{path}[{i}]")
    elif given != read:
        yield f"{path}: {given!r} is read as {read!r}"


def check_schemas():
    from kubeflow_trainer_api import models

    kinds = {"ClusterTrainingRuntime": models.TrainerV1alpha1ClusterTrainingRuntime, "TrainJob": models.TrainerV1alpha1TrainJob, "JobSet": models.JobsetV1alpha2JobSet}
    checked = 0
    for name, document in documents():
        read = kinds[document["kind"]].from_dict(document).to_dict()
        found = list(differences(document, read))
        assert not found, f"{name}: {found}"
        assert len(document["metadata"]["name"]) <= 20, name
        checked += 1
    broken = next(document for _, document in documents() if document["kind"] == "TrainJob")
    broken["spec"]["trainer"]["numNode"] = 2  # the check finds a wrong name
    assert list(differences(broken, kinds["TrainJob"].from_dict(broken).to_dict())) == [".spec.trainer.numNode"]
    print(f"{checked} documents fit the models of Kubeflow Trainer and JobSet")


def action(rules, code):
    """What Kubernetes does with a pod whose container `node` has ended with a code: the action of the first rule that fits, or Count."""
    for rule in rules:
        codes = rule.get("onExitCodes")
        if codes and codes["containerName"] == "node" and (code in codes["values"]) == (codes["operator"] == "In"):
            return rule["action"]
    return "Count"


def check_codes(smelt):
    policies = {}
    for name, document in documents():
        for job in document["spec"].get("template", document)["spec"].get("replicatedJobs", []):
            pod = job["template"]["spec"]
            policies[name] = pod["podFailurePolicy"]["rules"]
            container = pod["template"]["spec"]["containers"][0]
            grace = next(float(word[len("grace=") :]) for word in container["command"] if word.startswith("grace="))
            assert pod["template"]["spec"]["terminationGracePeriodSeconds"] > grace + 30, name
            assert policies[name][0]["onPodConditions"][0]["type"] == "DisruptionTarget", name
    assert len(policies) == 2 and len({str(rules) for rules in policies.values()}) == 1
    rules = policies["runtime.yaml"]
    tiny = "train data.train=text model.family=llama model.width=32 model.layers=2 model.heads=2 model.kv_heads=1 model.ffn=32 data.length=32 batch.sequences=4 batch.tokens=256 device=cpu threads=1 tensorboard=false".split()

    def launch(*words, stop=False, options=("restarts=0",)):
        process = subprocess.Popen([smelt, "launch", "grace=120", *options, "--", *tiny, *words], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        if stop:
            run = next(word[4:] for word in words if word.startswith("run="))
            while not os.path.exists(f"{run}/metrics.jsonl") or '"kind": "step"' not in open(f"{run}/metrics.jsonl").read():
                assert process.poll() is None, "it ended before its first step"
                time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
        return process.wait()

    expected = {
        "wrong setting": (launch("run=a", "model.width=-1"), 2, "FailJob"),
        "no data": (launch("run=a", "data.train=none"), 3, "FailJob"),
        "NaN": (launch("run=b", "steps=30", "optimizer.name=lion", "optimizer.lr=100", "optimizer.clip=0", "schedule.kind=constant"), 5, "FailJob"),
        "evicted": (launch("run=c", "steps=100000", stop=True), 8, "Ignore"),
        "done": (launch("run=d", "steps=3"), 0, None),
    }
    for what, (code, right, done) in expected.items():
        assert code == right, f"{what}: exit code {code} in place of {right}"
        assert done is None or action(rules, code) == done, f"{what}: {action(rules, code)} in place of {done}"
    assert [action(rules, code) for code in (1, 4, 6, 7, 9, 137)] == ["Count", "FailJob", "Count", "FailJob", "Count", "Count"]
    print(f"{len(expected)} ends meet the rules for pods")


if sys.argv[1] == "schemas":
    check_schemas()
else:
    check_codes(sys.argv[2])
