"""A Slurm cluster of several nodes on this machine: each has separate namespaces, and dies with its first process.

Nothing of the system's is touched: configuration, key, sockets and state lie in a folder of the test and on each node's
own /run, networks have no name and no address outside. The kernel ends all of it with the test's process.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support.waiting import crowd, wait_until

_HEAD = "head"
_PROGRAMS = ("ip", "munged", "nsenter", "sbatch", "setpriv", "slurmctld", "slurmd", "unshare")
_PACKAGES = "slurmctld slurmd slurm-client munge iproute2"
_COMMAND_S = 60.0
_ENVIRONMENT = dict(os.environ) | {"PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}

_CONFIGURATION = """
ClusterName=rehearsal
SlurmctldHost={head}(10.79.0.254)
SlurmUser=root
AuthType=auth/munge
# How long a requeued job waits for its credentials to expire; 120 by default.
AuthInfo=cred_expire=8
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmdSpoolDir=/run/slurmd
StateSaveLocation={folder}/state
# Seconds without an answer after which a node is down, 300 by default. A call to it must have failed by then, which
# takes MessageTimeout or twice as long; 10 by default.
SlurmdTimeout={slurmd_s}
MessageTimeout={message_s}
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
NodeName=node[1-{nodes}] CPUs=8
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10
"""

_FIRST_PROCESS = """
set -e
hostname "$1"
mount -t tmpfs run /run
mount --bind "$2/hosts" /etc/hosts
mkdir -m 755 /run/munge
read -r wired
munged --foreground --force --key-file="$2/munge.key" --seed-file=/run/munge/seed --pid-file=/run/munge/pid &
tries=0
until [ -S /run/munge/munge.socket.2 ] || [ $tries = 300 ]; do sleep 0.1; tries=$((tries + 1)); done
"$3" -D -f "$2/slurm.conf" &
wait
"""


def why_not() -> str:
    """Return why there can be no Slurm cluster here; empty if there can."""
    if os.geteuid() != 0:
        return "nodes with networks of their own are made by root"
    missing = [name for name in _PROGRAMS if shutil.which(name, path=_ENVIRONMENT["PATH"]) is None]
    if missing:
        return f"{', '.join(missing)} missing: install the packages {_PACKAGES}"
    tried = subprocess.run(["unshare", "--net", "--pid", "--fork", "true"], capture_output=True, text=True, check=False)
    return f"the kernel makes no namespaces: {tried.stderr.strip()}" if tried.returncode else ""


class Node:
    """A machine of the cluster: its own network, process ids, host name and /run; files are shared."""

    def __init__(self, name: str, folder: Path, program: str) -> None:
        """Start its first process, which waits for the network.

        Args:
            name: Its host name.
            folder: Of the cluster, with slurm.conf, munge.key and hosts.
            program: `slurmctld` or `slurmd`.
        """
        namespaces = ("--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
        first = ("sh", "-c", _FIRST_PROCESS, "sh", name, str(folder), program)
        with (folder / f"{name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "unshare", *namespaces, *first],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=_ENVIRONMENT,
            )
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        wait_until(lambda: children.read_text().strip(), f"{name} has a first process", _COMMAND_S * crowd())
        self.name, self.pid = name, int(children.read_text().split()[0])

    def start(self) -> None:
        """Let it continue, now that its network is there."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.close()

    def run(self, *command: str, variables: Mapping[str, str] | None = None) -> str:
        """Run a command on the node, in the current folder; return what it printed."""
        inside = (
            "nsenter",
            f"--target={self.pid}",
            "--net",
            "--uts",
            "--ipc",
            "--mount",
            "--pid",
            f"--wd={Path.cwd()}",
        )
        environment = _ENVIRONMENT | dict(variables or {})
        ended = subprocess.run(
            [*inside, *command],
            env=environment,
            timeout=_COMMAND_S * crowd(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, f"{' '.join(command)} ended with {ended.returncode}\n{ended.stdout}{ended.stderr}"
        return ended.stdout

    def lose(self) -> None:
        """End every process of the node at once, as a power failure would, and take its network away; once."""
        if self._process.returncode is not None:  # its process id may be that of another process by now
            return
        self._process.kill()
        self._process.wait()
        wait_until(lambda: not Path(f"/proc/{self.pid}").exists(), f"{self.name} is gone", _COMMAND_S * crowd())
        if self._process.stdin is not None:
            self._process.stdin.close()


class SlurmCluster:
    """A controller and nodes called node1, node2 and so on.

    Attributes:
        nodes: All that compute, by name.
    """

    def __init__(self, folder: Path, nodes: int, stack: ExitStack) -> None:
        """Start it, and wait until every node is idle."""
        folder.mkdir(mode=0o700)
        (folder / "state").mkdir()
        self._folder = folder
        (folder / "slurm.conf").write_text(_configuration(folder, nodes))
        addresses = {_HEAD: "10.79.0.254"} | {f"node{number}": f"10.79.0.{number}" for number in range(1, nodes + 1)}
        lines = [f"{address} {name}" for name, address in addresses.items()]
        (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
        (folder / "munge.key").write_bytes(secrets.token_bytes(128))
        (folder / "munge.key").chmod(0o600)
        self._head = Node(_HEAD, folder, "slurmctld")
        self.nodes: dict[str, Node] = {}
        stack.callback(self._lose_all)
        self._ip(self._head, "link", "add", "cluster", "type", "bridge")
        self._ip(self._head, "address", "add", f"{addresses[_HEAD]}/24", "dev", "cluster")
        for device in ("lo", "cluster"):
            self._ip(self._head, "link", "set", device, "up")
        self._head.start()
        for name in list(addresses)[1:]:
            node = Node(name, folder, "slurmd")
            self.nodes[name] = node
            self._join(node, addresses[name])
            node.start()
        wait_until(lambda: self._idle() == nodes, "every node is idle", describe=self.logs, longest_pause_s=0.5)

    def run(self, *command: str, variables: Mapping[str, str] | None = None) -> str:
        """Run a command of Slurm's, as on a login node; return what it printed."""
        return self._head.run(
            *command, variables={"SLURM_CONF": str(self._folder / "slurm.conf")} | dict(variables or {})
        )

    def logs(self) -> str:
        """Return the last lines of each node's log."""
        files = sorted(self._folder.glob("*.log"))
        return "\n".join(f"--- {file.name}\n{file.read_text(errors='replace')[-1500:]}" for file in files)

    def _lose_all(self) -> None:
        # At the same time: the kernel takes two seconds for each.
        with ThreadPoolExecutor(len(self.nodes) + 1) as threads:
            list(threads.map(Node.lose, [self._head, *self.nodes.values()]))  # raises what a loss has raised

    def _join(self, node: Node, address: str) -> None:
        """Connect a node with the bridge, which is on the controller."""
        self._ip(self._head, "link", "add", node.name, "type", "veth", "peer", "name", "eth0", "netns", str(node.pid))
        self._ip(self._head, "link", "set", node.name, "master", "cluster", "up")
        self._ip(node, "address", "add", f"{address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            self._ip(node, "link", "set", device, "up")

    def _ip(self, node: Node, *words: str) -> None:
        # The network alone: a process id in the command is one of this machine's.
        command = ["nsenter", f"--target={node.pid}", "--net", "ip", *words]
        subprocess.run(command, env=_ENVIRONMENT, check=True, timeout=_COMMAND_S * crowd(), capture_output=True)

    def _idle(self) -> int:
        try:
            said = self.run("sinfo", "--noheader", "--Node", "--partition=main", "--format=%N %T")
        except (AssertionError, subprocess.TimeoutExpired):  # the controller starts
            return 0
        return len(re.findall(r"^\S+ idle$", said, re.MULTILINE))


def _configuration(folder: Path, nodes: int) -> str:
    message_s = round(5.0 * crowd())
    return _CONFIGURATION.format(head=_HEAD, folder=folder, nodes=nodes, message_s=message_s, slurmd_s=3 * message_s)


@contextmanager
def slurm_cluster(folder: Path, nodes: int) -> Iterator[SlurmCluster]:
    """Yield a cluster of so many nodes; nothing of it is left afterwards."""
    with ExitStack() as stack:
        yield SlurmCluster(folder, nodes, stack)
