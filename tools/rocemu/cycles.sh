#!/bin/sh
# Models the cycles of kernels on emulated GPUs (tests/rocemu/test_cycles.c) and writes the table of all targets.
# ROCEMU_TIME_RANGE=1 adds the range of cycles over the unknown properties of the cards.
# Usage: cycles.sh OUTPUT.csv CASES EMULATOR_FOLDER PROGRAM TARGET...     (CASES: small, all, or the beginning of a name)
set -eu
output=$1 cases=$2 emulator=$(realpath "$3") program=$4
shift 4
work=$(mktemp -d) jobs=$(nproc) # which OMP_NUM_THREADS would change
trap 'rm -rf "$work"' EXIT
export SMELT_TEST_DEVICE=hip OMP_NUM_THREADS=1 LD_LIBRARY_PATH="$emulator" ROCEMU_LIBRARY="$emulator/libamdhip64.so" CYCLES_CASES="$cases"
# shellcheck disable=SC2016  # the inner shell expands these
printf '%s\n' "$@" | xargs -P "$jobs" -n 1 sh -c 'ROCEMU_GPU=$2 CYCLES=$0/$2 "$1" >"$0/$2.log" 2>&1 || { cat "$0/$2.log"; exit 1; }' "$work" "$program"
{
    for target in "$@"; do head -n 1 "$work/$target"; done
    echo "target,case,kernel,grid,cycles,${ROCEMU_TIME_RANGE:+range,}matrix,memory,launches,registers,occupancy,longest wait"
    for target in "$@"; do tail -n +2 "$work/$target"; done
} >"$output"
