#!/usr/bin/env bash
# A job that fails when what tunekit runs becomes slower, against torch, than it was.
#
#     bash examples/ci_gate.sh SHAPES [TUNED] [RATIO] [DEVICE]
#
# SHAPES lists the problems that matter. TUNED is an export kept beside the code; without one the
# problems are tuned first. RATIO is the least geometric mean of torch's time over tunekit's. DEVICE
# is `cuda` on a runner with a GPU; elsewhere the recorded times of `replay` show how it works.
set -euo pipefail
shapes=$1 tuned=${2:-} ratio=${3:-1.0} device=${4:-auto}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export TUNEKIT_CACHE=$work/tunekit.db

if [[ -n $tuned ]]; then
    tunekit import-cache "$tuned"
else
    tunekit tune --shapes "$shapes" --device "$device" --quiet >"$work/table.txt"
fi
tunekit bench --shapes "$shapes" --device "$device" --fail-below "$ratio"
