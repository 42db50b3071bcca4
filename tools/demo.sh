#!/bin/sh
# The demo: the King James Bible from a Debian package, a small ZAYA1 trained on all of it but the last twentieth, its bits per byte on that part
# beside those of xz, a report page and a sample. Usage: demo.sh SMELT FOLDER; everything is written under FOLDER.
set -eu
smelt=$1 folder=$2
held_out_lines=1556
rm -rf "$folder"
mkdir -p "$folder"
bible -f gen1:1-rev22:21 >"$folder/all.txt"
head -n -$held_out_lines "$folder/all.txt" >"$folder/train.txt"
tail -n $held_out_lines "$folder/all.txt" >"$folder/held-out.txt"

"$smelt" train configs/zaya1-tiny.yaml run="$folder/run" data.train="$folder/train.txt" data.valid="$folder/held-out.txt"
"$smelt" report "$folder/run"
echo
echo "A sample:"
"$smelt" generate "$folder/run" "And it came to pass" tokens=230 temperature=0.8 top_p=0.95 seed=1
echo

bytes=$(wc -c <"$folder/held-out.txt")
packed=$(xz -9e -c "$folder/held-out.txt" | wc -c)
model=$(sed -n 's/.*"kind": *"evaluation".*"bits_per_byte": *\([0-9.]*\).*/\1/p' "$folder/run/metrics.jsonl" | tail -n 1)
awk -v bytes="$bytes" -v packed="$packed" -v model="$model" 'BEGIN {
    xz = 8 * packed / bytes
    printf "bits per byte on %d held-out bytes: smelt %.3f, xz -9e %.3f\n", bytes, model, xz
    if (!(model > 0 && model < xz)) { print "the model did not beat xz"; exit 1 }
}'
echo "report: $folder/run/report.html"
