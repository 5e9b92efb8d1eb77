#!/bin/bash
# Eight ranks on the hosts of a file, communicating over MPI, started again when one fails.
#
#     HOSTS=hosts.txt docs/recipes/mpi.sh
#
# It needs mpi4py and the MPI that it was built with (pip install "gpuflow[mpi]"). hosts.txt has a
# name on each line. Change: the number of ranks, and the program. Inside of a job of Slurm or PBS,
# mpiexec knows the hosts: leave HOSTS out.

set -u
RANKS="${RANKS:-8}"
RUN_FOLDER="${RUN_FOLDER:-$PWD/run}"
MAX_RESTARTS="${MAX_RESTARTS:-3}"

hosts=()
if [ -n "${HOSTS:-}" ]; then
    hosts=(-hosts "$(paste -sd, "$HOSTS")")
fi

for attempt in $(seq 0 "$MAX_RESTARTS"); do
    export GPUFLOW_RESTART="$attempt"
    mpiexec "${hosts[@]}" -prepend-rank -n "$RANKS" \
        gpuflow launch docs/examples/restarts.py "$RUN_FOLDER" && exit 0
    echo "attempt $attempt ended with status $?" >&2
done
exit 1
