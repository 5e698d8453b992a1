#!/usr/bin/env bash
# Runs a command beside a Dask cluster on N "hosts": network namespaces at a switch, each by a link held to a rate.
# Needs root, iproute2 (ip, tc) and dask on the PATH. The command runs on the first host; it finds the scheduler's
# address in $SCHEDULER, the names of the namespaces in $HOSTS and the rate in $RATE. With DELAY, seconds one way, RATE is
# bits a second, and slow_links.py passes packets on: not every kernel has netem.
#
#     RATE=1gbit tools/benchmarks/hosts.sh 2 python tools/benchmarks/bench_partition.py --scheduler '$SCHEDULER'
set -euo pipefail
count="$1"
shift
export RATE="${RATE:-1gbit}" OMP_NUM_THREADS=1
switch="dsinga-switch-$$"
hosts=()
pids=()

clean_up() {
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    timeout 5 tail --pid="${pids[-1]}" -f /dev/null || true
    for pid in "${pids[@]}"; do kill -9 "$pid" 2>/dev/null || true; done
    for host in "$switch" "${hosts[@]}"; do ip netns del "$host" 2>/dev/null || true; done
}
trap clean_up EXIT

if [[ -n "${DELAY:-}" ]]; then
    for number in $(seq "$count"); do
        hosts+=("dsinga-$number-$$")
        ip netns add "${hosts[-1]}"
    done
    python "$(dirname "$0")/slow_links.py" "$RATE" "$DELAY" "${hosts[@]}" &
    pids+=($!)
    for host in "${hosts[@]}"; do
        timeout 10 bash -c "until ip -n $host addr show eth0 2>/dev/null | grep -q 10.77; do sleep 0.1; done"
    done
else
ip netns add "$switch"
ip -n "$switch" link add br0 type bridge
ip -n "$switch" link set br0 up
for number in $(seq "$count"); do
    host="dsinga-$number-$$"
    hosts+=("$host")
    ip netns add "$host"
    ip link add eth0 netns "$host" type veth peer name "port$number" netns "$switch"
    ip -n "$host" addr add "10.77.0.$number/24" dev eth0
    ip -n "$switch" link set "port$number" master br0
    ip -n "$host" link set lo up
    for end in "$host eth0" "$switch port$number"; do
        read -r namespace device <<<"$end"
        ip -n "$namespace" link set "$device" up
        tc -n "$namespace" qdisc add dev "$device" root tbf rate "$RATE" burst 256k latency 10ms
    done
done
fi

export HOSTS="${hosts[*]}" SCHEDULER=tcp://10.77.0.1:8786
ip netns exec "${hosts[0]}" dask scheduler --host 10.77.0.1 --port 8786 --no-dashboard >/dev/null 2>&1 &
pids+=($!)
for number in $(seq "$count"); do
    ip netns exec "${hosts[$((number - 1))]}" dask worker "$SCHEDULER" --host "10.77.0.$number" --nthreads 1 \
        --no-nanny --no-dashboard >"${LOGS:-/dev/null}" 2>&1 &
    pids+=($!)
done
ip netns exec "${hosts[0]}" python -c \
    "import os; from distributed import Client; Client(os.environ['SCHEDULER']).wait_for_workers($count, timeout=60)"
ip netns exec "${hosts[0]}" bash -c "$*"
