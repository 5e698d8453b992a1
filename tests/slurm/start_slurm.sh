#!/usr/bin/env bash
# Starts a SLURM of four nodes on this machine, for the tests marked slurm; with the argument `stop` ends it. Needs root,
# and Debian's or Ubuntu's packages slurm-wlm and munge, or apt to install them. Each node claims 32 cores, whatever the
# machine has, so that two scripts can ask for 16 each, as on a real cluster. Touches no other SLURM that answers here.
set -euo pipefail
if timeout 10 sinfo --noheader >/dev/null 2>&1; then
    scontrol show config | grep '^ClusterName *= dsinga$' >/dev/null || { echo "another SLURM runs on this machine" >&2; exit 1; }
    [ "${1:-}" = stop ] || exec sinfo
fi
if [ "${1:-}" = stop ]; then
    cat /run/slurmd-node[1-4].pid /run/slurmctld.pid 2>/dev/null | xargs --no-run-if-empty kill
    exit
fi
if [ "$(id -u)" != 0 ]; then echo "only root can start SLURM" >&2; exit 1; fi
if ! command -v slurmctld slurmd munged >/dev/null; then
    command -v apt-get >/dev/null || { echo "neither SLURM nor apt-get is here" >&2; exit 1; }
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq slurm-wlm munge >/dev/null
fi
host=$(hostname -s)
state=/var/spool/dsinga-slurm
mkdir -p /etc/slurm "$state" /var/log/slurm /run/munge
chown munge: /run/munge
cat >/etc/slurm/slurm.conf <<CONF
ClusterName=dsinga
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=2,batch_sched_delay=0
ReturnToService=2
JobRequeue=1
KillWait=5
MinJobAge=60
SlurmdParameters=config_overrides
StateSaveLocation=$state/ctld
SlurmdSpoolDir=$state/%n
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/%n.log
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd-%n.pid
MpiDefault=none
NodeName=node[1-4] NodeHostname=$host NodeAddr=127.0.0.1 Port=[17001-17004] CPUs=32 RealMemory=128000 State=UNKNOWN
PartitionName=normal Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
munge -n >/dev/null 2>&1 || su -s /bin/sh munge -c /usr/sbin/munged
slurmctld
for node in node1 node2 node3 node4; do
    slurmd -N "$node"
done
for _ in $(seq 40); do
    if sinfo --noheader --format '%D %t' | grep -x '4 idle' >/dev/null; then exec sinfo; fi
    sleep 0.5
done
echo "SLURM's nodes are not idle after 20 s; see /var/log/slurm" >&2
exit 1
