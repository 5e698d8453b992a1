#!/usr/bin/env bash
# Runs a command beside a Dask cluster on two "hosts": network namespaces joined by a veth pair held to a rate.
# Needs root, iproute2 (ip, tc) and dask on the PATH. The command finds the scheduler's address in $SCHEDULER.
#
#     RATE=1gbit tests/benchmarks/two_hosts.sh python tests/benchmarks/bench_partition.py --scheduler '$SCHEDULER'
set -euo pipefail
rate="${RATE:-1gbit}"
a="dsinga-a-$$" b="dsinga-b-$$"
pids=()

clean_up() {
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    timeout 5 tail --pid="${pids[-1]}" -f /dev/null || true
    for pid in "${pids[@]}"; do kill -9 "$pid" 2>/dev/null || true; done
    ip netns del "$a" 2>/dev/null || true
    ip netns del "$b" 2>/dev/null || true
}
trap clean_up EXIT

ip netns add "$a"
ip netns add "$b"
ip link add va netns "$a" type veth peer name vb netns "$b"
ip -n "$a" addr add 10.77.0.1/24 dev va
ip -n "$b" addr add 10.77.0.2/24 dev vb
for end in "$a va" "$b vb"; do
    read -r host device <<<"$end"
    ip -n "$host" link set lo up
    ip -n "$host" link set "$device" up
    tc -n "$host" qdisc add dev "$device" root tbf rate "$rate" burst 256k latency 10ms
done

export OMP_NUM_THREADS=1
ip netns exec "$a" dask scheduler --host 10.77.0.1 --port 8786 --no-dashboard >/dev/null 2>&1 &
pids+=($!)
export SCHEDULER=tcp://10.77.0.1:8786
for end in "$a 10.77.0.1" "$b 10.77.0.2"; do
    read -r host address <<<"$end"
    ip netns exec "$host" dask worker "$SCHEDULER" --host "$address" --nthreads 1 --no-nanny --no-dashboard \
        >/dev/null 2>&1 &
    pids+=($!)
done
ip netns exec "$a" bash -c "python -c 'import os; from distributed import Client; Client(os.environ[\"SCHEDULER\"]).wait_for_workers(2, timeout=60)'"
ip netns exec "$a" bash -c "$*"
