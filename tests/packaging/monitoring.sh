#!/bin/sh
# Checks packaging/monitoring: the alert rules and their tests by promtool, the expressions of the dashboard and of the rules by promtool and by the
# names that smelt exports, and what a training and `smelt watch` serve. Where promtool is not installed, its checks are left out and that is said.
# Usage: monitoring.sh SMELT, with a run in the folder `run`, from the root of the repository
set -eu
smelt=$(realpath "$1")
monitoring=$(realpath packaging/monitoring)
folder=$(mktemp -d)
watcher=""
trap '[ -z "$watcher" ] || kill $watcher 2>/dev/null || true; rm -rf "$folder"' EXIT
names=$(sed -n 's/.*{"\(smelt_run_[a-z_]*\)".*/\1/p; s/.*state_name\[\] = "\([a-z_]*\)".*/\1/p' src/run/export.c)
cd "$folder"

# Each name that a rule or a panel reads is exported.
for used in $(grep -oh 'smelt_run_[a-z_]*' "$monitoring"/smelt-alerts.yml "$monitoring"/smelt-dashboard.json | sort -u); do
    echo "$names" | grep -qx "$used" || { echo "monitoring: $used is not exported"; exit 1; }
done

mkdir run
printf 'steps: 40\n' >run/config.yaml
printf '%s\n' '{"kind": "step", "step": 3, "loss": 2.5, "milliseconds": 12.5, "tokens_seen": 300, "grad_norm": 1, "lr": 0.001, "memory_bytes": 5e6, "waiting_milliseconds": 1, "peak_percent": 40, "best_percent": 50, "tflops": 3, "tokens_per_second": 99, "images_per_second": 2, "auxiliary": 0, "reward_chosen": 1, "reward_rejected": 0, "reward_margin": 1, "reward_accuracy": 0.5, "reward": 0.5, "sample_length": 12, "entropy": 1, "mismatch_kl": 0, "time": 1796000000.5}' \
    '{"kind": "evaluation", "step": 3, "loss": 2.25, "bits_per_byte": 1.5, "time": 1796000001}' '{"kind": "checkpoint", "step": 3, "bytes": 1000, "milliseconds": 4, "time": 1796000002}' \
    '{"kind": "system", "step": 3, "cpu_percent": 50.5, "machine_memory_bytes": 3e9, "disk_read_bytes_per_second": 1, "disk_written_bytes_per_second": 2, "network_received_bytes_per_second": 3, "network_sent_bytes_per_second": 4, "gpu_percent": [90, 80], "gpu_memory_bytes": [1, 2], "gpu_watts": [600, null], "gpu_celsius": [60, 61], "joules": 5, "time": 1796000003}' >run/metrics.jsonl
"$smelt" watch run port=0 >address &
watcher=$!
until grep -q http address; do sleep 0.1; done
url=$(sed -n 's/.*\(http[^ ]*\).*/\1/p' address)
python3 - "$url" <<'END' >metrics
import sys, urllib.request
print(urllib.request.urlopen(sys.argv[1] + "metrics").read().decode(), end="")
END
for name in $names; do # but a stopped run has no time left, and no lease
    case $name in *remaining_seconds) continue ;; esac
    grep -q "^$name{" metrics || { echo "monitoring: $name is not in /metrics"; exit 1; }
done

if ! command -v promtool >/dev/null; then
    echo "monitoring: names are right; promtool is not installed (Debian: prometheus), so rules and formats were not checked"
    exit 0
fi
lint=$(promtool check metrics <metrics 2>&1) || { echo "$lint"; exit 1; }
[ -z "$lint" ] || { echo "monitoring: promtool: $lint"; exit 1; }
cd "$monitoring"
promtool check config prometheus.yml >"$folder/out" 2>&1 || { cat "$folder/out"; exit 1; }
promtool test rules smelt-alerts-test.yml >"$folder/out" 2>&1 || { cat "$folder/out"; exit 1; }
python3 - <<'END' >"$folder/panels.yml"
import json
print("groups:\n  - name: panels\n    rules:")
for panel in json.load(open("smelt-dashboard.json"))["panels"]:
    for target in panel["targets"]:
        print("      - record: panel\n        expr: " + json.dumps(target["expr"].replace("$run", "a")))
END
promtool check rules --lint=none "$folder/panels.yml" >"$folder/out" 2>&1 || { cat "$folder/out"; exit 1; }
echo "monitoring: passed"
