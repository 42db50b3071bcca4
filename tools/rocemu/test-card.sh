#!/bin/sh
# Everything that a real GPU can prove of smelt, on one page that its owner can send back: what the machine is, the tests of operations,
# GEMM, optimizers and training on it, the speed of GEMM, some steps of a small model.
# Usage: test-card.sh hip|cuda REPORT PROGRAM...     ($SMELT: the program)
set -u
device=$1 report=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export SMELT_TEST_DEVICE="$device"

machine() {
    echo "smelt $(git describe --always --dirty 2>/dev/null || echo 'of unknown version'), $(date -u +%Y-%m-%dT%H:%MZ), $(uname -srm)"
    if [ "$device" = hip ]; then
        cat /opt/rocm/.info/version 2>/dev/null
        rocminfo 2>/dev/null | grep -E '^ +(Marketing Name|Name): +(AMD|gfx)' | sort | uniq -c
    else
        nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null
    fi
}
some_steps() {
    cat README.md docs/*.md src/*/*.c >"$work/text"
    "$SMELT" train configs/zaya1-tiny.yaml data.train="$work/text" run="$work/run" device="$device" steps=40 schedule.warmup=10 schedule.decay=10 eval.every=0 2>&1 | tail -n 12
}
gemm_speed() {
    for program in "$@"; do
        case $program in */test_gpu_gemm) SMELT_TEST_SPEED=1 "$program" 2>&1 | grep TFLOP ;; esac
    done
}

{
    machine
    if tests/support/run.sh "$@"; then echo "all tests passed"; else echo "TESTS FAILED"; fi
    gemm_speed "$@"
    some_steps
} 2>&1 | tee "$report"
echo "Please send us $report, also when all is well."
! grep -q 'TESTS FAILED' "$report"
