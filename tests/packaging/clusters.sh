#!/bin/sh
# One check of the files for clusters. Exit code 77: PyPI, which the check needs, cannot be reached. Usage: clusters.sh REPOSITORY SMELT
#   schemas  packaging/kubernetes by the published models of Kubeflow Trainer and JobSet
#   codes    the exit codes of `smelt launch` by the rules for pods in these files
#   scripts  the batch script of docs/cluster.md and the command of packaging/skypilot by shellcheck
# in the current folder, which has a text in the file `text`
set -eu
check=$1 repository=$2 smelt=$3
case $check in
scripts)
    sed -n '/^#!\/bin\/bash/,/^exit/p' "$repository/docs/cluster.md" >train.sh
    grep -q '^srun' train.sh || { echo "docs/cluster.md has no batch script"; exit 1; }
    { echo '#!/bin/sh'; sed -n 's/^  \(smelt launch\|  checkpoint\)/\1/p' "$repository/packaging/skypilot/smelt.yaml"; } >sky.sh
    grep -q 'smelt launch' sky.sh || { echo "packaging/skypilot/smelt.yaml has no command"; exit 1; }
    shellcheck train.sh sky.sh ;;
*)
    python3 -m venv venv
    venv/bin/pip --quiet --disable-pip-version-check download --no-deps --dest reached pyyaml >log 2>&1 || { cat log; exit 77; }
    venv/bin/pip --quiet --disable-pip-version-check install pyyaml kubeflow-trainer-api==2.3.0
    venv/bin/python "$repository/tests/packaging/clusters.py" "$check" "$smelt" ;;
esac
